//! Who there is: API keys, their roles, and the prefixes they may touch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Denial;
use super::rate::Rate;
use super::verb::Verb;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// See who has what.
    Read = 1,
    /// Take leases, and see.
    Lease = 2,
    /// Run the box office.
    Boxoffice = 4,
    /// Everything, also ending other people's leases.
    Admin = 8,
}

impl Role {
    /// Every role there is.
    pub const ALL: [Self; 4] = [Self::Read, Self::Lease, Self::Boxoffice, Self::Admin];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Lease => "lease",
            Self::Boxoffice => "boxoffice",
            Self::Admin => "admin",
        }
    }
}

/// Some of the roles.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// These.
    pub fn of(roles: impl IntoIterator<Item = Role>) -> Self {
        Self(roles.into_iter().fold(0, |bits, role| bits | role as u8))
    }

    /// All of them.
    pub fn all() -> Self {
        Self::of(Role::ALL)
    }

    /// Whether one who has these may do what takes `role`.
    pub const fn allow(self, role: Role) -> bool {
        let enough = match role {
            Role::Read => Role::Read as u8 | Role::Lease as u8 | Role::Boxoffice as u8,
            other => other as u8,
        };
        self.0 & (enough | Role::Admin as u8) != 0
    }

    /// One by one.
    pub fn iter(self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(move |role| self.0 & *role as u8 != 0)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Somebody we know.
#[derive(Debug)]
pub struct Principal {
    /// Public name of the key; empty for everybody on a server without keys.
    pub id: String,
    /// What they may do.
    pub roles: Roles,
    /// What they may touch: names that begin with one of these. Empty: everything. Sorted, none begins with another.
    pub prefixes: Vec<String>,
    /// How often they may ask; none for no limit.
    pub rate: Option<Rate>,
    /// How often they may show a lease id that is not known.
    pub guesses: Rate,
    /// The key was revoked while connections that showed it are open.
    pub revoked: AtomicBool,
}

impl Principal {
    /// Somebody with these roles and prefixes.
    pub fn new(id: String, roles: Roles, mut prefixes: Vec<String>, rate: Option<Rate>) -> Self {
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        if prefixes.iter().any(String::is_empty) {
            prefixes.clear();
        }
        Self { id, roles, prefixes, rate, guesses: Rate::new(100, 1000), revoked: AtomicBool::new(false) }
    }

    /// Whether this name is theirs to see and touch.
    pub fn sees(&self, name: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The prefixes under `asked` that are theirs to see, in order.
    pub fn seen_under(&self, asked: &str) -> Vec<String> {
        if self.sees(asked) {
            return vec![asked.to_owned()];
        }
        self.prefixes.iter().filter(|prefix| prefix.starts_with(asked)).cloned().collect()
    }
}

/// Every key the server knows.
#[derive(Debug)]
pub struct KeyRing {
    anybody: Option<Arc<Principal>>,
}

impl KeyRing {
    /// A server without keys: whoever can reach it may do everything.
    pub fn open() -> Arc<Self> {
        let everybody = Principal::new(String::new(), Roles::all(), Vec::new(), None);
        Arc::new(Self { anybody: Some(Arc::new(everybody)) })
    }

    /// Whether a key is needed.
    pub const fn are_needed(&self) -> bool {
        self.anybody.is_none()
    }

    /// Who shows no key.
    pub fn anybody(&self) -> Option<Arc<Principal>> {
        self.anybody.clone()
    }

    /// Who shows this key.
    pub fn find(&self, _key: &str) -> Option<Arc<Principal>> {
        self.anybody.clone()
    }

    /// Why this principal may not do this to these resources; none if it may.
    pub fn check(&self, principal: &Principal, verb: Verb, names: &[&str]) -> Option<Denial> {
        if principal.revoked.load(Ordering::Relaxed) {
            return Some(Denial::Unauthorized);
        }
        let role = verb.role();
        if !principal.roles.allow(role) {
            let sentence = format!("{} takes a key with the role {}", verb.word(), role.word());
            return Some(Denial::Forbidden(sentence));
        }
        // One sentence whatever the name: it must not tell whether there is such a resource.
        names
            .iter()
            .any(|name| !principal.sees(name))
            .then(|| Denial::Forbidden("this key may not touch resources outside its prefixes".into()))
    }
}

//! Roles: what a caller may do. Which verb needs which role is in `verb`.

use std::fmt;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// See who has what.
    Read = 1,
    /// Take leases, and see.
    Lease = 2,
    /// Run the box office.
    Boxoffice = 4,
    /// Everything, even revoking leases of others.
    Admin = 8,
    /// Buy at one event as one buyer. No key has it: a buyer's ticket does.
    Buyer = 16,
    /// Say what became of payments. No key has it: a signature does.
    Provider = 32,
}

impl Role {
    /// Every role that a key can have.
    pub const ALL: [Self; 4] = [Self::Read, Self::Lease, Self::Boxoffice, Self::Admin];

    /// The role that a word names.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.word() == word)
    }

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Lease => "lease",
            Self::Boxoffice => "boxoffice",
            Self::Admin => "admin",
            Self::Buyer => "buyer",
            Self::Provider => "provider",
        }
    }
}

/// Some of the roles.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// These.
    pub fn from_roles(roles: impl IntoIterator<Item = Role>) -> Self {
        Self(roles.into_iter().fold(0, |bits, role| bits | role as u8))
    }

    /// All that a key can have.
    pub fn all() -> Self {
        Self::from_roles(Role::ALL)
    }

    /// Whether one who has these may do what takes `role`.
    pub const fn allow(self, role: Role) -> bool {
        let enough = match role {
            Role::Read => Role::Read as u8 | Role::Lease as u8 | Role::Boxoffice as u8,
            Role::Buyer => Role::Buyer as u8 | Role::Boxoffice as u8,
            // Not even an admin can confirm a payment.
            Role::Provider => return self.0 & Role::Provider as u8 != 0,
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

//! What the ring lets in, cell by cell.

use super::secret::NewKey;
use super::*;

impl NewKey {
    /// What the file would keep of it.
    pub(crate) fn record(&self, roles: &[Role], prefixes: &[&str]) -> KeyRecord {
        KeyRecord {
            id: self.id.clone(),
            hash: self.digest(),
            roles: roles.to_vec(),
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            rate: None,
            note: String::new(),
            created: String::new(),
        }
    }
}

fn list(records: &[KeyRecord]) -> KeyFile {
    KeyFile { keys: records.to_vec() }
}

const YES: bool = true;
const NO: bool = false;

/// Goal: every role may do what the table says, and nothing else. "Nobody" is a principal without any role: whoever
/// shows no key has no principal at all on a server with keys.
#[test]
fn every_cell_of_the_matrix() {
    #[rustfmt::skip]
    let matrix: [(Verb, [bool; 7]); 29] = [
        //                 nobody read lease boxoffice admin buyer provider
        (Verb::Acquire,   [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::Renew,     [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::Relabel,   [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::Release,   [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::Inspect,   [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::List,      [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::Watch,     [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::Revoke,    [NO,    NO,  NO,   NO,       YES,  NO,   NO ]),
        (Verb::SetKey,    [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::GetKey,    [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::FreeKey,   [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::ExtendKey, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::Floor,     [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::RaiseFloor, [NO,   NO,  NO,   NO,       YES,  NO,   NO ]),
        (Verb::Status,    [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::Metrics,   [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::SeeEvent,  [NO,    NO,  NO,   YES,      YES,  YES,  NO ]),
        (Verb::Buy,       [NO,    NO,  NO,   YES,      YES,  YES,  NO ]),
        (Verb::RunEvent,  [NO,    NO,  NO,   YES,      YES,  NO,   NO ]),
        (Verb::OverseeEvent, [NO, NO,  NO,   YES,      YES,  NO,   NO ]),
        (Verb::Settle,    [NO,    NO,  NO,   NO,       NO,   NO,   YES]),
        (Verb::Once, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::MakeQueue, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::PushJob, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::WorkQueue, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
        (Verb::SeeQueue, [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::RunQueue, [NO,    NO,  NO,   NO,       YES,  NO,   NO ]),
        (Verb::SeeSchedule, [NO,    YES, YES,  YES,      YES,  NO,   NO ]),
        (Verb::RunSchedule, [NO,    NO,  YES,  NO,       YES,  NO,   NO ]),
    ];
    assert_eq!(matrix.map(|(verb, _)| verb), Verb::ALL, "every verb has its row, once");
    let roles: [&[Role]; 7] =
        [&[], &[Role::Read], &[Role::Lease], &[Role::Boxoffice], &[Role::Admin], &[Role::Buyer], &[Role::Provider]];
    let ring = KeyRing::open();
    for (verb, row) in matrix {
        for (roles, allowed) in roles.into_iter().zip(row) {
            let principal =
                Principal::new("k".into(), Roles::from_roles(roles.iter().copied()), vec!["a/".into()], None);
            let at = format!("{} by {roles:?}", verb.word());
            let answer = |names: &[&str]| ring.check_access(&principal, verb, names);
            // Metrics and the floor are of everything: they are not for a key that sees only a part of it.
            let whole_only = matches!(verb, Verb::Metrics | Verb::RaiseFloor);
            assert_eq!(answer(&["a/1"]).is_none(), allowed && !whole_only, "{at}");
            let whole = Principal::new("w".into(), Roles::from_roles(roles.iter().copied()), Vec::new(), None);
            assert_eq!(ring.check_access(&whole, verb, &["a/1"]).is_none(), allowed, "{at}, without a prefix");
            assert!(matches!(answer(&["a/1", "b/1"]), Some(Denial::Forbidden(_))), "{at}, outside its prefix");
            principal.revoke();
            assert!(matches!(answer(&["a/1"]), Some(Denial::Unauthorized)), "{at}, revoked");
        }
    }
}

/// Goal: the key itself is let in, and nothing that is nearly it.
#[test]
fn only_the_very_key_is_found() {
    let key = NewKey::random().unwrap();
    let ring = KeyRing::from_file(&list(&[key.record(&[Role::Lease], &[])]));
    assert!(ring.are_needed() && ring.anybody().is_none());
    let text = key.expose();
    assert_eq!(ring.find_principal(text).unwrap().id, key.id);
    let other = NewKey::random().unwrap();
    let wrong = [
        String::new(),
        key.id.clone(),
        text[..text.len() - 1].to_owned(),
        format!("{text}0"),
        format!(" {text}"),
        text.to_uppercase(),
        other.expose().to_owned(),
        format!("lh_{}_{}", key.id, other.expose().rsplit('_').next().unwrap()),
        "x".repeat(100_000),
    ];
    assert!(wrong.iter().all(|wrong| ring.find_principal(wrong).is_none()));
}

/// Goal: a new list revokes who is gone or changed, lets in who is new, and leaves the others alone.
#[test]
fn a_new_list_takes_effect_at_once() {
    let keys: Vec<NewKey> = (0..4).map(|_| NewKey::random().unwrap()).collect();
    let of = |at: usize, role| keys[at].record(&[role], &[]);
    let ring = KeyRing::from_file(&list(&[of(0, Role::Lease), of(1, Role::Lease), of(2, Role::Admin)]));
    let before: Vec<_> = (0..3).map(|at| ring.find_principal(keys[at].expose()).unwrap()).collect();
    let change = ring.replace(&list(&[of(0, Role::Lease), of(2, Role::Read), of(3, Role::Lease)]));
    assert_eq!(change, KeyChange { added: 2, removed: 2 });
    let gone: Vec<bool> = before.iter().map(|principal| principal.revoked.load(Ordering::Relaxed)).collect();
    assert_eq!(gone, [false, true, true]);
    let now: Vec<bool> = keys.iter().map(|key| ring.find_principal(key.expose()).is_some()).collect();
    assert_eq!(now, [true, false, true, true]);
    assert!(Arc::ptr_eq(&before[0], &ring.find_principal(keys[0].expose()).unwrap()), "its rate goes on counting");
    assert!(!ring.find_principal(keys[2].expose()).unwrap().roles.allow(Role::Admin));
}

/// Goal: the first key closes an open server to everybody, and no change of the list opens it again.
#[test]
fn a_ring_that_had_keys_never_opens_again() {
    let key = NewKey::random().unwrap();
    let ring = KeyRing::from_file(&KeyFile::default());
    let anybody = ring.anybody().expect("no keys, so it is open");
    assert_eq!(ring.replace(&KeyFile::default()), KeyChange::default());
    assert!(!anybody.revoked.load(Ordering::Relaxed));
    ring.replace(&list(&[key.record(&[Role::Lease], &[])]));
    assert!(anybody.revoked.load(Ordering::Relaxed) && ring.anybody().is_none());
    ring.replace(&KeyFile::default());
    assert!(ring.are_needed() && ring.anybody().is_none() && ring.find_principal(key.expose()).is_none());
}

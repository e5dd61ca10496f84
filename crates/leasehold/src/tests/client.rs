//! The way in: URLs, lists, the bare calls.

use super::*;
use crate::Error;

async fn refusal_of(url: &str) -> String {
    match Leasehold::open(url).await {
        Err(Error::Invalid(sentence)) => sentence,
        other => panic!("{url}: {other:?}"),
    }
}

/// Goal: a URL that no engine answers to gets one sentence that says what to do, and no password in it.
/// Method: each kind of wrong URL.
#[tokio::test]
async fn a_wrong_url_gets_a_sentence_that_helps() {
    let cases = [
        ("leases", "an engine URL begins with its scheme, as in embedded:DIR"),
        ("", "an engine URL begins with its scheme, as in embedded:DIR"),
        ("se cret:x", "an engine URL begins with its scheme, as in embedded:DIR"),
        ("mysql://u:hunter2@h", "no engine answers to mysql: use embedded:DIR or leasehold://host:port"),
        ("embedded:", "embedded: wants a directory, as in embedded:./leases"),
        ("embedded://leases", "embedded: is followed by a path, without //, as in embedded:/var/lib/leases"),
    ];
    for (url, sentence) in cases {
        assert_eq!(refusal_of(url).await, sentence, "{url}");
    }
    for url in ["etcd://u:hunter2@h?colour=red", "zk://u:hunter2@h/locks?colour=red"] {
        let sentence = refusal_of(url).await;
        let helps = ["colour", "token_base", "feature"].iter().any(|word| sentence.contains(word));
        assert!(helps, "{url}: {sentence}");
        assert!(!sentence.contains("hunter2"), "{sentence}");
    }
}

/// Goal: a list is complete although the engine gives it in pages.
/// Method: five resources, two a page; a prefix that leaves out one.
#[tokio::test]
async fn a_list_goes_on_until_the_last_page() {
    let world = World::new();
    let names = ["seat-1", "seat-2", "seat-3", "seat-4", "aisle"];
    let _lease = world.leasehold.acquire_all(names).await.unwrap();
    let found: Vec<_> = world.leasehold.list("seat-").await.unwrap().into_iter().map(|r| r.name).collect();
    assert_eq!(found, names[..4]);
    assert!(world.leasehold.list("none").await.unwrap().is_empty());
}

/// Goal: the bare grant is neither renewed nor guarded, and its id does all the rest.
/// Method: grant, renew by id, release by id, twice.
#[tokio::test]
async fn a_bare_grant_is_kept_by_its_id_alone() {
    let world = World::new();
    let grant = world.seat().grant().await.unwrap();
    world.pass(secs(20)).await;
    assert_eq!(world.renewals(), 0);
    let renewal = world.leasehold.renew(&grant.lease_id, None).await.unwrap();
    assert_eq!(renewal.remaining, secs(30));
    assert!(world.leasehold.release(&grant.lease_id).await.unwrap());
    assert!(!world.leasehold.release(&grant.lease_id).await.unwrap());
    world.leasehold.close().await.unwrap();
}

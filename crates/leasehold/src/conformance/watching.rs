//! What happens, told to those who watch. Asked only of engines that can be watched.

use super::Subject;
use super::law_case::{LawCase, exclusive, in_time};
use crate::engine::{Claim, Engine, Event, EventId, EventKind, Query, Seen, Watch};
use crate::error::Error;

/// A watch, or none from an engine that cannot be watched.
pub(super) async fn watch(engine: &dyn Engine, since: Option<EventId>) -> Option<Watch> {
    match in_time(engine.watch(since)).await {
        Ok(watch) => Some(watch),
        Err(Error::Invalid(_)) => None,
        Err(other) => panic!("a watch begins, or the engine cannot be watched, not {other:?}"),
    }
}

pub(super) async fn reset(watch: &mut Watch) -> EventId {
    match in_time(watch.next()).await {
        Ok(Seen::Reset(id)) => id,
        other => panic!("expected a reset, got {other:?}"),
    }
}

/// The next so many events; nothing else may come.
pub(super) async fn events(watch: &mut Watch, count: usize) -> Vec<Event> {
    let mut all = Vec::new();
    while all.len() < count {
        match in_time(watch.next()).await {
            Ok(Seen::Events(events)) => {
                assert!(!events.is_empty(), "a watch tells something when it tells");
                all.extend(events);
            }
            other => panic!("expected events, got {other:?}"),
        }
    }
    assert_eq!(all.len(), count, "too much is told: {all:?}");
    all
}

/// In order, from after this id on: numbers rise, by one or by more. What was told is what shows a gap.
fn assert_follow(mut after: EventId, events: &[Event]) {
    for event in events {
        let follows = event.id.run == after.run && event.id.number > after.number;
        assert!(follows, "an event out of its place, after {after}: {event:?}");
        after = event.id;
    }
}

/// Goal: each grant and each ending is told once, in order, with all that belongs to it.
/// Method: two grants, one of several; a release, a revoke, a lapse.
pub(super) async fn a_watch_tells_what_happens(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut watch) = watch(case.engine.as_ref(), None).await else { return };
    let begin = reset(&mut watch).await;
    let several = vec![exclusive("seat"), exclusive("aisle")];
    let ada = case.granted(Claim { wants: several, ..case.claim("ada", "seat") }).await;
    let bob = case.granted(case.claim("bob", "row")).await;
    case.held(case.claim("cy", "row")).await;
    case.renew(&ada, None).await.expect("renewed");
    case.end(&ada).await;
    assert_eq!(in_time(case.engine.revoke("row", "a drill")).await.expect("revoked"), 1);
    let cy = case.granted(case.claim("cy", "row")).await;
    case.pass(case.units(10) + subject.slack()).await;
    let told = events(&mut watch, 6).await;
    assert_follow(begin, &told);
    let seen: Vec<_> = told.iter().map(|e| (e.kind, e.token, e.holder.as_str(), e.resources.join(" "))).collect();
    let expected = [
        (EventKind::Granted, ada.token, "ada", "seat aisle"),
        (EventKind::Granted, bob.token, "bob", "row"),
        (EventKind::Released, ada.token, "ada", "seat aisle"),
        (EventKind::Revoked, bob.token, "bob", "row"),
        (EventKind::Granted, cy.token, "cy", "row"),
        (EventKind::Lapsed, cy.token, "cy", "row"),
    ];
    assert_eq!(seen, expected.map(|(kind, token, holder, names)| (kind, token, holder, names.to_owned())));
    let reasons: Vec<&str> = told.iter().map(|event| event.reason.as_str()).collect();
    assert_eq!(reasons, ["", "", "", "a drill", "", ""]);
    let secret = ada.lease_id.expose();
    assert!(!format!("{told:?}").contains(&secret[secret.len() - secret.len().min(16)..]), "a lease id is told");
}

/// Goal: a watch that comes again with the last id it saw goes on after it, without a reset, a gap or a repeat.
/// Method: from every event on, and from the newest.
pub(super) async fn a_watch_goes_on_where_it_was(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut first) = watch(case.engine.as_ref(), None).await else { return };
    let begin = reset(&mut first).await;
    for round in 0..3 {
        let lease = case.granted(case.claim("ada", &format!("seat/{round}"))).await;
        case.end(&lease).await;
    }
    let told = events(&mut first, 6).await;
    assert_follow(begin, &told);
    let ids: Vec<EventId> = std::iter::once(begin).chain(told.iter().map(|event| event.id)).collect();
    for (at, id) in ids.into_iter().enumerate() {
        let mut again = watch(case.engine.as_ref(), Some(id)).await.expect("it could be watched before");
        let rest = if at < 6 { events(&mut again, 6 - at).await } else { Vec::new() };
        assert_eq!(
            rest.iter().map(|event| (event.id, event.kind, event.token)).collect::<Vec<_>>(),
            told[at..].iter().map(|event| (event.id, event.kind, event.token)).collect::<Vec<_>>()
        );
        if at == 6 {
            let lease = case.granted(case.claim("bob", "row")).await;
            let next = events(&mut again, 1).await;
            assert_follow(id, &next);
            assert_eq!((next[0].kind, next[0].token), (EventKind::Granted, lease.token));
        }
    }
}

/// Goal: an id that means nothing here is answered with a reset, and the watch goes on after it.
/// Method: an id of another run, and one that has not been given out yet.
pub(super) async fn an_unknown_event_is_a_reset(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut first) = watch(case.engine.as_ref(), None).await else { return };
    let begin = reset(&mut first).await;
    case.granted(case.claim("ada", "seat")).await;
    let newest = events(&mut first, 1).await[0].id;
    // Numbers may rise by more than one, so only an id far ahead is certainly one that has not been given out.
    let ahead = newest.number.saturating_add(1 << 40);
    let strange = [
        EventId { run: begin.run ^ 1, number: begin.number },
        EventId { run: begin.run ^ 1, number: u64::MAX },
        EventId { run: begin.run, number: ahead },
        EventId { run: begin.run, number: u64::MAX },
    ];
    for (at, since) in strange.into_iter().enumerate() {
        let mut watch = watch(case.engine.as_ref(), Some(since)).await.expect("it could be watched before");
        let id = reset(&mut watch).await;
        assert!(id.run == begin.run && newest.number <= id.number && id.number < ahead, "{since:?}: {id}");
        let grant = case.granted(case.claim("bob", &format!("row/{at}"))).await;
        let told = events(&mut watch, 1).await;
        assert_follow(id, &told);
        assert_eq!((told[0].kind, told[0].token), (EventKind::Granted, grant.token));
    }
}

/// Goal: what was answered was told: whoever has an answer and then looks at the news finds it there; and the news
/// since a reset add up to the list.
pub(super) async fn what_is_answered_was_told(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut first) = watch(case.engine.as_ref(), None).await else { return };
    let mut last = reset(&mut first).await;
    let mut held: Vec<(Option<crate::engine::Token>, String)> = Vec::new();
    for round in 0..8 {
        let name = format!("seat/{}", round % 3);
        let grant = case.granted(case.claim("ada", &name)).await;
        let mut again = watch(case.engine.as_ref(), Some(last)).await.expect("it could be watched before");
        let told = events(&mut again, 1).await;
        assert_eq!((told[0].kind, told[0].token), (EventKind::Granted, grant.token));
        last = told[0].id;
        if round < 5 {
            case.end(&grant).await;
            last = events(&mut again, 1).await[0].id;
        } else {
            held.push((grant.token, name));
        }
    }
    held.sort_by(|one, other| one.1.cmp(&other.1));
    let listed = case.list(Query { prefix: String::new(), after: None, limit: 100 }).await;
    let listed: Vec<_> = listed.into_iter().map(|resource| (resource.holders[0].token, resource.name)).collect();
    assert_eq!(listed, held);
}

/// Goal: a key of several that is freed is told by its name, the rest when it ends.
pub(super) async fn a_freed_key_is_told_by_its_name(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut watch) = watch(case.engine.as_ref(), None).await else { return };
    let Some(keys) = case.engine.keys() else { return };
    let begin = reset(&mut watch).await;
    let several = vec![exclusive("a"), exclusive("b"), exclusive("c")];
    in_time(keys.set(Claim { wants: several, ..case.claim("ada", "a") }, b"v")).await.expect("taken");
    assert_eq!(in_time(keys.free(&["b"], Some(b"v"))).await.expect("freed"), 1);
    assert_eq!(in_time(keys.free(&["a", "c"], Some(b"v"))).await.expect("freed"), 2);
    let told = events(&mut watch, 4).await;
    assert_follow(begin, &told);
    let seen: Vec<_> = told.iter().map(|event| (event.kind, event.resources.join(" "))).collect();
    let expected = [
        (EventKind::Granted, "a b c"),
        (EventKind::Released, "b"),
        (EventKind::Released, "a"),
        (EventKind::Released, "c"),
    ];
    assert_eq!(seen, expected.map(|(kind, names)| (kind, names.to_owned())));
}

/// Goal: a new life of the engine is a new run: what was seen before is answered with a reset. An engine whose events
/// are as durable as its leases may go on with the same run instead, without a gap.
pub(super) async fn a_new_life_is_a_reset(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let Some(mut first) = watch(case.engine.as_ref(), None).await else { return };
    let begin = reset(&mut first).await;
    case.granted(case.claim("ada", "seat")).await;
    let seen = events(&mut first, 1).await[0].id;
    in_time(case.engine.close()).await.expect("it closes");
    assert!(in_time(first.next()).await.is_err(), "a watch of a closed engine ends");
    let Some(again) = subject.reopen().await else { return };
    let mut watch = watch(again.as_ref(), Some(seen)).await.expect("it could be watched before");
    let claim = Claim::new(vec![exclusive("row")], case.units(10), "bob");
    let bob = in_time(again.acquire(claim)).await.expect("it is free");
    match in_time(watch.next()).await {
        Ok(Seen::Reset(id)) => assert_ne!(id.run, begin.run),
        Ok(Seen::Events(told)) => {
            assert_follow(seen, &told);
            assert_eq!((told.len(), told[0].kind, told[0].token), (1, EventKind::Granted, bob.token));
        }
        Err(error) => panic!("a watch goes on, or begins again: {error:?}"),
    }
}

//! Any sequence of commands, against a model that is made of the facts alone: keys, principals, news and sums.

use std::collections::BTreeMap;

use leasehold_core::fact::End;
use leasehold_core::news::{EventKind, News};
use leasehold_core::wire::WireReader;
use leasehold_core::{
    Acquire, Book, Command, Fact, Keys, LeaseKey, Limits, Mode, Push, Refusal, Reply, Secret, Time, Token, WaiterId,
    Want,
};
use proptest::prelude::*;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const VALUES: [&[u8]; 4] = [b"", b"x", b"y", b"xx"];
const PRINCIPALS: [&str; 3] = ["", "ada", "bob"];
const LEASES_PER_PRINCIPAL: usize = 3;
const WAITERS_PER_PRINCIPAL: usize = 2;

/// What a client may do next.
#[derive(Clone, Debug)]
enum Do {
    Acquire { names: u8, mode: u8, wait: bool, ttl: u64, delay: u64, principal: usize, value: Option<usize> },
    Free { names: u8, value: Option<usize> },
    Extend { names: u8, value: Option<usize>, set: bool, ms: u64 },
    Relabel { at: usize, stale: bool },
    Revoke(usize),
    Cancel(u64),
    Pass(u64),
    Tick(u32),
    Reopen,
}

fn any_do() -> impl Strategy<Value = Do> {
    let value = || prop::option::of(0..VALUES.len());
    prop_oneof![
        6 => (1..32u8, 0..4u8, any::<bool>(), 1..400u64, prop_oneof![3 => Just(0u64), 1 => 1..200u64],
            0..PRINCIPALS.len(), value())
            .prop_map(|(names, mode, wait, ttl, delay, principal, value)| Do::Acquire {
                names, mode, wait, ttl, delay, principal, value,
            }),
        3 => (1..32u8, value()).prop_map(|(names, value)| Do::Free { names, value }),
        3 => (1..32u8, value(), any::<bool>(), 1..600u64)
            .prop_map(|(names, value, set, ms)| Do::Extend { names, value, set, ms }),
        2 => (0..NAMES.len(), prop::bool::weighted(0.2)).prop_map(|(at, stale)| Do::Relabel { at, stale }),
        1 => (0..NAMES.len()).prop_map(Do::Revoke),
        1 => (1..60u64).prop_map(Do::Cancel),
        3 => (0..250u64).prop_map(Do::Pass),
        1 => (1..8u32).prop_map(Do::Tick),
        1 => Just(Do::Reopen),
    ]
}

/// A lease, as the facts say.
#[derive(Clone, Debug)]
struct StoryLease {
    names: Vec<String>,
    value: Option<Vec<u8>>,
    principal: String,
    expires_at: Time,
    closing: bool,
    secret: Secret,
    holder: String,
}

type NewsPiece = (EventKind, u64, Vec<String>);

#[derive(Clone, Default)]
struct StoryModel {
    leases: BTreeMap<u64, StoryLease>,
    news: Vec<NewsPiece>,
    ended: [u64; 4],
}

impl StoryModel {
    fn follow(&mut self, fact: &Fact<'_>) {
        match fact {
            Fact::Granted(r) => {
                let names: Vec<String> = r.wants.iter().map(|want| want.name.to_owned()).collect();
                self.news.push((EventKind::Granted, r.token.get(), names.clone()));
                self.ended[0] += 1;
                self.leases.insert(
                    r.token.get(),
                    StoryLease {
                        names,
                        value: r.value.map(Into::into),
                        principal: r.principal.into(),
                        expires_at: r.expires_at,
                        closing: false,
                        secret: r.secret,
                        holder: r.holder.to_string(),
                    },
                );
            }
            Fact::Renewed { token, expires_at, .. } => {
                self.leases.get_mut(&token.get()).expect("renewed while it lives").expires_at = *expires_at;
            }
            Fact::Relabelled { token, holder } => {
                let lease = self.leases.get_mut(&token.get()).expect("relabelled while it lives");
                lease.holder = (*holder).to_owned();
                self.news.push((EventKind::Relabelled, token.get(), lease.names.clone()));
            }
            Fact::Ended { token, how, at, closed_until, .. } => {
                let lease = self.leases.get_mut(&token.get()).expect("ends once");
                self.news.push(((*how).into(), token.get(), lease.names.clone()));
                self.ended[match how {
                    End::Released => 1,
                    End::Lapsed => 2,
                    End::Revoked => 3,
                }] += 1;
                if closed_until > at {
                    (lease.closing, lease.expires_at) = (true, *closed_until);
                } else {
                    self.leases.remove(&token.get());
                }
            }
            Fact::Freed { token, name } => {
                let lease = self.leases.get_mut(&token.get()).expect("frees while it lives");
                lease.names.retain(|held| held != name);
                assert!(!lease.names.is_empty(), "a lease keeps something");
                self.news.push((EventKind::Released, token.get(), vec![(*name).to_owned()]));
            }
            Fact::Reopened { token } => drop(self.leases.remove(&token.get())),
            Fact::Resumed { .. } => {}
        }
    }

    fn live_on(&self, name: &str, now: Time) -> Option<(u64, &StoryLease)> {
        let here =
            |lease: &&StoryLease| !lease.closing && lease.expires_at > now && lease.names.iter().any(|n| n == name);
        self.leases.iter().find(|(_, lease)| here(lease)).map(|(token, lease)| (*token, lease))
    }

    fn owned(&self, name: &str, value: Option<&[u8]>, now: Time) -> Option<&StoryLease> {
        let (_, lease) = self.live_on(name, now)?;
        let shown = lease.value.as_deref()?;
        value.is_none_or(|value| value == shown).then_some(lease)
    }

    fn of(&self, principal: &str) -> usize {
        self.leases.values().filter(|lease| lease.principal == principal).count()
    }
}

struct Story {
    book: Book,
    model: StoryModel,
    now: Time,
    waiter_ids: u64,
    waiting: BTreeMap<u64, String>,
}

fn limits() -> Limits {
    Limits {
        leases_per_principal: LEASES_PER_PRINCIPAL,
        waiters_per_principal: WAITERS_PER_PRINCIPAL,
        ..Limits::default()
    }
}

fn open() -> Book {
    let mut book = Book::new(limits(), 7);
    book.set_ceiling(u64::MAX);
    book.keep_news();
    book
}

fn picked(names: u8) -> Vec<&'static str> {
    NAMES.iter().enumerate().filter(|(at, _)| names & (1 << at) != 0).map(|(_, name)| *name).collect()
}

impl Story {
    fn new() -> Self {
        Self {
            book: open(),
            model: StoryModel::default(),
            now: Time::from_millis(10),
            waiter_ids: 0,
            waiting: BTreeMap::new(),
        }
    }

    fn apply(&mut self, command: Command<'_>) -> Reply {
        let outcome = self.book.apply(command, self.now);
        for effect in &outcome.effects {
            assert!(self.waiting.remove(&effect.waiter_id.0).is_some(), "an answer comes once, to who waits");
        }
        let tape = self.book.take_tape(Vec::new());
        let mut reader = WireReader::new(&tape);
        while reader.left() > 0 {
            self.model.follow(&Fact::decode(&mut reader).expect("the tape parses"));
            // At every moment, not only at the end of the command.
            for principal in PRINCIPALS {
                assert!(self.model.of(principal) <= LEASES_PER_PRINCIPAL, "{principal:?} has more than its share");
            }
        }
        self.look(&outcome.reply);
        outcome.reply
    }

    /// What must be so after every command.
    fn look(&mut self, reply: &Reply) {
        for name in NAMES {
            let seen = self
                .book
                .key(name, self.now)
                .map(|key| (key.token.get(), key.value.map(<[u8]>::to_vec), self.now.plus(key.remaining)));
            let held = self.model.live_on(name, self.now);
            // Shared holders and permits: the first of several is shown, whichever it is.
            match (&seen, held) {
                (Some((token, value, end)), Some(_)) => {
                    let lease = &self.model.leases[token];
                    assert_eq!((&lease.value, lease.expires_at), (value, *end), "{name} after {reply:?}");
                    assert!(lease.names.iter().any(|held| held == name));
                }
                (None, None) => {}
                other => panic!("{name} shows {other:?} after {reply:?}"),
            }
        }
        for holding in NAMES.iter().filter_map(|name| self.book.inspect(name, self.now)).flat_map(|view| view.holders) {
            assert_eq!(holding.holder, self.model.leases[&holding.token.get()].holder, "after {reply:?}");
        }
        let (bytes, count) = self.book.take_news();
        let mut reader = WireReader::new(&bytes);
        let mut told = Vec::new();
        while reader.left() > 0 {
            let news = News::decode(&mut reader).expect("news parse");
            told.push((news.kind, news.token.get(), news.names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()));
        }
        assert_eq!(told, std::mem::take(&mut self.model.news), "each grant and each end is told once, with its names");
        assert_eq!(told.len() as u64, count);
    }

    fn acquire(&mut self, wants: &[Want<'_>], act: &Do) {
        let Do::Acquire { wait, ttl, delay, principal, value, .. } = act else { unreachable!() };
        self.waiter_ids += 1;
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.waiter_ids.to_le_bytes());
        let claim = Acquire {
            waiter_id: WaiterId(self.waiter_ids),
            wants,
            ttl_ms: *ttl,
            wait_ms: if *wait && value.is_none() { 300 } else { 0 },
            max_hold_ms: None,
            delay_ms: *delay,
            holder: "somebody",
            request: None,
            secret: Secret::new(secret),
            principal: PRINCIPALS[*principal],
            value: value.map(|at| VALUES[at]),
        };
        let reply = self.apply(Command::Acquire(claim));
        if reply == Reply::Waiting {
            self.waiting.insert(self.waiter_ids, PRINCIPALS[*principal].into());
        }
        if let Reply::Refused(Refusal::Quota(_)) = reply {
            let line = self.waiting.values().filter(|who| *who == PRINCIPALS[*principal]).count();
            let full = self.model.of(PRINCIPALS[*principal]) == LEASES_PER_PRINCIPAL || line == WAITERS_PER_PRINCIPAL;
            assert!(full, "refused for want of room below the share");
        }
    }

    /// The owner of what is on this name gives it another label; or somebody shows another secret.
    fn relabel(&mut self, name: &str, stale: bool) {
        let Some((token, lease)) = self.model.live_on(name, self.now) else { return };
        let (before, end) = (lease.holder.clone(), lease.expires_at);
        let mut bits = *lease.secret.expose();
        bits[15] ^= u8::from(stale);
        let lease = LeaseKey { token: Token::new(token).expect("a token"), secret: Secret::new(bits) };
        let label = format!("{token} at {}", self.now.as_nanos());
        let reply = self.apply(Command::Relabel { lease, holder: &label });
        let expected = if stale { Reply::Refused(Refusal::NotHeld) } else { Reply::Relabelled };
        assert_eq!(reply, expected, "relabel {name}");
        let now = &self.model.leases[&token];
        assert_eq!((&now.holder, now.expires_at), (if stale { &before } else { &label }, end));
        let too_long = "l".repeat(257);
        assert!(matches!(self.apply(Command::Relabel { lease, holder: &too_long }), Reply::Invalid(_)));
    }

    fn free(&mut self, names: &[&str], value: Option<&[u8]>) {
        let plain = |name: &&&str| self.model.live_on(name, self.now).is_some_and(|(_, lease)| lease.value.is_none());
        let invalid = value.is_none() && names.iter().any(|name| plain(&name));
        let count = names.iter().filter(|name| self.model.owned(name, value, self.now).is_some()).count();
        let reply = self.apply(Command::Free(Keys { names, value }));
        match reply {
            Reply::Invalid(_) => assert!(invalid, "free {names:?} was called invalid"),
            Reply::Freed(freed) => assert_eq!((freed, false), (count, invalid), "free {names:?} {value:?}"),
            other => panic!("free was answered with {other:?}"),
        }
    }

    fn extend(&mut self, names: &[&str], value: Option<&[u8]>, push: Push) {
        let now = self.now;
        let ends: Vec<Option<(Time, bool)>> = names
            .iter()
            .map(|name| {
                let lease = self.model.owned(name, value, now)?;
                Some((lease.expires_at, lease.names.iter().all(|held| names.contains(&held.as_str()))))
            })
            .collect();
        let before = self.model.leases.clone();
        match self.apply(Command::Extend { keys: Keys { names, value }, push }) {
            Reply::Extended(0) => assert!(ends.iter().any(Option::is_none), "nothing is pushed, and all are owned"),
            Reply::Extended(count) => {
                assert_eq!(count, names.len());
                for (name, end) in names.iter().zip(&ends) {
                    let (end, whole) = end.expect("what is pushed is owned");
                    let (_, lease) = self.model.live_on(name, now).expect("what is pushed lives");
                    let expected = match push {
                        Push::Set(ms) => now.plus_millis(ms),
                        Push::Add(ms) => end.plus_millis(ms),
                    };
                    assert_eq!(lease.expires_at, expected, "{name} by {push:?}");
                    assert!(whole || lease.expires_at >= end, "{name} was shortened for others that were not named");
                    assert!(whole || value.is_some(), "{name} was pushed with others, by who named and proved neither");
                }
            }
            Reply::Invalid(_) => {
                for (token, lease) in &self.model.leases {
                    assert_eq!(lease.expires_at, before[token].expires_at, "an invalid push changes nothing");
                }
            }
            other => panic!("extend was answered with {other:?}"),
        }
    }

    /// A snapshot put back, and each principal's count found out by filling it up to its share.
    fn reopen(&mut self) {
        let mut bytes = Vec::new();
        self.book.begin_snapshot();
        while !self.book.step_snapshot(2, &mut bytes) {}
        let restore = || {
            let mut again = open();
            again.restore(&bytes).expect("a snapshot is whole");
            again
        };
        let again = restore();
        assert_eq!(again.digest(), self.book.digest());
        for principal in PRINCIPALS {
            let mut full = restore();
            // What is over does not count: with nobody in line, this is what a tick leaves.
            let mut left = self.model.clone();
            while full.apply(Command::Tick { budget: 1_000 }, self.now).reply == Reply::Ticked(true) {}
            let tape = full.take_tape(Vec::new());
            let mut reader = WireReader::new(&tape);
            while reader.left() > 0 {
                left.follow(&Fact::decode(&mut reader).expect("the tape parses"));
            }
            let mut full = restore();
            let mut room = 0;
            loop {
                let name = format!("unused {room}");
                let wants = [Want::exclusive(&name)];
                let claim =
                    Acquire { principal, ..Acquire::new(WaiterId(1_000_000), &wants, 1_000, "", Secret::new([9; 16])) };
                match full.apply(Command::Acquire(claim), self.now).reply {
                    Reply::Granted(_) => room += 1,
                    Reply::Refused(Refusal::Quota(_)) => break,
                    other => panic!("an unused name was answered with {other:?}"),
                }
            }
            assert_eq!(room, LEASES_PER_PRINCIPAL - left.of(principal), "room of {principal:?} after a restart");
        }
        // The line is volatile, and the sums begin anew.
        self.book = again;
        self.waiting.clear();
        self.model.ended = [0; 4];
    }

    fn step(&mut self, act: &Do) {
        match act {
            Do::Acquire { names, mode, value, .. } => {
                let mode = match mode {
                    _ if value.is_some() => Mode::Exclusive,
                    0 | 1 => Mode::Exclusive,
                    2 => Mode::Shared,
                    _ => Mode::Permits { count: 1, capacity: 2 },
                };
                let wants: Vec<Want<'_>> = picked(*names).into_iter().map(|name| Want { name, mode }).collect();
                self.acquire(&wants, act);
            }
            Do::Free { names, value } => self.free(&picked(*names), value.map(|at| VALUES[at])),
            Do::Extend { names, value, set, ms } => {
                let push = if *set { Push::Set(*ms) } else { Push::Add(*ms) };
                self.extend(&picked(*names), value.map(|at| VALUES[at]), push);
            }
            Do::Relabel { at, stale } => self.relabel(NAMES[*at], *stale),
            Do::Revoke(at) => drop(self.apply(Command::Revoke { name: NAMES[*at], reason: "drill" })),
            Do::Cancel(waiter_id) => {
                self.waiting.remove(waiter_id);
                self.apply(Command::Cancel { waiter_id: WaiterId(*waiter_id) });
            }
            Do::Pass(ms) => self.now = self.now.plus_millis(*ms),
            Do::Tick(budget) => drop(self.apply(Command::Tick { budget: *budget })),
            Do::Reopen => self.reopen(),
        }
        for principal in PRINCIPALS {
            let line = self.waiting.values().filter(|who| *who == principal).count();
            assert!(line <= WAITERS_PER_PRINCIPAL, "{principal:?} has {line} places in line");
        }
        let counters = self.book.counters();
        assert_eq!([counters.granted, counters.released, counters.lapsed, counters.revoked], self.model.ended);
        assert_eq!(counters.held.count(), self.model.ended[1..].iter().sum::<u64>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Goal: whatever is asked, the answers, keys, counts, news and sums are those that the facts add up to.
    #[test]
    fn any_story_is_what_its_facts_say(acts in prop::collection::vec(any_do(), 1..120)) {
        let mut story = Story::new();
        for act in &acts {
            story.step(act);
        }
        story.reopen();
    }

    /// Goal: bytes that are no news are refused, and never a panic or a huge allocation.
    #[test]
    fn arbitrary_bytes_are_no_news(bytes: Vec<u8>) {
        let mut reader = WireReader::new(&bytes);
        while News::decode(&mut reader).is_ok() {}
    }
}

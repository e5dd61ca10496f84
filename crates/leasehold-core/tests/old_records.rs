//! Records as the first version wrote them are still read: bytes made by hand.

use leasehold_core::wire::WireReader;
use leasehold_core::{Book, Fact, Limits, Mode, Time};

/// A grant of the first version: where the flags are now stood a 0 or a 1, which said whether a request follows.
fn grant(token: u8, request: bool, name: &str) -> Vec<u8> {
    let mut bytes = vec![1, token];
    bytes.extend([token; 16]);
    bytes.extend([5, 200, 1, 0, 10, 0]); // granted at 5, ends at 200, no cap, ttl 10 ms, no delay
    bytes.extend([3, b'a', b'd', b'a', u8::from(request)]);
    if request {
        bytes.extend([1, b's', 2, b'q', b'1', 42]); // scope, id, fingerprint
    }
    bytes.extend([1, 0, name.len() as u8]); // one resource, exclusive
    bytes.extend(name.as_bytes());
    bytes
}

/// Goal: an old journal is read as it was meant. Method: both forms of the old record, every field looked at.
#[test]
fn a_record_of_the_first_version_is_read() {
    for request in [false, true] {
        let bytes = grant(7, request, "seat");
        let mut reader = WireReader::new(&bytes);
        let Ok(Fact::Granted(record)) = Fact::decode(&mut reader) else { panic!("it does not parse") };
        assert_eq!(reader.left(), 0);
        assert_eq!((record.token.get(), record.secret.expose()), (7, &[7; 16]));
        assert_eq!((record.granted_at, record.expires_at), (Time::from_nanos(5), Time::from_nanos(200)));
        assert_eq!((record.cap_at, record.ttl_ms, record.delay_ms), (Time::NEVER, 10, 0));
        assert_eq!((record.holder.as_ref(), record.principal, record.value), ("ada", "", None));
        assert_eq!(
            record.request.map(|mark| (mark.scope, mark.id, mark.fingerprint)),
            request.then_some(("s", "q1", 42))
        );
        assert_eq!((record.wants.len(), record.wants[0].name, record.wants[0].mode), (1, "seat", Mode::Exclusive));
        // What has neither principal nor value is written as it always was.
        let mut again = Vec::new();
        Fact::Granted(record).encode(&mut again);
        assert_eq!(again, bytes);
    }
}

/// Goal: a whole old tape is replayed; flags that nobody defined are not guessed at.
#[test]
fn an_old_tape_is_replayed_and_unknown_flags_are_refused() {
    let mut tape = grant(1, true, "a");
    tape.extend(grant(2, false, "b"));
    tape.extend([2, 1, 250, 1, 20]); // lease 1 renewed: ends at 250, ttl 20
    tape.extend([3, 2, 1, 100, 0, 0]); // lease 2 released at 100
    let mut book = Book::new(Limits::default(), 1);
    book.replay(&tape, |_| {}).expect("an old tape is whole");
    assert_eq!((book.counts().leases, book.counts().endings), (1, 1));
    let key = book.key("a", Time::from_nanos(100)).expect("it is held");
    assert_eq!((key.value, key.token.get(), key.remaining.as_nanos()), (None, 1, 150));
    for flags in [8, 16, 128, 255] {
        let mut bytes = grant(1, false, "a");
        let at = bytes.len() - 5;
        assert_eq!(bytes[at - 1..=at], [b'a', 0], "the place of the flags has moved");
        bytes[at] = flags;
        assert!(Fact::decode(&mut WireReader::new(&bytes)).is_err(), "flags {flags}");
    }
}

/// Goal: the new parts of a record come back, and the journal's page is right about their order.
#[test]
fn principal_value_and_freed_are_written_as_documented() {
    let mut bytes = grant(3, false, "ab");
    let flags = bytes.len() - 6;
    bytes[flags] = 2 | 4;
    let tail = bytes.split_off(flags + 1);
    bytes.extend([3, b'b', b'o', b'b', 2, 0xff, 0]); // principal, value: any bytes
    bytes.extend(&tail);
    let Ok(Fact::Granted(record)) = Fact::decode(&mut WireReader::new(&bytes)) else { panic!("it does not parse") };
    assert_eq!((record.principal, record.value, record.request.is_none()), ("bob", Some(&[0xff, 0][..]), true));
    let mut again = Vec::new();
    Fact::Granted(record).encode(&mut again);
    assert_eq!(again, bytes);
    let freed = [6, 3, 2, b'a', b'b'];
    let Ok(Fact::Freed { token, name }) = Fact::decode(&mut WireReader::new(&freed)) else {
        panic!("it does not parse")
    };
    assert_eq!((token.get(), name), (3, "ab"));
    // A lease of one resource has none to give up.
    bytes.extend(freed);
    assert!(Book::new(Limits::default(), 1).replay(&bytes, |_| {}).is_err());
}

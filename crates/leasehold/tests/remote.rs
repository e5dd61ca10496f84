//! The remote engine before a server that is not one: what a real server cannot be made to say.

#![cfg(feature = "remote")]

use std::collections::VecDeque;
use std::error::Error as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::engine::remote::{Options, Remote};
use leasehold::engine::{Claim, Engine, LeaseId, Query, Want};
use leasehold::{Error, Leasehold, Refusal, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HELLO: &str = "%1\r\n+server\r\n+stub\r\n";
const PROMISES: &str = "%6\r\n+engine\r\n+stub\r\n+durable\r\n#t\r\n+fencing\r\n#t\r\n+fair\r\n#t\r\n+never_early\r\n#t\r\n+outlives_process\r\n#f\r\n";

/// A server that reads commands and says what it was told to, whatever they are.
struct Stub {
    at: String,
    script: Arc<Mutex<VecDeque<StubAction>>>,
    heard: Arc<Mutex<Vec<Vec<String>>>>,
}

/// What the stub does at a command that is neither HELLO nor PROMISES.
#[derive(Clone, Debug)]
enum StubAction {
    /// Says this.
    Say(String),
    /// Closes the connection.
    Hang,
}

fn say(text: &str) -> StubAction {
    StubAction::Say(text.into())
}

impl Stub {
    async fn new(script: impl IntoIterator<Item = StubAction>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("it is well");
        let at = listener.local_addr().expect("it is well").to_string();
        let script = Arc::new(Mutex::new(script.into_iter().collect()));
        let heard = Arc::default();
        let stub = Self { at, script, heard };
        let (script, heard) = (stub.script.clone(), stub.heard.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), heard.clone()));
            }
        });
        stub
    }

    async fn client(&self) -> Arc<Remote> {
        Remote::open(Options::from_url(&format!("leasehold://{}", self.at)).expect("it is well"))
            .await
            .expect("it is well")
    }

    /// What was heard besides HELLO and PROMISES.
    fn heard(&self) -> Vec<Vec<String>> {
        self.heard.lock().expect("nobody panicked").clone()
    }
}

async fn serve(mut stream: TcpStream, script: Arc<Mutex<VecDeque<StubAction>>>, heard: Arc<Mutex<Vec<Vec<String>>>>) {
    let mut bytes = Vec::new();
    loop {
        while let Some((words, used)) = command(&bytes) {
            bytes.drain(..used);
            let action = match (words[0].as_str(), words.get(1).map(String::as_str)) {
                ("HELLO", _) => say(HELLO),
                ("LEASE", Some("PROMISES")) => say(PROMISES),
                _ => {
                    heard.lock().expect("nobody panicked").push(words);
                    script.lock().expect("nobody panicked").pop_front().unwrap_or(StubAction::Hang)
                }
            };
            match action {
                StubAction::Say(text) => stream.write_all(text.as_bytes()).await.expect("it is well"),
                StubAction::Hang => return,
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// The first whole command, and how many bytes it is.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.split_inclusive("\r\n");
    let first = lines.next().filter(|line| line.ends_with("\r\n"))?;
    let count: usize = first.trim_end().strip_prefix('*')?.parse().ok()?;
    let mut used = first.len();
    let mut words = Vec::new();
    for _ in 0..count {
        used += lines.next()?.len();
        let word = lines.next().filter(|line| line.ends_with("\r\n"))?;
        used += word.len();
        words.push(word.trim_end().to_owned());
    }
    Some((words, used))
}

fn claim() -> Claim {
    Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), "ada")
}

const GRANT: &str = "*4\r\n+7-abc\r\n:7\r\n:1500\r\n:9000\r\n";

fn after<'a>(words: &'a [String], word: &str) -> &'a str {
    let at = words.iter().position(|have| have == word).expect("the word is there");
    &words[at + 1]
}

/// Goal: promises are the server's, under our name.
#[tokio::test]
async fn promises_are_the_servers() {
    let promises = Stub::new([]).await.client().await.promises();
    assert_eq!(promises.engine, "remote");
    assert!(promises.durable && promises.fencing && promises.fair && promises.never_early);
    assert!(!promises.outlives_process);
}

/// Goal: an answer that may have been lost is asked for again under the same id, and only then.
/// Method: the server does not know, then hangs up, then grants.
#[tokio::test]
async fn every_try_of_one_acquire_has_the_same_request_id() {
    let stub = Stub::new([say("-UNKNOWN the disk hangs\r\n"), StubAction::Hang, say(GRANT), say(GRANT)]).await;
    let client = stub.client().await;
    let grant = client.acquire(claim()).await.expect("it is well");
    assert_eq!((grant.lease_id.expose(), grant.token.expect("it is well").get()), ("7-abc", 7));
    assert_eq!((grant.remaining, grant.renewable), (Duration::from_millis(1500), Some(Duration::from_secs(9))));
    client.acquire(claim()).await.expect("it is well");
    let ids: Vec<String> = stub.heard().iter().map(|words| after(words, "REQUEST").to_owned()).collect();
    assert_eq!(ids.len(), 4);
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "{ids:?}");
    assert_ne!(ids[2], ids[3], "another acquire is another request");
    assert!(ids[0].len() >= 32, "128 random bits: {ids:?}");
}

/// Goal: after a try whose answer was lost, a no of the server's gate (key, rate, connections) is not taken for the
/// answer: the first try may have been granted. A no of the engine is, and so is the gate's to a first try.
#[tokio::test]
async fn a_no_at_the_gate_does_not_answer_an_earlier_try() {
    let lease = LeaseId::new("7-abc");
    for no in ["-QUOTA too many connections\r\n", "-NOAUTH a key is needed\r\n", "-FORBIDDEN outside\r\n"] {
        let client = Stub::new([StubAction::Hang, say(no), StubAction::Hang, say(no), say(no)]).await.client().await;
        let unsure = client.acquire(claim()).await;
        assert!(matches!(unsure, Err(Error::Indeterminate { .. })), "{no:?}: {unsure:?}");
        let unsure = client.release(&lease).await;
        assert!(matches!(unsure, Err(Error::Indeterminate { .. })), "{no:?}: {unsure:?}");
        let sure = client.acquire(claim()).await;
        assert!(matches!(sure, Err(Error::Invalid(_) | Error::Refused(_))), "{no:?}: {sure:?}");
    }
    let held = Stub::new([StubAction::Hang, say("-HELD queue=0 resource=\"a\"\r\n")]).await.client().await;
    assert!(matches!(held.acquire(claim()).await, Err(Error::Refused(_))), "the engine knows the request id");
}

/// Goal: a grant that comes after its caller went away is given back; with the caller's own id it is not.
/// Method: the stub keeps the answer back until something else is asked. Under an id of its own the claim has a connection
/// of its own, and hangs up.
#[tokio::test]
async fn a_grant_nobody_waits_for_is_given_back() {
    for (request, given_back) in [(None, true), (Some("mine".to_owned()), false)] {
        let next = if given_back { format!("{GRANT}:0\r\n") } else { ":0\r\n".to_owned() };
        let stub = Stub::new([say(""), say(&next), say(":1\r\n")]).await;
        let client = stub.client().await;
        let acquire = client.acquire(Claim { request, ..claim() });
        let acquire = tokio::time::timeout(Duration::from_millis(300), acquire).await;
        assert!(acquire.is_err(), "nobody has answered yet");
        assert!(!client.release(&LeaseId::new("other")).await.expect("it is well"));
        client.close().await.expect("it is well");
        let heard = stub.heard();
        let released = heard.iter().any(|words| words[1..] == ["RELEASE", "7-abc"]);
        assert_eq!(released, given_back, "{heard:?}");
    }
}

/// Goal: a revoke whose answer is lost is not sent twice: a successor could be hit.
#[tokio::test]
async fn a_revoke_is_sent_once() {
    let stub = Stub::new([StubAction::Hang, say(":1\r\n")]).await;
    let client = stub.client().await;
    let answer = client.revoke("seat", "a burst pipe").await;
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    assert_eq!(stub.heard().len(), 1);
}

/// Goal: what is said in other words than ours is an error of the right class, and never a panic.
#[tokio::test]
async fn odd_answers_are_errors() {
    for odd in ["+OK\r\n", "*0\r\n", "*3\r\n+\r\n:1\r\n:1\r\n", ":5\r\n", "_\r\n", "%0\r\n", "*3\r\n:1\r\n_\r\n:-5\r\n"]
    {
        let client = Stub::new([say(odd)]).await.client().await;
        let answer = client.acquire(claim()).await;
        assert!(matches!(answer, Err(Error::Indeterminate { .. })), "acquire {odd:?}: {answer:?}");
    }
    for odd in ["+OK\r\n", "*0\r\n", ":5\r\n", "%0\r\n", "%1\r\n+mode\r\n+exclusive\r\n"] {
        let client = Stub::new([say(odd)]).await.client().await;
        let answer = client.inspect("seat").await;
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "inspect {odd:?}: {answer:?}");
    }
    let client = Stub::new([say("*1\r\n:3\r\n")]).await.client().await;
    let all = Query { prefix: String::new(), after: None, limit: 10 };
    assert!(matches!(client.list(all).await, Err(Error::Unavailable { .. })));
    // Not RESP at all: the connection is given up, and asked again elsewhere.
    let client = Stub::new([say("HTTP/1.1 400 Bad Request\r\n\r\n"), say(GRANT)]).await.client().await;
    assert!(client.acquire(claim()).await.is_ok());
}

/// Goal: a server that is stopping is Unavailable at once; with patience left it is asked again.
#[tokio::test]
async fn a_stopping_server_is_unavailable_unless_there_is_patience() {
    let stopping = "-UNAVAILABLE the server is shutting down\r\n";
    let client = Stub::new([say(stopping), say(GRANT)]).await.client().await;
    let answer = client.acquire(claim()).await;
    assert!(matches!(&answer, Err(Error::Unavailable { source, .. }) if source.to_string().contains("shutting down")));
    let client = Stub::new([say(stopping), say(GRANT)]).await.client().await;
    assert!(client.acquire(Claim { wait: Duration::from_secs(60), ..claim() }).await.is_ok());
    let client = Stub::new([say(stopping)]).await.client().await;
    assert!(matches!(client.renew(&LeaseId::new("x"), None).await, Err(Error::Unavailable { .. })));
    let client = Stub::new([say("-HELD resource=\"seat\" queue=3\r\n")]).await.client().await;
    let held = client.acquire(claim()).await;
    assert!(matches!(held, Err(Error::Refused(Refusal::Held { queue_len: 3, holder: None, .. }))), "{held:?}");
}

/// Goal: a key that is refused is Invalid, and no error shows it.
#[tokio::test]
async fn a_key_is_in_no_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it is well");
    let at = listener.local_addr().expect("it is well");
    let refusing = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("it is well");
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"hunter2\r\n") {
            assert_ne!(stream.read_buf(&mut bytes).await.expect("it is well"), 0);
        }
        assert!(bytes.starts_with(b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n"));
        stream.write_all(b"-WRONGPASS invalid API key, or it was revoked\r\n").await.expect("it is well");
    });
    let refused = Leasehold::open(&format!("leasehold://:hunter2@{at}")).await.expect_err("the key is wrong");
    refusing.await.expect("it is well");
    assert!(matches!(&refused, Error::Invalid(sentence) if sentence.contains("invalid API key")), "{refused:?}");
    // And now nobody listens there.
    let away = Leasehold::open(&format!("leasehold://:hunter2@{at}")).await.expect_err("nobody is there");
    assert!(matches!(away, Error::Unavailable { .. }), "{away:?}");
    let cause = away.source().expect("it has a cause").to_string();
    assert_eq!(cause, format!("no server answers at {at}"));
    for error in [refused, away] {
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
    }
}

/// Goal: a server that asks for the impossible costs no memory: sizes are looked at before anything is allocated.
#[tokio::test]
async fn sizes_are_not_believed() {
    for lie in [
        "$9999999999\r\n",
        "*1048577\r\n",
        "%1048577\r\n",
        "*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n*9\r\n",
    ] {
        let client = Stub::new([say(lie), say(lie), say("_\r\n")]).await.client().await;
        assert_eq!(client.inspect("seat").await.expect("it is well"), None, "{lie:?}");
    }
}

/// Goal: a server of an earlier version, which does not know a command, is told from one that refuses it.
/// Method: the words with which a server answers to a LEASE command that it does not know.
#[tokio::test]
async fn a_server_that_is_too_old_is_said_to_be() {
    let unknown = |verb: &str| say(&format!("-INVALID LEASE {verb} is not known: ACQUIRE, RENEW, RELEASE\r\n"));
    let stub = Stub::new([unknown("FLOOR"), unknown("FLOOR"), unknown("ENGINE")]).await;
    let client = stub.client().await;
    for answer in [client.raise_floor(None).await, client.raise_floor(Token::new(7)).await] {
        assert!(matches!(&answer, Err(Error::Invalid(sentence)) if sentence.contains("too old")), "{answer:?}");
    }
    let answer = client.identity().await;
    assert!(matches!(&answer, Err(Error::Invalid(sentence)) if sentence.contains("too old")), "{answer:?}");
    let said: Vec<String> = stub.heard().iter().map(|words| words.join(" ")).collect();
    assert_eq!(said, ["LEASE FLOOR", "LEASE FLOOR 7", "LEASE ENGINE"]);
}

/// Goal: what is no floor and no identity is an error and no panic; a raise is asked again when its answer is lost.
#[tokio::test]
async fn odd_floors_and_identities_are_errors() {
    let script = [
        say(":0\r\n"),
        say("+x\r\n"),
        say("%0\r\n"),
        say("%1\r\n+identity\r\n*0\r\n"),
        StubAction::Hang,
        say(":9\r\n"),
    ];
    let client = Stub::new(script).await.client().await;
    let answer = client.raise_floor(None).await;
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    let answer = client.raise_floor(Token::new(7)).await;
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    for _ in 0..2 {
        let answer = client.identity().await;
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    }
    assert_eq!(client.raise_floor(Token::new(8)).await.expect("it is asked again"), Token::new(9).expect("a token"));
}

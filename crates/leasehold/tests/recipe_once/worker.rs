//! A process that asks under keys, until it is killed: started by the tests of `crash.rs`, and by nobody else.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::recipe::Store;
use leasehold::recipe::once::{self, Begun, First, OnceEnd, OnceRequest, sqlite};
use leasehold_harness::{Signal, end_with_parent, send_signal};

use crate::audit::answer_text;
use crate::{Dice, millis};

/// The worker below, as the test binary knows it.
const WORKER: &str = "worker::a_process_that_asks";
const ORDER: &str = "LEASEHOLD_ONCE_WORKER";
const TTL: Duration = Duration::from_millis(150);

/// What a worker is to do.
#[derive(Clone, Debug)]
pub(crate) struct WorkerOrder {
    pub(crate) url: String,
    /// Where it writes what it was told.
    pub(crate) notes: PathBuf,
    pub(crate) seed: u64,
    /// `two phases`, `transaction`, or `both`.
    pub(crate) form: String,
    /// Keys to choose from.
    pub(crate) keys: u64,
    /// How many keys to ask for.
    pub(crate) requests: u64,
    /// It kills itself before this step; 0: it does not.
    pub(crate) cut: u64,
    /// The bug: an answer is stored without the token.
    pub(crate) planted: bool,
}

impl WorkerOrder {
    fn to_text(&self) -> String {
        let Self { url, notes, seed, form, keys, requests, cut, planted } = self;
        format!("{url}|{}|{seed}|{form}|{keys}|{requests}|{cut}|{planted}", notes.display())
    }

    fn from_text(text: &str) -> Self {
        let words: Vec<&str> = text.split('|').collect();
        let number = |at: usize| words[at].parse().unwrap();
        Self {
            url: words[0].into(),
            notes: words[1].into(),
            seed: number(2),
            form: words[3].into(),
            keys: number(4),
            requests: number(5),
            cut: number(6),
            planted: words[7] == "true",
        }
    }

    pub(crate) fn start(&self) -> WorkerProcess {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([WORKER, "--exact", "--ignored", "--nocapture"])
            .env(ORDER, self.to_text())
            .stdout(Stdio::null())
            .stderr(fs::OpenOptions::new().append(true).create(true).open(self.notes.with_extension("log")).unwrap())
            .spawn();
        WorkerProcess(child.unwrap())
    }
}

/// A worker. Dropped, it is killed.
pub(crate) struct WorkerProcess(pub(crate) Child);

impl WorkerProcess {
    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(self.0.id(), signal);
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // SIGKILL: no handler runs, and no transaction is rolled back by its process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What workers were told: lines of `told KEY ANSWER` and `stale KEY`. A cut last line is no line.
pub(crate) fn read_notes(notes: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(notes).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

/// A connection of the worker's own, for the form in a transaction.
enum OwnConnection {
    Postgres(tokio_postgres::Client),
    Sqlite(rusqlite::Connection),
}

struct Asking {
    order: WorkerOrder,
    store: Store,
    own: OwnConnection,
    dice: Dice,
    steps: Cell<u64>,
}

#[test]
#[ignore = "started by the tests of crash.rs"]
fn a_process_that_asks() {
    let Ok(order) = std::env::var(ORDER) else { return };
    end_with_parent().unwrap();
    let order = WorkerOrder::from_text(&order);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&order.url).await.unwrap();
        let own = match order.url.strip_prefix("sqlite:") {
            Some(file) => {
                let db = rusqlite::Connection::open(file).unwrap();
                db.busy_timeout(Duration::from_secs(20)).unwrap();
                OwnConnection::Sqlite(db)
            }
            None => {
                let (client, connection) = tokio_postgres::connect(&order.url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(async move { drop(connection.await) });
                OwnConnection::Postgres(client)
            }
        };
        let dice = Dice(order.seed);
        let mut asking = Asking { order, store, own, dice, steps: Cell::new(0) };
        for _ in 0..asking.order.requests {
            asking.ask().await;
        }
    });
}

impl Asking {
    /// Between any two statements: this process may end here.
    fn step(&self) {
        step(&self.steps, &self.order);
    }

    fn note(&self, words: &[&str]) {
        let list = fs::OpenOptions::new().append(true).create(true).open(&self.order.notes);
        list.and_then(|mut list| list.write_all(format!("{}\n", words.join("|")).as_bytes())).unwrap();
    }

    /// Work that mostly takes longer than the ttl: others take over meanwhile.
    async fn work(&mut self) {
        let pause = [5, 200, 400, 600][self.dice.below(4) as usize];
        if self.order.cut == 0 {
            tokio::time::sleep(millis(pause)).await;
        }
    }

    async fn ask(&mut self) {
        let key = format!("k{}", self.dice.below(self.order.keys));
        let in_transaction = match self.order.form.as_str() {
            "two phases" => false,
            "transaction" => true,
            _ => self.dice.below(4) == 0,
        };
        let request = OnceRequest::new("s", &key, "b").ttl(TTL);
        if in_transaction {
            self.ask_in_transaction(&key, &request).await;
        } else {
            self.ask_in_two_phases(&key, &request).await;
        }
    }

    async fn ask_in_two_phases(&mut self, key: &str, request: &OnceRequest) {
        self.step();
        let Ok(begun) = self.store.once_begin(request).await else { return };
        self.step();
        let first = match begun {
            Begun::First(first) => first,
            Begun::Replay(answer) => return self.note(&["told", key, &String::from_utf8(answer.body).unwrap()]),
            Begun::InFlight { remaining } => return tokio::time::sleep(remaining.min(millis(20))).await,
            Begun::Mismatch => panic!("there is one body"),
        };
        self.work().await;
        let text = answer_text("phases", first.token());
        let stored = if self.order.planted {
            self.finish_without_token(key, &text).await
        } else {
            self.store.once_end(&first, OnceEnd::Finish { status: 0, body: text.as_bytes() }).await
        };
        self.step();
        match stored {
            Ok(true) => self.note(&["told", key, &text]),
            Ok(false) => self.note(&["stale", key]),
            Err(_) => {}
        }
    }

    /// The bug that the judge must find.
    async fn finish_without_token(&mut self, key: &str, text: &str) -> Result<bool, leasehold::recipe::RecipeError> {
        Ok(match &self.own {
            OwnConnection::Postgres(client) => {
                let sql = "UPDATE leasehold.once SET status = 0, answer = $2 WHERE key = $1 AND status IS NULL";
                client.execute(sql, &[&key, &text.as_bytes()]).await.unwrap() == 1
            }
            OwnConnection::Sqlite(db) => {
                let sql = "UPDATE leasehold_once SET status = 0, answer = ?2 WHERE key = ?1 AND status IS NULL";
                db.execute(sql, (key, text.as_bytes())).unwrap() == 1
            }
        })
    }

    async fn ask_in_transaction(&mut self, key: &str, request: &OnceRequest) {
        self.step();
        let pause = [0, 0, 0, 5, 40][self.dice.below(5) as usize];
        let told = match &mut self.own {
            OwnConnection::Postgres(client) => {
                let tx = client.transaction().await.unwrap();
                step(&self.steps, &self.order);
                let Ok(begun) = once::begin_request(&tx, request).await else { return };
                step(&self.steps, &self.order);
                match begun {
                    Begun::First(first) => {
                        let text = answer_text("transaction", first.token());
                        tx.execute("INSERT INTO effects VALUES ($1, $2)", &[&key, &first.token()]).await.unwrap();
                        step(&self.steps, &self.order);
                        tokio::time::sleep(millis(pause)).await;
                        first.finish(&tx, 0, text.as_bytes()).await.unwrap();
                        step(&self.steps, &self.order);
                        tx.commit().await.is_ok().then_some(text)
                    }
                    other => replayed(other),
                }
            }
            OwnConnection::Sqlite(db) => {
                let tx = db.transaction().unwrap();
                step(&self.steps, &self.order);
                let Ok(begun) = sqlite::begin_request(&tx, request) else { return };
                step(&self.steps, &self.order);
                match begun {
                    Begun::First(first) => sell_in_file(tx, key, first, pause, || step(&self.steps, &self.order)),
                    other => replayed(other),
                }
            }
        };
        self.step();
        if let Some(text) = told {
            self.note(&["told", key, &text]);
        }
    }
}

/// Counts a step. The order may be to end here.
fn step(steps: &Cell<u64>, order: &WorkerOrder) {
    steps.set(steps.get() + 1);
    if steps.get() == order.cut {
        send_signal(std::process::id(), Signal::KILL);
    }
}

fn replayed(begun: Begun) -> Option<String> {
    match begun {
        Begun::Replay(answer) => Some(String::from_utf8(answer.body).unwrap()),
        _ => None,
    }
}

fn sell_in_file(tx: rusqlite::Transaction<'_>, key: &str, first: First, pause: u64, step: impl Fn()) -> Option<String> {
    let text = answer_text("transaction", first.token());
    tx.execute("INSERT INTO effects VALUES (?1, ?2)", (key, first.token())).unwrap();
    step();
    std::thread::sleep(millis(pause));
    sqlite::finish(&tx, first, 0, text.as_bytes()).unwrap();
    step();
    tx.commit().is_ok().then_some(text)
}

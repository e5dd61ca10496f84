//! An office over a real embedded engine and a real SQLite file, under a clock set by hand.

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::embedded::{self, Embedded};
use leasehold::testkit::ManualClock;

use super::*;
use crate::layout::{Area, Layout, Seat};
use crate::ledger::Sqlite;
use crate::model::check::InvariantCheck;

mod crash;
mod flow;
mod late_money;
mod several;
mod staff;

/// Two rows of ten seats at 45.00 and 30.00, and a floor for five.
pub(super) fn hall() -> Layout {
    let row = |row: &'static str, price| {
        (1..=10).map(move |number| Seat {
            id: format!("{row}-{number}"),
            section: "stalls".into(),
            row: row.into(),
            number,
            price,
        })
    };
    let seats = row("A", 4500).chain(row("B", 3000)).collect();
    Layout { seats, areas: vec![Area { id: "floor".into(), capacity: 5, price: 2000 }] }
}

/// A box office with an event on sale.
pub(super) struct TestOffice {
    pub(super) clock: ManualClock,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) office: Office,
    pub(super) event: EventId,
    /// The ledger as another server has it: where several processes can have one, opened by itself.
    other: Arc<dyn Ledger>,
    /// The database whose clock is set by hand too.
    #[cfg(feature = "postgres")]
    database: Option<(leasehold_harness::postgres::Cluster, String)>,
    _dir: tempfile::TempDir,
}

impl TestOffice {
    pub(super) async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    pub(super) async fn open_with(change: impl FnOnce(&mut EventSettings)) -> Self {
        let (clock, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
        clock.advance(Duration::from_secs(1000));
        let ledger: Arc<dyn Ledger> = Sqlite::open(dir.path().join("ledger.db"), clock.shared()).await.unwrap();
        Self::over(clock, dir, [ledger.clone(), ledger], change).await
    }

    /// Over a PostgreSQL of its own, which two servers have opened.
    #[cfg(feature = "postgres")]
    pub(super) async fn on_postgres(change: impl FnOnce(&mut EventSettings)) -> Self {
        use crate::ledger::postgres::tests::set_moment;
        use crate::ledger::postgres::{self, Postgres};
        use leasehold_harness::postgres::Cluster;
        let cluster = Cluster::start(&[]);
        let database = cluster.database().await;
        let open =
            async || Postgres::open(&cluster.url(&database), postgres::PostgresOptions::default()).await.unwrap();
        let ledgers: [Arc<dyn Ledger>; 2] = [open().await, open().await];
        set_moment(&cluster, &database, 1_000_000).await;
        let (clock, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
        clock.advance(Duration::from_secs(1000));
        let case = Self::over(clock, dir, ledgers, change).await;
        Self { database: Some((cluster, database)), ..case }
    }

    async fn over(
        clock: ManualClock,
        dir: tempfile::TempDir,
        [ledger, other]: [Arc<dyn Ledger>; 2],
        change: impl FnOnce(&mut EventSettings),
    ) -> Self {
        let options = embedded::Options { clock: clock.shared(), ..Default::default() };
        let engine: Arc<dyn Engine> = Embedded::open(dir.path().join("engine"), options).await.unwrap();
        let office = office(&engine, &ledger, &clock);
        let mut settings = EventSettings::named("Gala");
        change(&mut settings);
        let event = office.create_event(LedgerCall::by("staff"), settings, hall()).await.unwrap().event_id;
        Self {
            clock,
            engine,
            ledger,
            office,
            event,
            other,
            #[cfg(feature = "postgres")]
            database: None,
            _dir: dir,
        }
    }

    /// Another office over the same engine and ledger.
    pub(super) fn another(&self) -> Office {
        office(&self.engine, &self.other, &self.clock)
    }

    /// Lets time pass, for the engine and for the ledger.
    pub(super) async fn advance_time(&self, span: Duration) {
        self.clock.advance(span);
        #[cfg(feature = "postgres")]
        if let Some((cluster, database)) = &self.database {
            use crate::ledger::postgres::tests::set_moment;
            use leasehold::clock::Clock as _;
            set_moment(cluster, database, self.clock.now().as_nanos() / 1_000_000).await;
        }
    }

    pub(super) async fn hold(&self, buyer: &str, seats: &[&str]) -> Result<HoldView, Error> {
        let seats = seats.iter().map(|seat| (*seat).into()).collect();
        self.office
            .hold(LedgerCall::by(buyer), &self.event, buyer.into(), HoldRequest::These { seats, areas: vec![] })
            .await
    }

    pub(super) async fn check(&self) {
        self.office.sequence().await.unwrap();
        let broken: Vec<InvariantCheck> =
            self.office.invariants(&self.event).await.unwrap().into_iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }

    /// How many leases the engine has on the event's seats.
    pub(super) async fn leases(&self) -> usize {
        let query = leasehold::engine::Query { prefix: lease::LEASE_PREFIX.into(), after: None, limit: 1000 };
        self.engine.list(query).await.unwrap().len()
    }
}

fn office(engine: &Arc<dyn Engine>, ledger: &Arc<dyn Ledger>, clock: &ManualClock) -> Office {
    let options = OfficeOptions { clock: clock.shared(), ..OfficeOptions::default() };
    Office::new(engine.clone(), ledger.clone(), options).unwrap()
}

pub(super) fn key(view: &HoldView) -> Access {
    Access::key(view.key.as_ref().unwrap().expose())
}

/// The refusal; a panic for anything else.
pub(super) fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Seats lost and why.
pub(super) fn lost<T: std::fmt::Debug>(answer: Result<T, Error>) -> Vec<(String, Reason)> {
    let Refusal::Conflict { conflicts, .. } = refused(answer) else { panic!("not a conflict") };
    conflicts.into_iter().map(|lost| (lost.seat.or(lost.area).unwrap_or_default(), lost.reason)).collect()
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

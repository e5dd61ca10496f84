//! The box office of a server: an [`Office`] with tickets, webhooks, a payment provider, and a demo.
//!
//! ```text
//!   http ──▶ Service (access) ──▶ BoxOffice ──▶ Office ──▶ engine and ledger
//!                                       │
//!                                       ├─▶ sender: webhooks, signed and in order
//!                                       └─▶ settlement: captures, refunds and payments without a callback
//! ```
//!
//! # Laws
//!
//! 1. A [`BoxOffice`] is reachable only with a pass of the service.
//! 2. Nothing here decides a sale: the office does. Any number of servers over one ledger are one box office.
//! 3. Every outgoing request goes through [`outbound`], which checks each address before it connects.
//!
//! # Not here
//!
//! Routes (`http::boxoffice`), decisions (`leasehold_boxoffice`).

pub mod demo;
pub mod demo_provider;
pub mod feed;
pub mod open;
pub mod outbound;
pub mod payment;
pub mod provider;
pub mod sender;
pub mod settlement;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold::engine::Engine;
use leasehold_boxoffice::model::{EventId, EventRow};
use leasehold_boxoffice::provider::PaymentProvider;
use leasehold_boxoffice::sign::Secrets;
use leasehold_boxoffice::ticket::{Invalid, Ticket};
use leasehold_boxoffice::{Error, Office};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use feed::Feed;
use leasehold_support::duration::millis;
use leasehold_support::sync::lock;
use leasehold_support::time::wall_ms;
use outbound::Outbound;

/// Timeout for the figures of the ledger in `/metrics`.
const OFFICE_METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the clock of the ledger is read.
const LEDGER_CLOCK_EVERY: Duration = Duration::from_secs(10);

/// The office, and what the server keeps beside it.
pub struct BoxOffice {
    office: Office,
    clock: Arc<dyn Clock>,
    settings: BoxOfficeSettings,
    outbound: Arc<Outbound>,
    /// The last time of the ledger's clock, and when it was read by ours. Tickets expire by the ledger's clock, and
    /// every request checks one.
    seen: Mutex<(u64, Time)>,
    feeds: Mutex<HashMap<EventId, Arc<Feed>>>,
    /// The seat map of each event in its newest version: many clients ask for the same.
    seat_maps: Mutex<HashMap<EventId, Arc<CachedSeatMap>>>,
    /// Notified when an event was created on this server.
    made: Notify,
    /// Set by `serve --demo`.
    demo: OnceLock<demo::Demo>,
    /// Set when the first event exists.
    sender: OnceLock<Arc<sender::WebhookSender>>,
}

/// The settings of a box office.
pub struct BoxOfficeSettings {
    /// The secrets that sign tickets.
    pub tickets: Secrets,
    /// How long a ticket lives.
    pub ticket_ttl: Duration,
    /// The secrets that verify callbacks; none: there is no payment provider.
    pub provider_secrets: Option<Secrets>,
    /// The payment provider.
    pub provider: Option<Arc<dyn PaymentProvider>>,
    /// The event that the buyers' page shows first.
    pub default_event: Option<String>,
}

/// A rendered seat map.
pub struct CachedSeatMap {
    /// Identifies this version of the map, name and currency included.
    pub etag: String,
    /// The JSON body.
    pub map: axum::body::Bytes,
}

/// The metrics of a box office.
pub struct BoxOfficeMetrics {
    /// The counters of the office.
    pub office: leasehold_boxoffice::office::OfficeMetrics,
    /// Age of the oldest message that a webhook did not accept, as far as this server sends them.
    pub webhook_lag: Duration,
}

/// What a page may know without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicInfo {
    /// Whether this is a demo: anybody gets a ticket, and payments are simulated.
    pub demo: bool,
    /// The event that the buyers' page shows first.
    pub default_event: Option<String>,
}

impl fmt::Debug for BoxOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxOffice").field("demo", &self.demo.get().is_some()).finish_non_exhaustive()
    }
}

impl BoxOffice {
    /// A box office over an open office.
    ///
    /// # Errors
    ///
    /// The clock of the ledger cannot be read.
    pub async fn new(
        office: Office,
        clock: Arc<dyn Clock>,
        settings: BoxOfficeSettings,
        outbound: Arc<Outbound>,
    ) -> Result<Arc<Self>, Error> {
        let now = office.ledger_now().await?;
        let seen = Mutex::new((now.0, clock.now()));
        let feeds = Mutex::new(HashMap::new());
        let (seat_maps, made, demo, sender) = (Mutex::default(), Notify::new(), OnceLock::new(), OnceLock::new());
        Ok(Arc::new(Self { office, clock, settings, outbound, seen, feeds, seat_maps, made, demo, sender }))
    }

    /// The office.
    pub const fn office(&self) -> &Office {
        &self.office
    }

    /// The client for outgoing requests.
    pub const fn outbound(&self) -> &Arc<Outbound> {
        &self.outbound
    }

    /// The secrets that verify callbacks.
    pub fn provider_secrets(&self) -> Option<&Secrets> {
        self.demo.get().map(|demo| &demo.secrets).or(self.settings.provider_secrets.as_ref())
    }

    /// The payment provider.
    pub fn provider(&self) -> Option<Arc<dyn PaymentProvider>> {
        self.demo.get().map(|demo| demo.provider.clone()).or_else(|| self.settings.provider.clone())
    }

    /// The demo, if this is one.
    pub fn demo(&self) -> Option<&demo::Demo> {
        self.demo.get()
    }

    /// What a page may know without credentials.
    pub fn public_info(&self) -> PublicInfo {
        let of_demo = self.demo.get().map(|demo| demo.event.0.clone());
        PublicInfo {
            demo: self.demo.get().is_some(),
            default_event: of_demo.or_else(|| self.settings.default_event.clone()),
        }
    }

    /// Whether the ledger answers, and the office can take leases.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn ready(&self) -> Result<(), Error> {
        self.read_ledger_clock().await?;
        self.office.ready().await
    }

    async fn read_ledger_clock(&self) -> Result<(), Error> {
        // Through the ledger's writer, without writing: a ledger that cannot write is not ready.
        self.office.check_ledger_writer().await?;
        let now = self.office.ledger_now().await?;
        *lock(&self.seen) = (now.0, self.clock.now());
        Ok(())
    }

    /// The counters, and the current figures of the ledger.
    pub async fn metrics(&self) -> BoxOfficeMetrics {
        let webhook_lag = self.sender.get().map_or(0, |sender| sender.lag_ms(wall_ms()));
        // A ledger that does not answer must not hide the other metrics.
        let office = tokio::time::timeout(OFFICE_METRICS_TIMEOUT, self.office.metrics()).await;
        let office = office.unwrap_or_else(|_| self.office.counted());
        BoxOfficeMetrics { office, webhook_lag: Duration::from_millis(webhook_lag) }
    }

    /// The ledger's clock now, extrapolated from the last reading.
    fn ledger_now_estimate(&self) -> u64 {
        let (ledger, ours) = *lock(&self.seen);
        let since = millis(self.clock.now().since(ours));
        ledger.saturating_add(since)
    }

    /// Reads the ledger's clock now and then, until dropped.
    async fn keep_ledger_clock(&self) {
        loop {
            self.clock.sleep_until(self.clock.now().plus(LEDGER_CLOCK_EVERY)).await;
            // A failure shows in `/readyz`; the last reading stays in use.
            let _ = self.read_ledger_clock().await;
        }
    }

    /// Notes that an event was created on this server.
    pub fn event_made(&self) {
        self.made.notify_one();
    }

    /// Resolves when there is an event. Until then no background task runs, and a server used for locks alone takes no
    /// leases of its own.
    pub async fn until_first_event(&self) {
        loop {
            let made = self.made.notified();
            if self.office.events().await.is_ok_and(|events| !events.is_empty()) {
                return;
            }
            tokio::select! {
                () = made => {}
                // Another server may have created one.
                () = self.clock.sleep_until(self.clock.now().plus(LEDGER_CLOCK_EVERY)) => {}
            }
        }
    }

    /// Runs all background tasks until dropped: sweeper, numbering, webhooks, settlement.
    pub async fn run(self: Arc<Self>, engine: Arc<dyn Engine>) {
        let work = async {
            self.until_first_event().await;
            let sender = sender::WebhookSender::new(self.clone(), engine, self.clock.clone());
            let _ = self.sender.set(sender.clone());
            let settlement = settlement::run(self.clone(), self.clock.clone());
            tokio::join!(self.office.run(), sender.run(), settlement)
        };
        tokio::join!(work, self.keep_ledger_clock());
    }

    /// Signs a ticket for this buyer at this event; its text and its lifetime.
    pub fn mint_ticket(&self, event: &EventId, buyer: &str) -> Option<(String, Duration)> {
        let ttl = self.settings.ticket_ttl;
        let expires_ms = self.ledger_now_estimate().saturating_add(millis(ttl));
        let ticket = Ticket { event: event.0.clone(), buyer: buyer.to_owned(), expires_ms };
        Some((ticket.mint(&self.settings.tickets)?, ttl))
    }

    /// A value derived from this text and our secret, always the same: for responses that must be repeatable.
    pub fn derive(&self, purpose: &str, text: &[u8]) -> [u8; 32] {
        self.settings.tickets.sign(&[b"leasehold derive 1\0", purpose.as_bytes(), b"\0", text])
    }

    /// The same with each secret in use, newest first.
    pub fn derive_all(&self, purpose: &str, text: &[u8]) -> Vec<[u8; 32]> {
        self.settings.tickets.sign_by_each(&[b"leasehold derive 1\0", purpose.as_bytes(), b"\0", text])
    }

    /// Verifies a ticket.
    ///
    /// # Errors
    ///
    /// It is forged or expired.
    pub fn check_ticket(&self, shown: &str) -> Result<Ticket, Invalid> {
        Ticket::check(shown, &self.settings.tickets, self.ledger_now_estimate())
    }

    /// Whether a verified ticket has expired meanwhile.
    pub fn ticket_expired(&self, ticket: &Ticket) -> bool {
        self.ledger_now_estimate() >= ticket.expires_ms
    }

    /// The seat map of an event. `row` is the event as it is now.
    ///
    /// # Errors
    ///
    /// The layout cannot be read.
    pub async fn seat_map(&self, row: &EventRow) -> Result<Arc<CachedSeatMap>, Error> {
        let (version, layout) = self.office.layout(&row.event_id).await?;
        let named = Sha256::digest(format!("{}\0{}", row.settings.name, row.settings.currency));
        let etag = format!("\"{version}-{}\"", leasehold_support::hex::encode(&named[..8]));
        let seat_maps = || lock(&self.seat_maps);
        if let Some(known) = seat_maps().get(&row.event_id).filter(|known| known.etag == etag) {
            return Ok(known.clone());
        }
        let map = crate::api::boxoffice::seat_map_json(row, &layout).to_string().into();
        let seat_map = Arc::new(CachedSeatMap { etag, map });
        seat_maps().insert(row.event_id.clone(), seat_map.clone());
        Ok(seat_map)
    }

    /// The entries of an event, read once for all streams.
    pub fn feed(self: &Arc<Self>, event: &EventId) -> Arc<Feed> {
        let mut feeds = lock(&self.feeds);
        feeds.entry(event.clone()).or_insert_with(|| Feed::start(self.office.clone(), event.clone())).clone()
    }
}

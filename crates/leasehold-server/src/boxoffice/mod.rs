//! The box office as a server has it: an [`Office`] with tickets, webhooks, a payment provider, and a demo.
//!
//! ```text
//!   http ──▶ Service (the gate) ──▶ BoxOffice ──▶ Office ──▶ engine and ledger
//!                                       │
//!                                       ├─▶ sender: webhooks, signed and in order
//!                                       └─▶ settler: refunds that are owed, payments nobody told of
//! ```
//!
//! # Laws
//!
//! 1. Nobody gets a [`BoxOffice`] without a pass of the service's gate.
//! 2. Nothing here decides a sale: the office does, and any number of servers over one ledger are one box office.
//! 3. What goes out goes through [`outbound`], which looks at every address before it connects.
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

/// How long the ledger may take to say how the box office stands, for `/metrics`.
const OFFICE_METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the ledger is asked what time it is.
const LEDGER_CLOCK_EVERY: Duration = Duration::from_secs(10);

/// See the module.
pub struct BoxOffice {
    office: Office,
    clock: Arc<dyn Clock>,
    settings: BoxOfficeSettings,
    outbound: Arc<Outbound>,
    /// What the ledger's clock said, and when by ours: tickets end by the ledger's, and are looked at on every call.
    seen: Mutex<(u64, Time)>,
    feeds: Mutex<HashMap<EventId, Arc<Feed>>>,
    /// What is made of a layout, while it is the newest: many ask for the same.
    seat_maps: Mutex<HashMap<EventId, Arc<CachedSeatMap>>>,
    /// Rings when an event was made here.
    made: Notify,
    /// Filled in by `serve --demo`.
    demo: OnceLock<demo::Demo>,
    /// Filled in once the box office is in use.
    sender: OnceLock<Arc<sender::WebhookSender>>,
}

/// What a box office is run with.
pub struct BoxOfficeSettings {
    /// What tickets are signed with.
    pub tickets: Secrets,
    /// How long a ticket lives.
    pub ticket_ttl: Duration,
    /// What callbacks are verified with; none: no payment provider is known.
    pub provider_secrets: Option<Secrets>,
    /// Who is asked for refunds.
    pub provider: Option<Arc<dyn PaymentProvider>>,
    /// Where the buyers' page begins.
    pub default_event: Option<String>,
}

/// What is made of a layout.
pub struct CachedSeatMap {
    /// Names this very map, also when the event is called otherwise.
    pub etag: String,
    /// The map as it is sent.
    pub map: axum::body::Bytes,
}

/// What a box office counts, for Prometheus.
pub struct BoxOfficeMetrics {
    /// By the office.
    pub office: leasehold_boxoffice::office::OfficeMetrics,
    /// How old the oldest message is that a webhook did not take, as far as this server sends them.
    pub webhook_lag: Duration,
}

/// What everybody may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicInfo {
    /// Whether tickets are for whoever asks, and payments are play.
    pub demo: bool,
    /// Where the buyers' page begins.
    pub default_event: Option<String>,
}

impl fmt::Debug for BoxOffice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxOffice").field("demo", &self.demo.get().is_some()).finish_non_exhaustive()
    }
}

impl BoxOffice {
    /// A box office over an office that is open.
    ///
    /// # Errors
    ///
    /// The ledger does not say what time it is.
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

    /// What decides.
    pub const fn office(&self) -> &Office {
        &self.office
    }

    /// How requests go out.
    pub const fn outbound(&self) -> &Arc<Outbound> {
        &self.outbound
    }

    /// What callbacks are verified with.
    pub fn provider_secrets(&self) -> Option<&Secrets> {
        self.demo.get().map(|demo| &demo.secrets).or(self.settings.provider_secrets.as_ref())
    }

    /// Who is asked for refunds.
    pub fn provider(&self) -> Option<Arc<dyn PaymentProvider>> {
        self.demo.get().map(|demo| demo.provider.clone()).or_else(|| self.settings.provider.clone())
    }

    /// The demo, if this is one.
    pub fn demo(&self) -> Option<&demo::Demo> {
        self.demo.get()
    }

    /// What everybody may know.
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
        // Through the writer, without writing: what cannot be written any more is not ready.
        self.office.check_ledger_writer().await?;
        let now = self.office.ledger_now().await?;
        *lock(&self.seen) = (now.0, self.clock.now());
        Ok(())
    }

    /// What is counted, and how it stands.
    pub async fn metrics(&self) -> BoxOfficeMetrics {
        let webhook_lag = self.sender.get().map_or(0, |sender| sender.lag_ms(wall_ms()));
        // A ledger that does not answer must not keep Prometheus from what is known without it.
        let office = tokio::time::timeout(OFFICE_METRICS_TIMEOUT, self.office.metrics()).await;
        let office = office.unwrap_or_else(|_| self.office.counted());
        BoxOfficeMetrics { office, webhook_lag: Duration::from_millis(webhook_lag) }
    }

    /// What the ledger's clock says by now, as near as makes no difference to a ticket.
    fn ledger_now_estimate(&self) -> u64 {
        let (ledger, ours) = *lock(&self.seen);
        let since = millis(self.clock.now().since(ours));
        ledger.saturating_add(since)
    }

    /// Asks the ledger for the time now and then, until it is dropped.
    async fn keep_ledger_clock(&self) {
        loop {
            self.clock.sleep_until(self.clock.now().plus(LEDGER_CLOCK_EVERY)).await;
            // A ledger that does not answer is said by `/readyz`, and the last answer serves meanwhile.
            let _ = self.read_ledger_clock().await;
        }
    }

    /// An event was made.
    pub fn event_made(&self) {
        self.made.notify_one();
    }

    /// Comes to its end when there is an event: until then there is nothing to sweep, to number or to send, and a server
    /// of locks alone takes no leases of its own.
    pub async fn until_first_event(&self) {
        loop {
            let made = self.made.notified();
            if self.office.events().await.is_ok_and(|events| !events.is_empty()) {
                return;
            }
            tokio::select! {
                () = made => {}
                // Another server may have made one.
                () = self.clock.sleep_until(self.clock.now().plus(LEDGER_CLOCK_EVERY)) => {}
            }
        }
    }

    /// All that a box office does by itself, until it is dropped: sweeps, numbers, sends, settles.
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

    /// A ticket for this buyer at this event, and how long it lives.
    pub fn mint_ticket(&self, event: &EventId, buyer: &str) -> Option<(String, Duration)> {
        let ttl = self.settings.ticket_ttl;
        let expires_ms = self.ledger_now_estimate().saturating_add(millis(ttl));
        let ticket = Ticket { event: event.0.clone(), buyer: buyer.to_owned(), expires_ms };
        Some((ticket.mint(&self.settings.tickets)?, ttl))
    }

    /// Something that only we can make from this text, always the same: for answers that must come back the same.
    pub fn derive(&self, purpose: &str, text: &[u8]) -> [u8; 32] {
        self.settings.tickets.sign(&[b"leasehold derive 1\0", purpose.as_bytes(), b"\0", text])
    }

    /// The same by each secret that is in use, newest first.
    pub fn derive_all(&self, purpose: &str, text: &[u8]) -> Vec<[u8; 32]> {
        self.settings.tickets.sign_by_each(&[b"leasehold derive 1\0", purpose.as_bytes(), b"\0", text])
    }

    /// Whom a ticket names.
    ///
    /// # Errors
    ///
    /// It is none, or not any more.
    pub fn check_ticket(&self, shown: &str) -> Result<Ticket, Invalid> {
        Ticket::check(shown, &self.settings.tickets, self.ledger_now_estimate())
    }

    /// Whether a ticket that was checked has ended meanwhile.
    pub fn ticket_expired(&self, ticket: &Ticket) -> bool {
        self.ledger_now_estimate() >= ticket.expires_ms
    }

    /// What is made of the layout of an event. `row` is the event as it is now.
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

    /// What happens at an event, read once for all who listen.
    pub fn feed(self: &Arc<Self>, event: &EventId) -> Arc<Feed> {
        let mut feeds = lock(&self.feeds);
        feeds.entry(event.clone()).or_insert_with(|| Feed::start(self.office.clone(), event.clone())).clone()
    }
}

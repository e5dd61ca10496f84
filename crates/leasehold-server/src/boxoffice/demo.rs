//! `serve --demo`: an event with 400 seats on sale, and a simulated payment provider.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::clock::Clock;
use leasehold_boxoffice::layout::{Area, Layout, Seat};
use leasehold_boxoffice::model::{EventId, EventSettings, LedgerCall};
use leasehold_boxoffice::provider::{CaptureMode, PaymentProvider};
use leasehold_boxoffice::sign::{self, Secrets, SignatureStamp};
use leasehold_boxoffice::webhook::guard::TargetGuard;
use tokio_util::sync::CancellationToken;

use super::BoxOffice;
use super::demo_provider::{DemoPayment, DemoPaymentProvider};
use super::outbound::{Outbound, OutboundError};
use super::provider::HttpProvider;
use leasehold_support::net::connectable;
use leasehold_support::time::wall_ms;

/// The demo event is found again by its name after a restart.
const DEMO_EVENT_NAME: &str = "An evening at the Leasehold";

/// The event and the payment provider of a demo.
pub struct Demo {
    /// The event on sale.
    pub event: EventId,
    /// The secrets that the provider signs with.
    pub secrets: Secrets,
    /// The payment provider.
    pub provider: Arc<dyn PaymentProvider>,
    outbound: Arc<Outbound>,
    provider_url: String,
}

impl Demo {
    /// Plays a payment at the demo provider.
    ///
    /// # Errors
    ///
    /// The provider does not answer.
    pub async fn pay(&self, payment: &DemoPayment) -> Result<bool, OutboundError> {
        let body = serde_json::to_vec(payment).map_err(|error| OutboundError::Broken(error.to_string()))?;
        let signature = sign::header(&self.secrets, SignatureStamp { at_ms: wall_ms(), seq: None }, &body);
        let url = format!("{}/play", self.provider_url);
        Ok(self.outbound.post(&url, &[(sign::HEADER, &signature)], body).await?.is_success())
    }
}

/// Creates the event and starts the provider, which calls back at `http`.
///
/// # Errors
///
/// The event or the provider could not be created.
pub async fn open_demo(
    boxoffice: &Arc<BoxOffice>,
    clock: &Arc<dyn Clock>,
    http: SocketAddr,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let office = boxoffice.office();
    let known = office.events().await?.into_iter().find(|event| event.settings.name == DEMO_EVENT_NAME);
    let event = match known {
        Some(event) => event,
        None => office.create_event(LedgerCall::by("demo"), demo_settings(), demo_layout()).await?,
    };
    boxoffice.event_made();
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    let secrets = Secrets::new(&[secret])?;
    // The provider runs in this process.
    let outbound = Outbound::new(TargetGuard { allow_private: true })?;
    let callback = format!("http://{}/v1/payments/callback", connectable(http));
    let provider_url =
        DemoPaymentProvider::start(secrets.clone(), callback, outbound.clone(), clock.clone(), stop.clone()).await?;
    let provider =
        Arc::new(HttpProvider::new(&provider_url, Some(CaptureMode::Capture), secrets.clone(), outbound.clone()));
    let demo = Demo { event: event.event_id, secrets, provider, outbound, provider_url };
    let _ = boxoffice.demo.set(demo);
    Ok(())
}

fn demo_settings() -> EventSettings {
    // A short deadline, so that one can watch it pass.
    EventSettings { pay_ms: 60_000, ..EventSettings::named(DEMO_EVENT_NAME) }
}

/// 240 seats in the stalls, 160 in the circle, and a standing area.
fn demo_layout() -> Layout {
    let mut seats = Vec::with_capacity(400);
    for (section, rows, price) in [("Stalls", 'A'..='L', 4500), ("Circle", 'M'..='T', 3000)] {
        for row in rows {
            let seat = |number| Seat {
                id: format!("{row}-{number}"),
                section: section.to_owned(),
                row: row.to_string(),
                number,
                price,
            };
            seats.extend((1..=20).map(seat));
        }
    }
    Layout { seats, areas: vec![Area { id: "standing".into(), capacity: 60, price: 2000 }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the hall has 400 seats, each once.
    #[test]
    fn the_hall_has_400_seats() {
        let demo_layout = demo_layout();
        let ids: std::collections::BTreeSet<&str> = demo_layout.seats.iter().map(|seat| seat.id.as_str()).collect();
        assert_eq!((demo_layout.seats.len(), ids.len()), (400, 400));
        assert_eq!(demo_settings().problem(), None);
    }
}

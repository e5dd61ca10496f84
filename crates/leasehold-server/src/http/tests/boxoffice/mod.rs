//! The box office as clients see it.

mod bad;
mod holds;
mod idempotency;
mod import;
mod metrics;
mod payments;
mod staff;
mod stream;
mod tickets;
mod webhooks;

use leasehold_boxoffice::Office;
use leasehold_boxoffice::ledger::sqlite::Sqlite;
use leasehold_boxoffice::provider::Callback;
use leasehold_boxoffice::sign::Secrets;
use leasehold_boxoffice::webhook::guard::TargetGuard;
use tokio::task::JoinSet;

use super::*;
use crate::boxoffice::outbound::Outbound;
use crate::boxoffice::{BoxOffice, BoxOfficeSettings, demo};

/// What the provider of these tests signs with.
const PROVIDER: &str = "what provider and server know";

/// A box office over the engine of a service, with all that it does by itself.
pub(super) async fn open(home: &TempDir, service: &Arc<Service>) -> (Arc<BoxOffice>, JoinSet<()>) {
    let clock = SystemClock::shared();
    let ledger = Sqlite::open(home.path().join("boxoffice.sqlite"), clock.clone()).await.unwrap();
    let options = leasehold_boxoffice::office::OfficeOptions {
        sweep_every: Duration::from_millis(50),
        ..leasehold_boxoffice::office::OfficeOptions::default()
    };
    let office = Office::new(service.own_engine(), ledger, options).unwrap();
    let settings = BoxOfficeSettings {
        tickets: Secrets::new(&["what tickets are signed with"]).unwrap(),
        ticket_ttl: Duration::from_secs(600),
        provider_secrets: Some(Secrets::new(&[PROVIDER]).unwrap()),
        provider: None,
        default_event: None,
    };
    let outbound = Outbound::new(TargetGuard { allow_private: true }).unwrap();
    let boxoffice = BoxOffice::new(office, clock.clone(), settings, outbound).await.unwrap();
    assert!(service.open_boxoffice(boxoffice.clone()));
    let mut chores = JoinSet::new();
    chores.spawn(boxoffice.clone().run(service.own_engine()));
    (boxoffice, chores)
}

/// Two rows of four seats, dearer in front, and a floor.
fn hall() -> Value {
    let seat = |row: &str, number: u32| {
        let price = if row == "A" { 4500 } else { 3000 };
        json!({"id": format!("{row}-{number}"), "section": "Stalls", "row": row, "number": number, "price": price})
    };
    let seats: Vec<Value> = ["A", "B"].iter().flat_map(|row| (1..=4).map(|number| seat(row, number))).collect();
    json!({"name": "Gala", "currency": "EUR", "on_sale": true, "seats": seats,
           "areas": [{"id": "floor", "capacity": 5, "price": 1000}]})
}

/// The hall with some settings.
fn hall_with(settings: Value) -> Value {
    let mut hall = hall();
    hall.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    hall
}

impl Server {
    async fn event(&self, body: &Value) -> String {
        let made = self.post("/v1/events", body).await.with(201).json();
        schema::holds(&made, "EventInfo");
        made["event_id"].as_str().unwrap().to_owned()
    }

    async fn ask_hold(&self, event: &str, seats: &[&str], buyer: &str) -> Reply {
        self.post(&format!("/v1/events/{event}/holds"), &json!({"seats": seats, "buyer": buyer})).await
    }

    async fn hold(&self, event: &str, seats: &[&str], buyer: &str) -> Hold {
        Hold::of(&self.ask_hold(event, seats, buyer).await.with(201).json())
    }

    /// Holds what somebody else had, as soon as it is to be had again: the lease outlives its hold by a moment.
    async fn hold_again(&self, event: &str, seats: &[&str], buyer: &str) -> Hold {
        let end = Instant::now() + PATIENCE;
        loop {
            let reply = self.ask_hold(event, seats, buyer).await;
            if reply.status == 201 {
                return Hold::of(&reply.json());
            }
            assert!(reply.status == 409 && Instant::now() < end, "{}", reply.text());
            moment().await;
        }
    }

    /// Asks something of a hold, with its key.
    async fn of_hold(&self, hold: &Hold, verb: &str, body: &Value) -> Reply {
        let path = format!("/v1/holds/{}/{verb}", hold.id);
        self.client().await.ask("POST", &path, &[("Leasehold-Hold-Key", &hold.key)], Some(body)).await
    }

    async fn show_hold(&self, hold: &Hold) -> Value {
        let path = format!("/v1/holds/{}", hold.id);
        let reply = self.client().await.ask("GET", &path, &[("Leasehold-Hold-Key", &hold.key)], None).await;
        let shown = reply.with(200).json();
        schema::holds(&shown, "Hold");
        shown
    }

    async fn until_hold_is(&self, hold: &Hold, state: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let shown = self.show_hold(hold).await;
            if shown["state"] == state {
                return shown;
            }
            assert!(Instant::now() < end, "never {state}: {shown}");
            moment().await;
        }
    }

    /// Buys at once, without a payment under way.
    async fn buy(&self, event: &str, seats: &[&str], buyer: &str) -> Value {
        let hold = self.hold_again(event, seats, buyer).await;
        let order = self.of_hold(&hold, "confirm", &json!({"payment_ref": format!("pi-{}", hold.id)})).await;
        order.with(201).json()
    }

    async fn state_of(&self, event: &str, seat: &str) -> String {
        let now = self.get(&format!("/v1/events/{event}/availability")).await.with(200).json();
        schema::holds(&now, "Availability");
        let found = now["seats"].as_array().unwrap().iter().find(|found| found["id"] == seat);
        found.unwrap_or_else(|| panic!("{seat} in {now}"))["state"].as_str().unwrap().to_owned()
    }

    /// Every law holds.
    async fn lawful(&self, event: &str) {
        let laws = self.get(&format!("/v1/events/{event}/invariants")).await.with(200).json();
        schema::holds(&laws, "Invariants");
        assert_eq!(laws["ok"], json!(true), "{laws}");
        assert!(laws["checks"].as_array().unwrap().len() >= 8, "{laws}");
    }

    async fn demo(&self) -> String {
        demo::open_demo(&self.boxoffice, &SystemClock::shared(), self.at, &self.stop).await.unwrap();
        let front = self.get("/v1/boxoffice").await.with(200).json();
        schema::holds(&front, "Front");
        front["default_event"].as_str().unwrap().to_owned()
    }
}

/// A hold and its key.
struct Hold {
    id: String,
    key: String,
    whole: Value,
}

impl Hold {
    #[track_caller]
    fn of(made: &Value) -> Self {
        schema::holds(made, "Hold");
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{name} in {made}")).to_owned();
        Self { id: text("hold_id"), key: text("hold_key"), whole: made.clone() }
    }
}

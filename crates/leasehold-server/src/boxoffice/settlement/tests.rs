//! The settler over a real engine, a real SQLite file and a provider that answers over HTTP, under a clock set by hand.

use std::convert::Infallible;
use std::sync::Mutex;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leasehold::engine::embedded::{self, Embedded};
use leasehold::testkit::ManualClock;
use leasehold_boxoffice::Office;
use leasehold_boxoffice::layout::{Layout, Seat};
use leasehold_boxoffice::ledger::sqlite::Sqlite;
use leasehold_boxoffice::model::{Access, EventId, EventSettings, HoldState, MoneyState, OrderId};
use leasehold_boxoffice::office::{HoldRequest, HoldView, MoneyDecision, OfficeOptions, PaymentOutcome, RefundMessage};
use leasehold_boxoffice::provider::CaptureMode;
use leasehold_boxoffice::sign::Secrets;
use leasehold_boxoffice::webhook::guard::TargetGuard;
use tokio::net::TcpListener;

use super::*;
use crate::boxoffice::BoxOfficeSettings;
use crate::boxoffice::outbound::Outbound;
use crate::boxoffice::provider::HttpProvider;

/// What a provider was asked, in order: method and path, and the body.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// What a provider answers: statuses and bodies, one after the other, and the last one from then on.
type Says = Arc<Mutex<Vec<(u16, String)>>>;

/// What a provider says of the payment of a hold.
fn status(outcome: &str, amount: u64, currency: &str, hold: &HoldView) -> String {
    let hold_id = &hold.hold.hold_id;
    format!(r#"{{"outcome":"{outcome}","amount":{amount},"currency":"{currency}","hold_id":"{hold_id}"}}"#)
}

/// A provider that answers with these statuses and bodies.
async fn provider(answers: &[(u16, &str)]) -> (String, Asked) {
    let (url, asked, _) = provider_that(answers).await;
    (url, asked)
}

async fn provider_that(answers: &[(u16, &str)]) -> (String, Asked, Says) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answers: Says = Arc::new(Mutex::new(answers.iter().map(|(s, b)| (*s, (*b).to_owned())).collect()));
    let says = answers.clone();
    let asked = Asked::default();
    let heard = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (answers, heard) = (answers.clone(), heard.clone());
            let answer = service_fn(move |request: Request<Incoming>| {
                let (answers, heard) = (answers.clone(), heard.clone());
                async move {
                    let what = format!("{} {}", request.method(), request.uri().path());
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let mut heard = heard.lock().unwrap();
                    let answers = answers.lock().unwrap();
                    let (status, said) = answers[heard.len().min(answers.len() - 1)].clone();
                    heard.push((what, String::from_utf8_lossy(&body).into_owned()));
                    let response = Response::builder().status(status).body(Body::from(said)).unwrap();
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(async move {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    (url, asked, says)
}

/// A box office that sells two seats, and whose provider is at this URL.
struct Case {
    clock: ManualClock,
    shared: Arc<dyn Clock>,
    boxoffice: Arc<BoxOffice>,
    event: EventId,
    asked: HashMap<String, Time>,
    _home: tempfile::TempDir,
}

impl Case {
    async fn open(provider: &str) -> Self {
        Self::open_with(provider, None).await
    }

    /// `mode`: the provider makes payments.
    async fn open_with(provider: &str, mode: Option<CaptureMode>) -> Self {
        let (clock, home) = (ManualClock::new(), tempfile::tempdir().unwrap());
        clock.advance(Duration::from_secs(1000));
        let options = embedded::Options { clock: clock.shared(), ..embedded::Options::default() };
        let engine = Embedded::open(home.path().join("engine"), options).await.unwrap();
        let ledger = Sqlite::open(home.path().join("ledger"), clock.shared()).await.unwrap();
        let options = OfficeOptions { clock: clock.shared(), ..OfficeOptions::default() };
        let office = Office::new(engine, ledger, options).unwrap();
        let secrets = Secrets::new(&["what provider and server know"]).unwrap();
        let outbound = Outbound::new(TargetGuard { allow_private: true }).unwrap();
        let settings = BoxOfficeSettings {
            tickets: Secrets::new(&["what tickets are signed with"]).unwrap(),
            ticket_ttl: Duration::from_secs(600),
            provider_secrets: Some(secrets.clone()),
            provider: Some(Arc::new(HttpProvider::new(provider, mode, secrets, outbound.clone()))),
            default_event: None,
        };
        let seat = |number| {
            let id = format!("A-{number}");
            Seat { id, section: "S".into(), row: "A".into(), number, price: 100 }
        };
        let layout = Layout { seats: vec![seat(1), seat(2)], areas: vec![] };
        let rules = EventSettings { pay_ms: 60_000, ..EventSettings::named("Two seats") };
        let event = office.create_event(LedgerCall::by("staff"), rules, layout).await.unwrap().event_id;
        let boxoffice = BoxOffice::new(office, clock.shared(), settings, outbound).await.unwrap();
        Self { shared: clock.shared(), clock, boxoffice, event, asked: HashMap::new(), _home: home }
    }

    /// The settler looks once.
    async fn run_once(&mut self) {
        run_once(&self.boxoffice, &self.shared, &mut self.asked).await.unwrap();
    }

    /// The settler looks as often as it does, for so many seconds.
    async fn turns(&mut self, seconds: u64) {
        for _ in 0..seconds / SETTLEMENT_EVERY.as_secs() {
            self.clock.advance(SETTLEMENT_EVERY);
            self.run_once().await;
        }
    }

    async fn hold(&self, buyer: &str, seat: &str) -> HoldView {
        self.hold_these(buyer, &[seat]).await
    }

    async fn hold_these(&self, buyer: &str, seats: &[&str]) -> HoldView {
        let want = HoldRequest::These { seats: seats.iter().map(|seat| (*seat).into()).collect(), areas: vec![] };
        self.boxoffice.office().hold(LedgerCall::by(buyer), &self.event, buyer.into(), want).await.unwrap()
    }

    async fn paying(&self, buyer: &str, seat: &str, payment_ref: &str) -> HoldView {
        let hold = self.hold(buyer, seat).await;
        let (call, access) = (LedgerCall::by(buyer), Access::Staff);
        self.boxoffice.office().pay(call, &hold.hold.hold_id, access, payment_ref).await.unwrap();
        hold
    }

    async fn captured(&self, hold: &HoldView, payment_ref: &str, amount: u64) -> PaymentOutcome {
        let message = PaymentMessage {
            id: format!("cb {payment_ref}"),
            payment_ref: payment_ref.into(),
            hold_id: hold.hold.hold_id.clone(),
            outcome: CallbackOutcome::Captured,
            tokens: Vec::new(),
            amount,
            currency: None,
            paid_for: hold.hold.hold_id.clone(),
        };
        self.boxoffice.office().payment(message).await.unwrap()
    }

    async fn money(&self, payment_ref: &str) -> MoneyRow {
        self.boxoffice.office().ledger().money(payment_ref).await.unwrap().unwrap()
    }
}

/// Goal: a refund that the provider failed at is asked for again, and again, under one id, until it is made; and between
/// two tries the provider has its peace.
/// Method: the settler looks every two seconds, as it does. One that pushes its pause with every look never asks twice.
#[tokio::test]
async fn refunds_that_failed_are_asked_for_again() {
    let done = r#"{"done":"refunded"}"#;
    let (url, asked) = provider(&[(500, ""), (503, ""), (200, "\"pending\""), (200, done)]).await;
    let mut case = Case::open(&url).await;
    let hold = case.hold("ada", "A-1").await;
    // Too little buys nothing.
    case.captured(&hold, "pi_1", 99).await;
    assert_eq!(case.money("pi_1").await.state, MoneyState::RefundDue);
    for tries in 1..=4 {
        case.run_once().await;
        assert_eq!(asked.lock().unwrap().len(), tries);
        if tries < 4 {
            assert_eq!(case.money("pi_1").await.state, MoneyState::RefundDue, "after {tries}");
            case.turns(ASK_AGAIN_AFTER.as_secs() - SETTLEMENT_EVERY.as_secs()).await;
            assert_eq!(asked.lock().unwrap().len(), tries, "not before its time");
            case.clock.advance(SETTLEMENT_EVERY);
        }
    }
    assert_eq!(case.money("pi_1").await.state, MoneyState::Refunded);
    case.turns(2 * ASK_AGAIN_AFTER.as_secs()).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 4, "what went back is not asked for: {asked:?}");
    for (what, body) in asked.iter() {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((what.as_str(), &body["refund_id"]), ("POST /refunds", &"rf_pi_1".into()));
        assert_eq!((&body["payment_ref"], &body["amount"]), (&"pi_1".into(), &99.into()));
    }
}

/// Goal: a refund that the provider refuses for good is shown to staff with its words, and not asked for again until staff
/// says so; then at once. What is not about this refund (a wrong signature, too many requests) is asked for again.
#[tokio::test]
async fn refunds_that_are_refused_wait_for_staff() {
    let words = "the card\nis no more";
    let (url, asked) = provider(&[(403, ""), (429, ""), (422, words), (404, ""), (400, "")]).await;
    let mut case = Case::open(&url).await;
    let hold = case.hold("ada", "A-1").await;
    case.captured(&hold, "pi_1", 99).await;
    for tries in 1..=2 {
        case.run_once().await;
        let state = case.money("pi_1").await.state;
        assert_eq!((asked.lock().unwrap().len(), state), (tries, MoneyState::RefundDue));
        case.clock.advance(ASK_AGAIN_AFTER);
    }
    let reasons = [
        "the payment provider refused: status 422: the card is no more",
        "the payment provider does not know of this payment",
        "the payment provider refused: status 400",
    ];
    for (tries, reason) in (3..).zip(reasons) {
        // No time has passed since staff sent it again.
        case.run_once().await;
        let money = case.money("pi_1").await;
        assert_eq!((asked.lock().unwrap().len(), money.state), (tries, MoneyState::Stuck), "{reason}");
        assert_eq!(money.steps.last().unwrap().note, reason);
        let (office, refund) = (case.boxoffice.office(), money.refund_id());
        let sent =
            office.settle(LedgerCall::by("eve"), &case.event, &refund, MoneyDecision::GoesBack, "asked the bank").await;
        assert_eq!(sent.unwrap().state, MoneyState::RefundDue);
    }
    case.turns(4 * ASK_AGAIN_AFTER.as_secs()).await;
    assert_eq!(asked.lock().unwrap().len(), 6, "what staff has is asked for no more");
    // The provider changes its mind while staff thinks.
    assert_eq!(case.money("pi_1").await.state, MoneyState::Stuck);
    case.boxoffice.office().record_refund_message(went_back("re_1", None, 99)).await.unwrap();
    assert_eq!(case.money("pi_1").await.state, MoneyState::Refunded);
}

/// The provider says that so much of `pi_1` went back.
fn went_back(id: &str, refund_id: Option<&str>, amount: u64) -> RefundMessage {
    let (id, refund_id) = (id.into(), refund_id.map(Into::into));
    RefundMessage { id, payment_ref: "pi_1".into(), refund_id, amount }
}

/// Goal: what went back already, told again without its id, is not taken for what is stuck with the same amount.
#[tokio::test]
async fn what_is_stuck_does_not_end_by_an_echo() {
    let (url, _) = provider(&[(422, ""), (200, r#"{"done":"refunded"}"#)]).await;
    let mut case = Case::open(&url).await;
    let hold = case.hold_these("ada", &["A-1", "A-2"]).await;
    case.captured(&hold, "pi_1", 200).await;
    let order = OrderId::for_hold(&hold.hold.hold_id);
    let office = case.boxoffice.office().clone();
    for seat in ["A-1", "A-2"] {
        office.void(LedgerCall::by("eve"), &order, Some(vec![seat.into()]), "ill").await.unwrap();
        case.run_once().await;
    }
    let states = async || {
        office.ledger().money_of_payment("pi_1").await.unwrap().iter().map(|row| row.state).collect::<Vec<_>>()
    };
    assert_eq!(states().await, [MoneyState::Stuck, MoneyState::Refunded]);
    office.record_refund_message(went_back("re_1", None, 100)).await.unwrap();
    assert_eq!(states().await, [MoneyState::Stuck, MoneyState::Refunded], "an echo of the second");
    office.record_refund_message(went_back("re_2", Some("rp_1:pi_1"), 100)).await.unwrap();
    assert_eq!(states().await, [MoneyState::Refunded, MoneyState::Refunded]);
}

/// Goal: seats that are offered for late money wait for their buyer: the settler does not take them in the buyer's name,
/// though the provider would say that the money is there. Control: a payment that nobody told of is asked after and sold.
#[tokio::test]
async fn an_offer_waits_for_its_buyer() {
    let (url, asked, says) = provider_that(&[]).await;
    let mut case = Case::open(&url).await;
    let ada = case.paying("ada", "A-1", "pi_1").await;
    case.clock.advance(Duration::from_secs(66));
    let bob = case.paying("bob", "A-1", "pi_2").await;
    says.lock().unwrap().push((200, status("captured", 100, "EUR", &bob)));
    let told = case.captured(&ada, "pi_1", 100).await;
    let PaymentOutcome::Late(found) = told else { panic!("{told:?}") };
    let offer = found.offer.unwrap();
    case.turns(STUCK_PAYMENT_MS / 1000 + 10).await;

    let sold = case.boxoffice.office().ledger().hold(&bob.hold.hold_id).await.unwrap().0.unwrap();
    assert_eq!(sold.state, HoldState::Sold, "the settler works: bob's payment was asked after");
    let paths: Vec<String> = asked.lock().unwrap().iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(paths, ["GET /payments/pi%5F2"]);
    let row = case.boxoffice.office().ledger().hold(&offer).await.unwrap().0.unwrap();
    assert_eq!((row.state, case.money("pi_1").await.state), (HoldState::Paying, MoneyState::Offered));
    // The buyer takes it.
    let key = ada.key.as_ref().unwrap();
    let access = Access::key(key.expose());
    case.boxoffice.office().confirm(LedgerCall::by("ada"), &offer, access, "pi_1").await.unwrap();
    assert_eq!(case.money("pi_1").await.state, MoneyState::Sold);
}

/// Goal: a payment that the provider captured for something else buys nothing, whatever hold named its reference.
/// Method: the settler asks after it. What it is told is, in turn: bare, as of versions before; for another hold; too
/// little; in another currency. None of it sells; all that was understood waits for staff or goes back.
#[tokio::test]
async fn a_captured_reference_buys_no_hold_that_it_is_not_for() {
    for (said, state) in [
        (r#"{"done":"captured"}"#.to_owned(), None),
        (r#"{"outcome":"captured"}"#.to_owned(), None),
        ("other".to_owned(), Some(MoneyState::Stuck)),
        ("short".to_owned(), Some(MoneyState::RefundDue)),
        ("dollars".to_owned(), Some(MoneyState::Stuck)),
    ] {
        let (url, asked, says) = provider_that(&[]).await;
        let mut case = Case::open(&url).await;
        let cheap = case.hold("ada", "A-1").await;
        let dear = case.paying("mallory", "A-2", "pi_donation").await;
        let answer = match said.as_str() {
            "other" => status("captured", 100, "EUR", &cheap),
            "short" => status("captured", 1, "EUR", &dear),
            "dollars" => status("captured", 100, "USD", &dear),
            bare => bare.to_owned(),
        };
        says.lock().unwrap().push((200, answer));
        case.turns(STUCK_PAYMENT_MS / 1000 + 4).await;
        assert!(!asked.lock().unwrap().is_empty(), "{said}: it was asked after");
        let row = case.boxoffice.office().ledger().hold(&dear.hold.hold_id).await.unwrap().0.unwrap();
        assert_ne!(row.state, HoldState::Sold, "{said}");
        let money = case.boxoffice.office().ledger().money_of_payment("pi_donation").await.unwrap();
        assert_eq!(money.first().map(|row| row.state), state, "{said}: {money:?}");
        let checks = case.boxoffice.office().invariants(&case.event).await.unwrap();
        assert!(checks.iter().all(|check| check.ok), "{checks:?}");
    }
}

/// Goal: authorise, sell, capture. Nothing is captured before the sale, a capture is asked for until it is made, a
/// refusal is staff's, and what did not sell is cancelled.
#[tokio::test]
async fn what_was_authorised_is_captured_or_cancelled() {
    let (url, asked, says) = provider_that(&[]).await;
    let mut case = Case::open(&url).await;
    let authorised = async |case: &Case, hold: &HoldView, payment_ref: &str, amount| {
        let message = PaymentMessage {
            id: format!("auth {payment_ref}"),
            payment_ref: payment_ref.into(),
            hold_id: hold.hold.hold_id.clone(),
            outcome: CallbackOutcome::Authorised,
            tokens: Vec::new(),
            amount,
            currency: Some("EUR".into()),
            paid_for: hold.hold.hold_id.clone(),
        };
        case.boxoffice.office().payment(message).await.unwrap()
    };
    let ada = case.paying("ada", "A-1", "pi_1").await;
    let sold = authorised(&case, &ada, "pi_1", 100).await;
    let PaymentOutcome::Order(order) = sold else { panic!("{sold:?}") };
    assert!(asked.lock().unwrap().is_empty(), "nothing is captured before the sale is durable");
    let captured = status("captured", 100, "EUR", &ada);
    says.lock().unwrap().extend([(503, String::new()), (200, captured)]);
    let capture = async |case: &Case| {
        let row = case.boxoffice.office().ledger().order(&order.order_id).await.unwrap().unwrap();
        row.capture.unwrap().state
    };
    case.run_once().await;
    assert_eq!(capture(&case).await, CaptureState::Due, "the provider did not answer");
    case.turns(ASK_AGAIN_AFTER.as_secs() + 2).await;
    assert_eq!(capture(&case).await, CaptureState::Captured);
    let heard = asked.lock().unwrap().clone();
    assert!(heard.iter().all(|(what, _)| what == "POST /payments/pi%5F1/capture") && heard.len() == 2, "{heard:?}");
    assert_eq!(heard[0].1, r#"{"amount":100,"payment_ref":"pi_1"}"#);

    // Too little was authorised: cancelled, and no money moved.
    let bob = case.paying("bob", "A-2", "pi_2").await;
    authorised(&case, &bob, "pi_2", 99).await;
    assert_eq!(case.money("pi_2").await.state, MoneyState::CancelDue);
    says.lock().unwrap().push((200, status("cancelled", 99, "EUR", &bob)));
    case.run_once().await;
    assert_eq!(case.money("pi_2").await.state, MoneyState::Cancelled);
    assert_eq!(asked.lock().unwrap().last().unwrap().0, "POST /payments/pi%5F2/cancel");

    // The provider will not capture: staff is told, and the order stands until somebody decides.
    let (call, access) = (LedgerCall::by("bob"), Access::Staff);
    case.boxoffice.office().pay(call, &bob.hold.hold_id, access, "pi_3").await.unwrap();
    let sold = authorised(&case, &bob, "pi_3", 100).await;
    let PaymentOutcome::Order(refused) = sold else { panic!("{sold:?}") };
    says.lock().unwrap().push((422, "the card is no more".into()));
    case.run_once().await;
    let row = case.boxoffice.office().ledger().order(&refused.order_id).await.unwrap().unwrap();
    assert_eq!(row.capture.unwrap().state, CaptureState::Failed);
    // Voided, nothing goes back: nothing came.
    case.boxoffice.office().void(LedgerCall::by("eve"), &refused.order_id, None, "no money").await.unwrap();
    says.lock().unwrap().push((404, String::new()));
    case.run_once().await;
    let rows = case.boxoffice.office().ledger().money_of_payment("pi_3").await.unwrap();
    assert_eq!(rows.iter().map(|row| row.state).collect::<Vec<_>>(), [MoneyState::Cancelled]);
    let checks = case.boxoffice.office().invariants(&case.event).await.unwrap();
    assert!(checks.iter().all(|check| check.ok), "{checks:?}");
}

/// Goal: money that came in the last moment before the deadline, and whose callback was lost, is found after the end of
/// its hold, and buys the seats as late money does.
#[tokio::test]
async fn money_of_the_last_moment_is_found_after_the_end() {
    let (url, asked, says) = provider_that(&[]).await;
    let mut case = Case::open(&url).await;
    let ada = case.paying("ada", "A-1", "pi_1").await;
    says.lock().unwrap().push((200, status("pending", 100, "EUR", &ada)));
    case.turns(58).await;
    let before = asked.lock().unwrap().len();
    assert!(before > 0, "it was asked after while the hold was live");
    says.lock().unwrap()[0] = (200, status("captured", 100, "EUR", &ada));
    case.clock.advance(Duration::from_secs(3));
    case.boxoffice.office().ledger().lapse_due(10).await.unwrap();
    let row = async |case: &Case| case.boxoffice.office().ledger().hold(&ada.hold.hold_id).await.unwrap().0.unwrap();
    assert_eq!(row(&case).await.state, HoldState::Lapsed);
    case.turns(2 * ASK_AGAIN_AFTER.as_secs()).await;
    let order = case.boxoffice.office().ledger().order(&OrderId::for_hold(&ada.hold.hold_id)).await.unwrap();
    assert_eq!(order.map(|order| order.payment_ref).as_deref(), Some("pi_1"));
    let heard = asked.lock().unwrap().len();
    case.turns(ASK_AFTER_ENDED_HOLD_MS / 1000).await;
    assert_eq!(asked.lock().unwrap().len(), heard, "what is settled is not asked after");
    assert!(
        asked.lock().unwrap().iter().all(|(what, _)| what == "GET /payments/pi%5F1"),
        "a shop's own is not cancelled"
    );
}

/// Goal: a payment that nobody made is cancelled some time after the end of its hold, if it is ours; a shop's own is asked
/// after a few times, and then left alone.
#[tokio::test]
async fn a_payment_that_was_left_alone_is_ended() {
    for mode in [None, Some(CaptureMode::Authorise)] {
        let (url, asked, says) = provider_that(&[]).await;
        let mut case = Case::open_with(&url, mode).await;
        let ada = case.paying("ada", "A-1", "pi_1").await;
        says.lock().unwrap().push((200, status("pending", 100, "EUR", &ada)));
        case.clock.advance(Duration::from_secs(62));
        case.boxoffice.office().ledger().lapse_due(10).await.unwrap();
        case.turns(CANCEL_ENDED_HOLD_AFTER_MS / 1000 - 4).await;
        let early = asked.lock().unwrap().clone();
        assert!(!early.is_empty() && early.iter().all(|(what, _)| what == "GET /payments/pi%5F1"), "{early:?}");
        says.lock().unwrap()[0] = (200, status(if mode.is_some() { "cancelled" } else { "pending" }, 100, "EUR", &ada));
        case.turns(ASK_AFTER_ENDED_HOLD_MS / 1000).await;
        let later = asked.lock().unwrap()[early.len()..].to_vec();
        if mode.is_some() {
            assert_eq!(
                later.iter().map(|(what, _)| what.as_str()).collect::<Vec<_>>(),
                ["POST /payments/pi%5F1/cancel"]
            );
        } else {
            assert!(
                (2..=6).contains(&later.len()) && later.iter().all(|(what, _)| what.starts_with("GET")),
                "{later:?}"
            );
        }
        assert!(case.boxoffice.office().ledger().money_of_payment("pi_1").await.unwrap().is_empty());
        case.turns(600).await;
        assert_eq!(asked.lock().unwrap().len(), early.len() + later.len(), "it is left alone");
    }
}

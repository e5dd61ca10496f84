//! Money: told by a provider, at its own time, in its own order.

use leasehold_boxoffice::provider::{CallbackOutcome, SeatToken};

use super::*;

pub(super) fn callback(hold: &Hold, id: &str, outcome: CallbackOutcome) -> Callback {
    let token = |seat: &Value| SeatToken {
        seat: seat["id"].as_str().unwrap().into(),
        token: seat["token"].as_str().unwrap().into(),
    };
    Callback {
        callback_id: id.into(),
        payment_ref: format!("pi-{}", hold.id),
        hold_id: hold.id.clone(),
        outcome,
        amount: hold.whole["total"].as_u64().unwrap(),
        currency: None,
        tokens: hold.whole["seats"].as_array().unwrap().iter().map(token).collect(),
        at: "2027-01-01T00:00:00Z".into(),
        refund_id: None,
    }
}

pub(super) async fn tell(server: &Server, told: &Callback) -> Reply {
    tell_signed(server, told, PROVIDER).await
}

async fn tell_signed(server: &Server, told: &Callback, secret: &str) -> Reply {
    let (body, signature) = told.signed(&Secrets::new(&[secret]).unwrap(), 1).unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    // The client writes JSON again: only what comes out the same fits its signature.
    let signature = if body.to_string().into_bytes() == serde_json::to_vec(told).unwrap() {
        signature
    } else {
        let stamp = leasehold_boxoffice::sign::SignatureStamp { at_ms: 1, seq: None };
        leasehold_boxoffice::sign::header(&Secrets::new(&[secret]).unwrap(), stamp, body.to_string().as_bytes())
    };
    let headers = [("Leasehold-Signature", signature.as_str())];
    server.client().await.ask("POST", "/v1/payments/callback", &headers, Some(&body)).await
}

async fn play_bank(server: &Server, key: &str, body: &Value) -> Reply {
    server.client().await.ask("POST", "/v1/demo/pay", &[("Leasehold-Hold-Key", key)], Some(body)).await
}

/// As the bank of the demo would tell it.
async fn tell_as_bank(server: &Server, told: &Callback) -> Reply {
    let secrets = &server.boxoffice.demo().unwrap().secrets;
    let body = serde_json::to_value(told).unwrap();
    let stamp = leasehold_boxoffice::sign::SignatureStamp { at_ms: 1, seq: None };
    let signature = leasehold_boxoffice::sign::header(secrets, stamp, body.to_string().as_bytes());
    let headers = [("Leasehold-Signature", signature.as_str())];
    server.client().await.ask("POST", "/v1/payments/callback", &headers, Some(&body)).await
}

/// What staff sees of money, when this much of it has come to this state.
async fn until_money(server: &Server, event: &str, state: &str, amounts: &[u64]) -> Vec<Value> {
    let end = Instant::now() + PATIENCE;
    loop {
        let report = server.get(&format!("/v1/events/{event}/report")).await.with(200).json();
        schema::holds(&report, "Report");
        let rows = report["late_payments"].as_array().unwrap().iter().filter(|money| money["state"] == state);
        let rows: Vec<Value> = rows.cloned().collect();
        let mut found: Vec<u64> = rows.iter().map(|money| money["amount"].as_u64().unwrap()).collect();
        found.sort_unstable();
        if found == amounts {
            return rows;
        }
        assert!(Instant::now() < end, "never {amounts:?} {state}: {report}");
        moment().await;
    }
}

pub(super) async fn paying(server: &Server, event: &str, seats: &[&str], buyer: &str) -> Hold {
    let hold = server.hold(event, seats, buyer).await;
    server.of_hold(&hold, "pay", &json!({"payment_ref": format!("pi-{}", hold.id)})).await.with(200);
    hold
}

/// Goal: a capture makes the order, once, however often it is told; a decline gives the hold back; forgeries and
/// payments that do not fit sell nothing.
#[tokio::test(flavor = "multi_thread")]
async fn callbacks_count_once_and_only_if_they_are_right() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let hold = paying(&server, &event, &["A-1", "A-2"], "ada").await;
    let right = callback(&hold, "cb-1", CallbackOutcome::Captured);
    tell_signed(&server, &right, "somebody else's secret").await.problem(401, "bad_signature");
    server.post("/v1/payments/callback", &json!({})).await.problem(401, "bad_signature");
    // Too little money buys nothing, and is written down with what came.
    let dora = paying(&server, &event, &["B-3"], "dora").await;
    let short = Callback { amount: 1, ..callback(&dora, "cb-d", CallbackOutcome::Captured) };
    let told = tell(&server, &short).await.with(200).json();
    assert_eq!((&told["outcome"], &told["resolution"]["state"]), (&json!("late"), &json!("refund_due")), "{told}");
    // Its buyer need not wait for more, and sees what became of it.
    let shown = server.show_hold(&dora).await;
    let money = &shown["money"][0];
    assert_eq!(
        (&shown["state"], &money["amount"], &money["state"]),
        (&json!("active"), &json!(1), &json!("refund_due"))
    );
    assert_eq!((&money["payment_ref"], &shown["money"][1]), (&json!(format!("pi-{}", dora.id)), &json!(null)));
    server.of_hold(&dora, "release", &json!({})).await.with(200);

    let told = tell(&server, &right).await.with(200).json();
    schema::holds(&told, "Settled");
    assert_eq!(told["outcome"], json!("order"));
    let again = tell(&server, &right).await.with(200).json();
    schema::holds(&again, "Settled");
    let other = tell(&server, &Callback { callback_id: "cb-2".into(), ..right.clone() }).await.with(200).json();
    schema::holds(&other, "Settled");
    // Out of order: the decline of an earlier try comes last, and is overtaken by events.
    let late = tell(&server, &callback(&hold, "cb-0", CallbackOutcome::Declined)).await.with(200).json();
    assert_eq!(late["outcome"], json!("ignored"), "{late}");
    assert_eq!(server.state_of(&event, "A-1").await, "sold");
    let confirmed = server.of_hold(&hold, "confirm", &json!({"payment_ref": format!("pi-{}", hold.id)})).await;
    assert_eq!(confirmed.with(201).json()["order_id"], told["order"]["order_id"]);

    let bob = paying(&server, &event, &["B-1"], "bob").await;
    let told = tell(&server, &callback(&bob, "cb-3", CallbackOutcome::Declined)).await.with(200).json();
    assert_eq!((&told["outcome"], &told["state"]), (&json!("declined"), &json!("active")));
    assert_eq!(server.show_hold(&bob).await["state"], json!("active"));
    // Money for a token that is not the newest buys nothing, and goes back.
    let cleo = paying(&server, &event, &["B-2"], "cleo").await;
    let stale = SeatToken { seat: "B-2".into(), token: "1".into() };
    let told =
        tell(&server, &Callback { tokens: vec![stale], ..callback(&cleo, "cb-4", CallbackOutcome::Captured) }).await;
    let told = told.with(200).json();
    assert_eq!((&told["outcome"], &told["resolution"]["state"]), (&json!("late"), &json!("refund_due")), "{told}");
    let report = server.get(&format!("/v1/events/{event}/report")).await.with(200).json();
    assert_eq!(report["takings"]["orders"], json!(1));
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: money after the deadline buys the same seats if they are free, else others are offered, else it goes back; every
/// step is shown to buyer and staff.
#[tokio::test(flavor = "multi_thread")]
async fn late_money_takes_the_ladder() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"pay_ms": 300}))).await;
    let ada = paying(&server, &event, &["A-1"], "ada").await;
    server.until_hold_is(&ada, "lapsed").await;
    let told = tell(&server, &callback(&ada, "cb-a", CallbackOutcome::Captured)).await.with(200).json();
    schema::holds(&told, "Settled");
    assert_eq!((&told["outcome"], &told["order"]["late"]), (&json!("order"), &json!(true)), "still free: {told}");

    let bob = paying(&server, &event, &["A-2"], "bob").await;
    server.until_hold_is(&bob, "lapsed").await;
    server.buy(&event, &["A-2"], "cleo").await;
    let told = tell(&server, &callback(&bob, "cb-b", CallbackOutcome::Captured)).await.with(200).json();
    schema::holds(&told, "Settled");
    assert_eq!((&told["outcome"], &told["resolution"]["state"]), (&json!("late"), &json!("offered")), "{told}");
    let shown = server.show_hold(&bob).await;
    assert_eq!(shown["resolution"]["offer"], told["resolution"]["offer"], "{shown}");
    let confirm = server.of_hold(&bob, "confirm", &json!({"payment_ref": format!("pi-{}", bob.id)})).await;
    let gone = confirm.problem(410, "expired");
    assert_eq!(gone["resolution"]["state"], json!("offered"), "{gone}");
    let report = server.get(&format!("/v1/events/{event}/report")).await.with(200).json();
    schema::holds(&report, "Report");
    let late = report["late_payments"].as_array().unwrap();
    assert!(late.iter().any(|money| money["buyer"] == "bob" && money["state"] == "offered"), "{report}");
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: at a demo every outcome of the bank comes back over HTTP and does what it is called; refunds too.
#[tokio::test(flavor = "multi_thread")]
async fn the_bank_of_the_demo_calls_back() {
    let server = Server::start().await;
    let event = server.demo().await;
    let play = async |hold: &Hold, outcome: &str| {
        let payment = format!("pi-{}", hold.id);
        server.of_hold(hold, "pay", &json!({"payment_ref": payment})).await.with(200);
        let body = json!({"hold_id": hold.id, "payment_ref": payment, "outcome": outcome});
        let taken = play_bank(&server, &hold.key, &body).await.with(202).json();
        schema::holds(&taken, "Accepted");
    };
    let approve = server.hold(&event, &["A-1", "A-2"], "ada").await;
    play(&approve, "approve").await;
    let duplicate = server.hold(&event, &["A-3"], "bob").await;
    play(&duplicate, "duplicate").await;
    let decline = server.hold(&event, &["A-4"], "cleo").await;
    play(&decline, "decline").await;
    let shuffled = server.hold(&event, &["A-5"], "dan").await;
    play(&shuffled, "out_of_order").await;
    for hold in [&approve, &duplicate, &shuffled] {
        let sold = server.until_hold_is(hold, "sold").await;
        assert!(sold["order_id"].is_string(), "{sold}");
    }
    server.until_hold_is(&decline, "active").await;
    for bad in
        [json!({"hold_id": "h", "payment_ref": "p", "outcome": "steal"}), json!({"hold_id": "h", "outcome": "approve"})]
    {
        server.post("/v1/demo/pay", &bad).await.problem(400, "invalid");
    }
    // The id of a hold is public: it does not pay for it, nor end it.
    let open = server.hold(&event, &["A-6"], "eve").await;
    let body = json!({"hold_id": open.id, "payment_ref": "p", "outcome": "approve"});
    server.post("/v1/demo/pay", &body).await.problem(403, "forbidden");
    play_bank(&server, "of nobody", &body).await.problem(404, "not_found");
    play_bank(&server, &decline.key, &body).await.problem(404, "not_found");
    let ticket = server.post("/v1/tickets", &json!({"event": event, "buyer": "mallory"})).await.with(201).json();
    let bearer = format!("Bearer {}", ticket["ticket"].as_str().unwrap());
    let headers = [("Leasehold-Hold-Key", open.key.as_str()), ("Authorization", bearer.as_str())];
    let theirs = server.client().await.ask("POST", "/v1/demo/pay", &headers, Some(&body)).await;
    theirs.problem(404, "not_found");
    play_bank(&server, "of nobody", &json!({"hold_id": "h", "payment_ref": "p", "outcome": "late"}))
        .await
        .problem(404, "not_found");
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: money that must go back does, through the provider, over HTTP, and staff sees each step.
#[tokio::test(flavor = "multi_thread")]
async fn money_without_seats_goes_back() {
    let server = Server::start().await;
    server.demo().await;
    let one = json!({"name": "One seat", "on_sale": true, "pay_ms": 300,
                     "seats": [{"id": "A-1", "section": "S", "row": "A", "number": 1, "price": 100}]});
    let event = server.event(&one).await;
    let ada = paying(&server, &event, &["A-1"], "ada").await;
    server.until_hold_is(&ada, "lapsed").await;
    server.buy(&event, &["A-1"], "bob").await;
    let pay = json!({"hold_id": ada.id, "payment_ref": format!("pi-{}", ada.id), "outcome": "approve"});
    play_bank(&server, &ada.key, &pay).await.with(202);
    let end = Instant::now() + PATIENCE;
    loop {
        let report = server.get(&format!("/v1/events/{event}/report")).await.with(200).json();
        let late = &report["late_payments"][0];
        if late["state"] == "refunded" {
            let states: Vec<&str> =
                late["steps"].as_array().unwrap().iter().map(|s| s["state"].as_str().unwrap()).collect();
            assert_eq!(states, ["received", "refund_due", "refunded"]);
            break;
        }
        assert!(Instant::now() < end, "{report}");
        moment().await;
    }
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: what comes above the price, and what a void or a cheaper seat leaves over, goes back through the provider, each
/// once; a dearer seat is said to be owed; all of it is in the audit.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_over_goes_back() {
    let server = Server::start().await;
    server.demo().await;
    let event = server.event(&hall()).await;
    let ada = paying(&server, &event, &["A-1", "A-2", "A-3"], "ada").await;
    let told = Callback { amount: 13_600, ..callback(&ada, "cb-1", CallbackOutcome::Captured) };
    let told = tell_as_bank(&server, &told).await.with(200).json();
    schema::holds(&told, "Settled");
    let order = &told["order"];
    assert_eq!((&order["total"], &order["paid"], &order["refunded"]), (&json!(13_500), &json!(13_600), &json!(100)));
    until_money(&server, &event, "refunded", &[100]).await;

    let of_order = format!("/v1/orders/{}", order["order_id"].as_str().unwrap());
    let void = json!({"seats": ["A-3"], "reason": "ill"});
    let voided = server.post(&format!("{of_order}/void"), &void).await.with(200).json();
    schema::holds(&voided, "Order");
    assert_eq!(voided["owed"], json!(4500), "{voided}");
    let relocate = |from: &str, to: &str| json!({"moves": [{"from": from, "to": to}], "reason": "a pillar"});
    let moved = server.post(&format!("{of_order}/move"), &relocate("A-2", "B-2")).await.with(200).json();
    assert_eq!(moved["owed"], json!(1500), "{moved}");
    until_money(&server, &event, "refunded", &[100, 1500, 4500]).await;
    let dearer = server.post(&format!("{of_order}/move"), &relocate("B-2", "A-4")).await.with(200).json();
    assert_eq!(dearer["owed"], json!(-1500), "{dearer}");
    let shown = server.get(&of_order).await.with(200).json();
    schema::holds(&shown, "Order");
    assert_eq!((&shown["paid"], &shown["refunded"], &shown["owed"]), (&json!(13_600), &json!(6100), &json!(-1500)));
    let end = server.post(&format!("{of_order}/void"), &json!({"reason": "cancelled"})).await.with(200).json();
    assert_eq!(end["owed"], json!(7500), "never more than came: {end}");
    until_money(&server, &event, "refunded", &[100, 1500, 4500, 7500]).await;

    let audit = server.until_audit(&event, "refunded", 4).await;
    let told = |kind: &str| audit.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((told("refund_due"), told("voided"), told("moved")), (4, 2, 2), "{audit:?}");
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: money that came in the name of a hold, though its payment is for another, is taken from the provider, written down
/// once and shown to staff, who give it back; it sells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn money_for_another_hold_waits_for_staff() {
    let server = Server::start().await;
    server.demo().await;
    let event = server.event(&hall()).await;
    let ada = paying(&server, &event, &["A-1"], "ada").await;
    let bob = server.hold(&event, &["A-2"], "bob").await;
    let stray = Callback { payment_ref: format!("pi-{}", ada.id), ..callback(&bob, "cb-1", CallbackOutcome::Captured) };
    for id in ["cb-1", "cb-1", "cb-2"] {
        let told = Callback { callback_id: id.into(), ..stray.clone() };
        let told = tell_as_bank(&server, &told).await.with(200).json();
        schema::holds(&told, "Settled");
        let stuck = told["outcome"] == "ignored" || told["resolution"]["state"] == "stuck";
        assert!(stuck, "{told}");
        assert!(!told["resolution"].to_string().contains(&ada.id), "whose hold it is says nobody: {told}");
    }
    let money = until_money(&server, &event, "stuck", &[4500]).await.remove(0);
    assert_eq!((&money["buyer"], &money["hold_id"]), (&json!("bob"), &json!(bob.id)), "{money}");
    assert!(money["steps"][0]["note"].as_str().unwrap().contains(&ada.id), "{money}");
    assert_eq!(
        (server.state_of(&event, "A-1").await, server.state_of(&event, "A-2").await),
        ("paying".into(), "held".into())
    );
    // It does not pay for anything, also when its own payment comes.
    let own = callback(&ada, "cb-3", CallbackOutcome::Captured);
    assert_eq!(tell_as_bank(&server, &own).await.with(200).json()["outcome"], json!("order"));
    let path = format!("/v1/events/{event}/payments/{}", money["refund_id"].as_str().unwrap());
    server.post(&format!("{path}/refund"), &json!({})).await.problem(400, "invalid");
    server
        .post(&format!("/v1/events/{event}/payments/rf_none/close"), &json!({"reason": "x"}))
        .await
        .problem(404, "not_found");
    let due = server.post(&format!("{path}/refund"), &json!({"reason": "asked the bank"})).await.with(200).json();
    schema::holds(&due, "LateMoney");
    until_money(&server, &event, "refunded", &[4500]).await;
    server.post(&format!("{path}/close"), &json!({"reason": "x"})).await.problem(409, "payment_mismatch");
    let audit = server.until_audit(&event, "refunded", 1).await;
    assert_eq!(audit.iter().filter(|entry| entry["kind"] == "stuck_money").count(), 1, "{audit:?}");
    server.lawful(&event).await;
    server.end().await;
}

/// Asks something of a hold with a ticket and the hold's key.
async fn with_ticket(server: &Server, ticket: &str, hold: &Hold, verb: &str, body: &Value) -> Reply {
    let headers = [("Authorization", ticket), ("Leasehold-Hold-Key", hold.key.as_str())];
    server.client().await.ask("POST", &format!("/v1/holds/{}/{verb}", hold.id), &headers, Some(body)).await
}

async fn demo_ticket(server: &Server, event: &str, buyer: &str) -> String {
    let made = server.post("/v1/tickets", &json!({"event": event, "buyer": buyer})).await.with(201).json();
    format!("Bearer {}", made["ticket"].as_str().unwrap())
}

async fn held_by(server: &Server, ticket: &str, event: &str, seats: &[&str]) -> Hold {
    let headers = [("Authorization", ticket)];
    let path = format!("/v1/events/{event}/holds");
    let made = server.client().await.ask("POST", &path, &headers, Some(&json!({"seats": seats}))).await;
    Hold::of(&made.with(201).json())
}

/// Goal: a buyer names no payment, so nobody's reference can be taken or spent; the server's is the same however often it
/// is asked for, and the way back from a payment is open while no money came.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_draws_the_reference() {
    let server = Server::start().await;
    let event = server.demo().await;
    let (ada, mallory) = (demo_ticket(&server, &event, "ada").await, demo_ticket(&server, &event, "mallory").await);
    let hold = held_by(&server, &ada, &event, &["A-1", "A-2"]).await;
    for named in ["pi_victim", "bank_pay_0"] {
        let refused = with_ticket(&server, &ada, &hold, "pay", &json!({"payment_ref": named})).await;
        refused.problem(403, "forbidden");
    }
    for bad in ["javascript:alert(1)", "https://user:secret@shop.example/", "/back", &"h".repeat(2000)] {
        with_ticket(&server, &ada, &hold, "pay", &json!({"return_url": bad})).await.problem(400, "invalid");
    }
    let body = json!({"return_url": "https://shop.example/thanks"});
    let paying = with_ticket(&server, &ada, &hold, "pay", &body).await.with(200).json();
    schema::holds(&paying, "Hold");
    let payment = paying["payment_ref"].as_str().unwrap().to_owned();
    assert_eq!((&paying["state"], &paying["payment"]["payment_ref"]), (&json!("paying"), &json!(payment)));
    assert!(paying["pay_url"].as_str().unwrap().contains("/pay/bank"), "{paying}");
    let again = with_ticket(&server, &ada, &hold, "pay", &json!({})).await.with(200).json();
    let own = with_ticket(&server, &ada, &hold, "pay", &json!({"payment_ref": payment})).await.with(200).json();
    assert_eq!((&again["payment_ref"], &own["payment_ref"]), (&json!(payment), &json!(payment)));
    assert_eq!(server.show_hold(&hold).await["pay_url"], paying["pay_url"], "also after a reload");
    // Nobody else gets to it, by its name either.
    let other = held_by(&server, &mallory, &event, &["A-3"]).await;
    with_ticket(&server, &mallory, &other, "pay", &json!({"payment_ref": payment})).await.problem(403, "forbidden");
    let body = json!({"hold_id": other.id, "payment_ref": payment, "outcome": "approve"});
    play_bank(&server, &other.key, &body).await.problem(409, "payment_mismatch");

    // Back from it: the hold is active again, and the next payment is another one.
    let back = with_ticket(&server, &ada, &hold, "pay/cancel", &json!({})).await.with(200).json();
    schema::holds(&back, "Hold");
    assert_eq!((&back["state"], &back["pay_url"]), (&json!("active"), &json!(null)));
    with_ticket(&server, &ada, &hold, "pay/cancel", &json!({})).await.with(200);
    let next = with_ticket(&server, &ada, &hold, "pay", &json!({})).await.with(200).json();
    assert_ne!(next["payment_ref"], json!(payment));
    // The first cancel, told once more, is not about the new payment.
    let keyed = async |verb: &str, idem: &str| {
        let headers = [("Authorization", ada.as_str()), ("Leasehold-Hold-Key", &hold.key), ("Idempotency-Key", idem)];
        let path = format!("/v1/holds/{}/{verb}", hold.id);
        server.client().await.ask("POST", &path, &headers, Some(&json!({}))).await.with(200).json()
    };
    keyed("pay/cancel", "k-1").await;
    let next = keyed("pay", "k-2").await;
    assert_eq!(keyed("pay/cancel", "k-1").await["state"], json!("active"), "the stored answer");
    assert_eq!(server.show_hold(&hold).await["payment_ref"], next["payment_ref"], "and nothing else happened");
    // Once it is paid there is no way back.
    let body = json!({"hold_id": hold.id, "payment_ref": next["payment_ref"], "outcome": "approve"});
    play_bank(&server, &hold.key, &body).await.with(202);
    server.until_hold_is(&hold, "sold").await;
    with_ticket(&server, &ada, &hold, "pay/cancel", &json!({})).await.problem(410, "sold");
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: at a demo, what a ticket holder pays for one hold buys no other (the attack with the demo's own provider).
/// Method: the cheap hold is paid for; the dear one waits longer than the settler does before it asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_cheap_payment_buys_no_dear_hold() {
    let server = Server::start().await;
    let event = server.demo().await;
    let ticket = demo_ticket(&server, &event, "mallory").await;
    let cheap = held_by(&server, &ticket, &event, &["M-1"]).await;
    let dear = held_by(&server, &ticket, &event, &["A-1", "A-2", "A-3"]).await;
    let paid = with_ticket(&server, &ticket, &cheap, "pay", &json!({})).await.with(200).json();
    let unpaid = with_ticket(&server, &ticket, &dear, "pay", &json!({})).await.with(200).json();
    assert_ne!(paid["payment_ref"], unpaid["payment_ref"]);
    let body = json!({"hold_id": cheap.id, "payment_ref": paid["payment_ref"], "outcome": "approve"});
    play_bank(&server, &cheap.key, &body).await.with(202);
    server.until_hold_is(&cheap, "sold").await;
    let confirm = json!({"payment_ref": paid["payment_ref"]});
    with_ticket(&server, &ticket, &dear, "confirm", &confirm).await.problem(409, "payment_mismatch");
    let confirm = json!({"payment_ref": unpaid["payment_ref"]});
    with_ticket(&server, &ticket, &dear, "confirm", &confirm).await.problem(403, "not_paid");
    with_ticket(&server, &ticket, &dear, "confirm", &json!({"payment_ref": "x", "amount": 1_000_000}))
        .await
        .problem(403, "forbidden");
    let order = server.show_hold(&cheap).await["order_id"].as_str().unwrap().to_owned();
    let order = server.get(&format!("/v1/orders/{order}")).await.with(200).json();
    schema::holds(&order, "Order");
    assert_eq!((&order["paid"], &order["source"]), (&json!(3000), &json!("provider")), "{order}");
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: seats that cost nothing are no door to those that do. A ticket confirms, while seats are added to its hold.
/// Method: many tries at once, each a race of two connections; whatever wins, no order has more than its money.
#[tokio::test(flavor = "multi_thread")]
async fn free_seats_are_no_door_to_priced_ones() {
    let keys = super::super::access::Keys::of(&[(&[crate::service::Role::Boxoffice], &[])]);
    let server = keys.server().await;
    let staff = &keys.shown[0];
    let seat = |id: String, price: u32, number: u32| json!({"id": id, "section": "S", "row": if price == 0 { "F" } else { "V" }, "number": number, "price": price});
    const TRIES: u32 = 60;
    let seats: Vec<Value> =
        (1..=TRIES).flat_map(|n| [seat(format!("free-{n}"), 0, n), seat(format!("VIP-{n}"), 50_000, n)]).collect();
    let event = json!({"name": "Companions", "on_sale": true, "per_buyer": 500, "seats": seats});
    let made = super::super::access::as_key(&server, staff, "POST", "/v1/events", Some(&event)).await.with(201).json();
    let event = made["event_id"].as_str().unwrap().to_owned();
    let ticket = json!({"event": event, "buyer": "mallory"});
    let made =
        super::super::access::as_key(&server, staff, "POST", "/v1/tickets", Some(&ticket)).await.with(201).json();
    let ticket = format!("Bearer {}", made["ticket"].as_str().unwrap());
    let mut sold_free = 0;
    for n in 1..=TRIES {
        let hold = held_by(&server, &ticket, &event, &[&format!("free-{n}")]).await;
        let (confirm, add) = (json!({"payment_ref": format!("x-{n}")}), json!({"add": [format!("VIP-{n}")]}));
        let (confirmed, _) = tokio::join!(
            with_ticket(&server, &ticket, &hold, "confirm", &confirm),
            with_ticket(&server, &ticket, &hold, "seats", &add)
        );
        if confirmed.status == 201 {
            assert_eq!(confirmed.json()["total"], json!(0), "a buyer's word bought seats: {}", confirmed.text());
            sold_free += 1;
        } else {
            confirmed.problem(403, "not_paid");
        }
    }
    assert!(sold_free > 0, "what costs nothing is sold");
    let laws =
        super::super::access::as_key(&server, staff, "GET", &format!("/v1/events/{event}/invariants"), None).await;
    assert_eq!(laws.with(200).json()["ok"], json!(true));
    server.end().await;
}

/// Goal: an offer for late money is not made larger and bought with the old money: a decline that names it is overtaken.
#[tokio::test(flavor = "multi_thread")]
async fn an_offer_is_not_enlarged() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"pay_ms": 300}))).await;
    let bob = paying(&server, &event, &["A-2"], "bob").await;
    server.until_hold_is(&bob, "lapsed").await;
    server.buy(&event, &["A-2"], "cleo").await;
    let pay_longer = json!({"pay_ms": 60_000});
    let path = format!("/v1/events/{event}");
    server.client().await.ask("PUT", &path, &[], Some(&pay_longer)).await.with(200);
    let told = tell(&server, &callback(&bob, "cb-b", CallbackOutcome::Captured)).await.with(200).json();
    let offer = told["resolution"]["offer"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    let declined =
        Callback { hold_id: offer.clone(), tokens: vec![], ..callback(&bob, "cb-no", CallbackOutcome::Declined) };
    tell(&server, &declined).await.with(200);
    let offer = Hold { id: offer, key: bob.key.clone(), whole: json!({}) };
    assert_eq!(server.show_hold(&offer).await["state"], json!("paying"), "it stands");
    server.of_hold(&offer, "pay/cancel", &json!({})).await.problem(409, "offer_stands");
    server.of_hold(&offer, "seats", &json!({"add": ["B-4"]})).await.problem(409, "paying");
    let order = server.of_hold(&offer, "confirm", &json!({"payment_ref": format!("pi-{}", bob.id)})).await;
    let order = order.with(201).json();
    assert_eq!((&order["total"], &order["paid"], &order["owed"]), (&json!(4500), &json!(4500), &json!(0)));
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: short payment is noticed when it is told later, too: the order stands, and staff sees what does not fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_callback_that_tells_less_is_stuck() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let hold = paying(&server, &event, &["A-1"], "ada").await;
    server.of_hold(&hold, "confirm", &json!({"payment_ref": format!("pi-{}", hold.id)})).await.with(201);
    let short = Callback { amount: 1, ..callback(&hold, "cb-1", CallbackOutcome::Captured) };
    assert_eq!(tell(&server, &short).await.with(200).json()["outcome"], json!("order"));
    let stuck = until_money(&server, &event, "stuck", &[1]).await;
    assert!(stuck[0]["steps"][0]["note"].as_str().unwrap().contains("the order counts 4500"), "{stuck:?}");
    // A key says what it took; less than the price sells nothing.
    let bob = server.hold(&event, &["A-2"], "bob").await;
    let cash = |amount: u64| json!({"payment_ref": "cash", "amount": amount});
    server.of_hold(&bob, "confirm", &cash(4499)).await.problem(403, "not_paid");
    let order = server.of_hold(&bob, "confirm", &cash(5000)).await.with(201).json();
    assert_eq!((&order["paid"], &order["refunded"], &order["source"]), (&json!(5000), &json!(500), &json!("key")));
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: the bank of the demo plays authorise, sell, capture; and a capture that it refuses is staff's.
#[tokio::test(flavor = "multi_thread")]
async fn the_bank_authorises_and_captures() {
    let server = Server::start().await;
    let event = server.demo().await;
    for (seat, act, state) in [("A-1", "authorise", "captured"), ("A-2", "capture_fails", "failed")] {
        let hold = server.hold(&event, &[seat], "ada").await;
        let paying = server.of_hold(&hold, "pay", &json!({})).await.with(200).json();
        let body = json!({"hold_id": hold.id, "payment_ref": paying["payment_ref"], "outcome": act});
        play_bank(&server, &hold.key, &body).await.with(202);
        let sold = server.until_hold_is(&hold, "sold").await;
        let order = format!("/v1/orders/{}", sold["order_id"].as_str().unwrap());
        let end = Instant::now() + PATIENCE;
        loop {
            let shown = server.get(&order).await.with(200).json();
            schema::holds(&shown, "Order");
            if shown["capture"]["state"] == state {
                break;
            }
            assert!(Instant::now() < end, "never {state}: {shown}");
            moment().await;
        }
    }
    server.lawful(&event).await;
    server.end().await;
}

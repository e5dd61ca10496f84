//! From click to sale.

use super::*;

/// Goal: a seat is seen, held, renewed, paid for and sold; every answer is as described, tokens are text, and the laws
/// hold at every step.
#[tokio::test(flavor = "multi_thread")]
async fn a_seat_from_hold_to_order() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    server.lawful(&event).await;
    let hold = server.hold(&event, &["A-1", "A-2"], "b-17").await;
    let seats = hold.whole["seats"].as_array().unwrap();
    assert_eq!(seats.iter().map(|seat| seat["id"].as_str().unwrap()).collect::<Vec<_>>(), ["A-1", "A-2"]);
    assert!(seats.iter().all(|seat| seat["token"].as_str().unwrap().parse::<u64>().unwrap() > 0), "{seats:?}");
    assert_eq!((&hold.whole["total"], &hold.whole["state"]), (&json!(9000), &json!("active")));
    let remaining = hold.whole["remaining_ms"].as_u64().unwrap();
    assert!((290_000..=300_000).contains(&remaining), "{remaining}");
    let renewable = hold.whole["renewable_ms"].as_u64().unwrap();
    assert!((880_000..=900_000).contains(&renewable), "{renewable}");
    assert_eq!(server.state_of(&event, "A-1").await, "held");

    let shown = server.show_hold(&hold).await;
    assert_eq!(shown["hold_key"], json!(null), "shown once");
    let renewed = server.of_hold(&hold, "renew", &json!({})).await.with(200).json();
    schema::holds(&renewed, "Hold");
    assert_eq!(renewed["seats"], hold.whole["seats"], "a renewal keeps its tokens");
    let changed = json!({"add": ["A-3"], "remove": ["A-1"]});
    let changed = server.of_hold(&hold, "seats", &changed).await.with(200).json();
    let ids: Vec<&str> = changed["seats"].as_array().unwrap().iter().map(|seat| seat["id"].as_str().unwrap()).collect();
    assert_eq!((ids, &changed["total"]), (vec!["A-2", "A-3"], &json!(9000)));
    assert_eq!(server.state_of(&event, "A-1").await, "free");

    let pay = json!({"payment_ref": "pi_1"});
    let paying = server.of_hold(&hold, "pay", &pay).await.with(200).json();
    schema::holds(&paying, "Hold");
    assert_eq!((&paying["state"], &paying["payment"]["payment_ref"]), (&json!("paying"), &json!("pi_1")));
    assert!((590_000..=600_000).contains(&paying["remaining_ms"].as_u64().unwrap()), "{paying}");
    server.of_hold(&hold, "release", &json!({})).await.problem(409, "paying");
    let order = server.of_hold(&hold, "confirm", &pay).await.with(201).json();
    schema::holds(&order, "Order");
    assert_eq!((&order["total"], &order["late"]), (&json!(9000), &json!(false)));
    let again = server.of_hold(&hold, "confirm", &pay).await.with(201).json();
    assert_eq!(again, order, "the same confirm, the same order");
    let path = format!("/v1/orders/{}", order["order_id"].as_str().unwrap());
    assert_eq!(server.get(&path).await.with(200).json(), order);
    assert_eq!(server.state_of(&event, "A-2").await, "sold");
    assert_eq!(server.show_hold(&hold).await["order_id"], order["order_id"]);
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: a renewal and a release need no body, and an abandoned hold frees its seats by time alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_released_or_lapses() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"ttl_ms": 400}))).await;
    let hold = server.hold(&event, &["A-1"], "ada").await;
    let bare = async |verb: &str| {
        let path = format!("/v1/holds/{}/{verb}", hold.id);
        server
            .client()
            .await
            .ask("POST", &path, &[("Leasehold-Hold-Key", &hold.key), ("Content-Length", "0")], None)
            .await
    };
    bare("renew").await.with(200);
    let released = bare("release").await.with(200).json();
    assert_eq!(released["state"], json!("released"));
    bare("release").await.with(200);
    bare("renew").await.problem(410, "released");
    let lapsing = server.hold(&event, &["A-1"], "bob").await;
    server.until_hold_is(&lapsing, "lapsed").await;
    assert_eq!(server.state_of(&event, "A-1").await, "free");
    server.of_hold(&lapsing, "confirm", &json!({"payment_ref": "x"})).await.problem(410, "expired");
    server.hold_again(&event, &["A-1"], "cleo").await;
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: a refusal names each seat lost and why, nothing is taken, and an alternative with its price is offered.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_names_what_was_lost() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    server.hold(&event, &["A-2"], "ada").await;
    let lost = server.ask_hold(&event, &["A-1", "A-2"], "bob").await.problem(409, "conflict");
    assert_eq!(lost["conflicts"], json!([{"seat": "A-2", "reason": "taken"}]));
    assert_eq!(lost["alternative"], json!({"seats": ["A-3", "A-4"], "total": 9000}));
    assert_eq!(server.state_of(&event, "A-1").await, "free", "all or nothing");
    server.buy(&event, &["B-1"], "cleo").await;
    let sold = server.ask_hold(&event, &["B-1"], "bob").await.problem(409, "conflict");
    assert_eq!(sold["conflicts"], json!([{"seat": "B-1", "reason": "sold"}]));
    let blocks = json!({"block": ["B-2"], "reason": "camera"});
    server.client().await.ask("PUT", &format!("/v1/events/{event}/blocks"), &[], Some(&blocks)).await.with(200);
    let blocked = server.ask_hold(&event, &["B-2"], "bob").await.problem(409, "conflict");
    assert_eq!(blocked["conflicts"], json!([{"seat": "B-2", "reason": "blocked"}]));
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: places of an area are counted and never oversold; best available is what it says; the cap counts all of it.
#[tokio::test(flavor = "multi_thread")]
async fn areas_best_and_the_cap() {
    let server = Server::start().await;
    let event = server.event(&hall_with(json!({"per_buyer": 4}))).await;
    let path = format!("/v1/events/{event}/holds");
    let floor = |qty: u32, buyer: &str| json!({"areas": [{"id": "floor", "qty": qty}], "buyer": buyer});
    let held = server.post(&path, &floor(4, "ada")).await.with(201).json();
    schema::holds(&held, "Hold");
    assert_eq!((&held["areas"][0]["qty"], &held["total"]), (&json!(4), &json!(4000)));
    let lost = server.post(&path, &floor(2, "bob")).await.problem(409, "conflict");
    assert_eq!(lost["conflicts"][0]["area"], json!("floor"));
    server.post(&path, &floor(1, "bob")).await.with(201);
    let over = server.ask_hold(&event, &["A-1"], "ada").await.problem(409, "conflict");
    assert_eq!(over["conflicts"][0]["reason"], json!("buyer_limit"));

    let best =
        |qty: u32, adjacent: bool| json!({"best": {"qty": qty, "adjacent": adjacent}, "buyer": format!("c{qty}")});
    let picked = server.post(&path, &best(3, true)).await.with(201).json();
    let ids: Vec<&str> = picked["seats"].as_array().unwrap().iter().map(|seat| seat["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["A-1", "A-2", "A-3"]);
    let none = json!({"best": {"qty": 2, "section": "Balcony"}, "buyer": "d"});
    let lost = server.post(&path, &none).await.problem(409, "conflict");
    assert_eq!(lost["conflicts"][0]["reason"], json!("no_block"));
    server.lawful(&event).await;
    server.end().await;
}

/// Goal: the map comes with an ETag that serves until the layout changes; availability since a number has what changed.
#[tokio::test(flavor = "multi_thread")]
async fn the_map_and_what_changed() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let path = format!("/v1/events/{event}/map");
    let map = server.get(&path).await.with(200);
    schema::holds(&map.json(), "SeatMap");
    assert_eq!(map.json()["sections"][0]["rows"][1]["seats"][0], json!({"id": "B-1", "number": 1, "price": 3000}));
    let known = [("If-None-Match", map.header("etag"))];
    server.client().await.ask("GET", &path, &known, None).await.with(304);
    let other = json!({"areas": [{"id": "floor", "capacity": 9, "price": 1000}]});
    server.post(&format!("/v1/events/{event}/import"), &other).await.with(200);
    server.client().await.ask("GET", &path, &known, None).await.with(200);

    let event = server.event(&hall()).await;
    let listed = server.get("/v1/events").await.with(200).json();
    schema::holds(&listed, "EventList");
    assert_eq!(listed["events"].as_array().unwrap().len(), 2);
    let one = server.get(&format!("/v1/events/{event}")).await.with(200).json();
    schema::holds(&one, "EventInfo");
    assert_eq!((&one["totals"]["free"], &one["per_buyer"]), (&json!(8), &json!(8)));
    server.hold(&event, &["B-4"], "ada").await;
    let whole = server.until_seq(&event, 2).await;
    assert_eq!(whole["seats"].as_array().unwrap().len(), 8, "free ones too");
    let path = format!("/v1/events/{event}/availability?since=1");
    let changed = server.get(&path).await.with(200).json();
    assert_eq!(changed["seats"], json!([{"id": "B-4", "state": "held"}]));
    assert_eq!((&changed["totals"], &changed["seq"]), (&whole["totals"], &whole["seq"]));
    server.end().await;
}

/// Goal: whoever asks again and again for what changed since the last answer has the whole picture in the end.
/// Method: a hall whose seats are each taken once, by four at a time, while somebody follows.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_by_numbers_misses_nothing() {
    let server = Server::start().await;
    let seats: Vec<Value> = (1..=400)
        .map(|number| json!({"id": format!("A-{number}"), "section": "S", "row": "A", "number": number, "price": 1}))
        .collect();
    let event = server.event(&json!({"name": "Gala", "currency": "EUR", "on_sale": true, "seats": seats})).await;
    let buy = async |from: u32| {
        for number in (from..=400).step_by(4) {
            server.hold(&event, &[&format!("A-{number}")], &format!("b-{number}")).await;
        }
    };
    let mut picture = std::collections::BTreeMap::new();
    let mut seq = 0;
    let mut look = async || {
        let now = server.get(&format!("/v1/events/{event}/availability?since={seq}")).await.with(200).json();
        for seat in now["seats"].as_array().unwrap() {
            picture.insert(seat["id"].as_str().unwrap().to_owned(), seat["state"].clone());
        }
        seq = now["seq"].as_u64().unwrap();
        (seq, picture.values().filter(|state| **state == "held").count())
    };
    {
        let mut all = std::pin::pin!(async { tokio::join!(buy(1), buy(2), buy(3), buy(4)) });
        while tokio::select! { _ = &mut all => false, _ = look() => true } {}
    }
    let end = Instant::now() + PATIENCE;
    let held = loop {
        let (seq, held) = look().await;
        // The event and four hundred holds have a number each.
        if seq >= 401 {
            break held;
        }
        assert!(Instant::now() < end, "never 401: {seq}");
    };
    assert_eq!(held, 400, "seats that the follower knows to be taken");
    let whole = server.get(&format!("/v1/events/{event}/availability?since=9999999")).await.with(200).json();
    assert_eq!(whole["seats"].as_array().unwrap().len(), 400, "a number that nobody was told");
    server.end().await;
}

impl Server {
    /// Availability, once it has this number.
    pub(super) async fn until_seq(&self, event: &str, seq: u64) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.get(&format!("/v1/events/{event}/availability")).await.with(200).json();
            if now["seq"].as_u64().unwrap() >= seq {
                return now;
            }
            assert!(Instant::now() < end, "never {seq}: {now}");
            moment().await;
        }
    }
}

/// Goal: keys of holds cannot be guessed at the pace of the server; whoever has the key is not kept out by it.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_keys_of_holds_is_slowed_down() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    let hold = server.hold(&event, &["A-1"], "ada").await;
    let path = format!("/v1/holds/{}", hold.id);
    let mut client = server.client().await;
    let mut tries = 0;
    let slowed = loop {
        tries += 1;
        assert!(tries < 20_000, "nobody slows down who guesses");
        let wrong = format!("hk_{tries:032x}");
        let reply = client.ask("GET", &path, &[("Leasehold-Hold-Key", &wrong)], None).await;
        if reply.status != 404 {
            break reply;
        }
    };
    assert!(tries > 100, "{tries}: who mistypes a key is not shut out");
    assert!(slowed.header("retry-after").parse::<u64>().unwrap() >= 1);
    slowed.problem(429, "quota");
    assert_eq!(server.show_hold(&hold).await["state"], json!("active"));
    drop(client);
    server.end().await;
}

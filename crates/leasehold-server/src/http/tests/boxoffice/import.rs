//! Layouts from files.

use super::*;

async fn import(server: &Server, event: &str, query: &str, kind: &str, text: &str) -> Reply {
    let mut client = server.client().await;
    let head = format!(
        "POST /v1/events/{event}/import{query} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        server.at,
        text.len()
    );
    client.raw(head.as_bytes()).await;
    client.raw(text.as_bytes()).await;
    client.reply(false).await
}

const GOOD: &str = "id,section,row,number,price,capacity\r\nX-1,S,R,1,100,\r\nX-2,S,R,2,100,\r\nfloor,,,,50,10\r\n";

/// Goal: a dry run tells all and changes nothing; a good file is the layout; a bad one is told by line and nothing of it
/// is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_imported_whole_or_not_at_all() {
    let server = Server::start().await;
    let event = server.event(&json!({"name": "Empty", "on_sale": true})).await;
    let dry = import(&server, &event, "?dry_run=1", "text/csv", GOOD).await.with(200).json();
    schema::holds(&dry, "Imported");
    assert_eq!((&dry["ok"], &dry["seats"], &dry["areas"]), (&json!(true), &json!(2), &json!(1)));
    let map = async || server.get(&format!("/v1/events/{event}/map")).await.with(200).json();
    assert_eq!(map().await["sections"], json!([]));
    let done = import(&server, &event, "", "text/csv; charset=utf-8", GOOD).await.with(200).json();
    schema::holds(&done, "Imported");
    let whole = map().await;
    assert_eq!(whole["areas"], json!([{"id": "floor", "capacity": 10, "price": 50}]));
    let bad = "id,section,row,number,price\nY-1,S,R,1,100\nY-1,S,R,2,12.50\nY-2,S,R,1,100\n";
    let dry = import(&server, &event, "?dry_run=true", "text/csv", bad).await.with(200).json();
    schema::holds(&dry, "Imported");
    assert_eq!(dry["ok"], json!(false));
    let told = import(&server, &event, "", "text/csv", bad).await.problem(400, "bad_layout");
    let codes: Vec<(u64, &str)> = told["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| (problem["line"].as_u64().unwrap(), problem["code"].as_str().unwrap()))
        .collect();
    assert_eq!(codes, [(3, "bad_price"), (4, "duplicate_place")]);
    assert_eq!(map().await, whole, "nothing half imported");
    let duplicate = json!({"seats": [
        {"id": "A", "section": "S", "row": "R", "number": 1, "price": 1},
        {"id": "A", "section": "S", "row": "R", "number": 2, "price": 1}]});
    let told = server.post(&format!("/v1/events/{event}/import"), &duplicate).await.problem(400, "bad_layout");
    assert_eq!(told["problems"][0]["code"], json!("duplicate_id"));
    let mut twice = hall();
    twice["seats"][1]["id"] = json!("A-1");
    let told = server.post("/v1/events", &twice).await.problem(400, "bad_layout");
    assert_eq!(told["problems"][0]["code"], json!("duplicate_id"));
    server.end().await;
}

/// Goal: kinds and sizes are looked at first; a layout that forgets a held seat is refused and the hold stands.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_loses_no_hold() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    import(&server, &event, "", "application/xml", "<x/>").await.problem(415, "invalid");
    import(&server, &event, "?dry_run=perhaps", "text/csv", GOOD).await.problem(400, "invalid");
    import(&server, &event, "", "text/csv", "").await.problem(400, "bad_layout");
    import(&server, &event, "", "application/json", "{\"seats\": [").await.problem(400, "bad_layout");
    let mut client = server.client().await;
    let head = format!(
        "POST /v1/events/{event}/import HTTP/1.1\r\nHost: {}\r\nContent-Type: text/csv\r\nContent-Length: {}\r\n\r\n",
        server.at,
        (16 << 20) + 1
    );
    client.raw(head.as_bytes()).await;
    client.reply(false).await.problem(413, "invalid");
    let hold = server.hold(&event, &["A-1"], "ada").await;
    let reply = import(&server, &event, "", "text/csv", GOOD).await;
    assert_eq!(reply.status, 409, "{}", reply.text());
    // A dry run says so beforehand.
    let dry = import(&server, &event, "?dry_run=1", "text/csv", GOOD).await.problem(409, "conflict");
    assert_eq!(dry["conflicts"][0], json!({"seat": "A-1", "reason": "taken"}));
    assert_eq!(server.show_hold(&hold).await["state"], json!("active"));
    // A hall of some megabytes is no more than a hall.
    let mut big = "id,section,row,number,price\n".to_owned();
    (0..50_000)
        .for_each(|at| big.push_str(&format!("seat-{at},Section {},Row {},{},4500\n", at / 5000, at / 50, at % 50)));
    let event = server.event(&json!({"name": "Big"})).await;
    let done = import(&server, &event, "", "text/csv", &big).await.with(200).json();
    assert_eq!(done["seats"], json!(50_000));
    server.end().await;
}

//! Webhooks, to a receiver that listens for real.

use leasehold_boxoffice::webhook;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use leasehold_support::time::wall_ms;

/// What a receiver got: the signature and the body.
type Got = (String, Vec<u8>);

/// A receiver that refuses the first so many messages.
async fn receiver(refuse: usize) -> (String, mpsc::UnboundedReceiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?token=of-the-receiver", listener.local_addr().unwrap());
    let (send, got) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut seen = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut bytes = Vec::new();
            let whole = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                let (head, body) = text.split_once("\r\n\r\n")?;
                let field = |name: &str| {
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix(name).map(|v| v.trim().to_owned()))
                };
                let length: usize = field("content-length:")?.parse().ok()?;
                (body.len() >= length).then(|| (field("leasehold-signature:").unwrap(), body.as_bytes().to_vec()))
            };
            let got = loop {
                if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                    break None;
                }
                if let Some(got) = whole(&bytes) {
                    break Some(got);
                }
            };
            let Some(got) = got else { continue };
            seen += 1;
            let status = if seen <= refuse { "500 Broken" } else { "204 Fine" };
            let _ = stream
                .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes())
                .await;
            if seen > refuse && send.send(got).is_err() {
                return;
            }
        }
    });
    (url, got)
}

/// Goal: a webhook hears everything from its making on, in order, signed so that the receiver's helper believes it, again
/// when it was not taken; and its secret is shown once.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_hears_everything_in_order() {
    let server = Server::start().await;
    let event = server.event(&hall()).await;
    server.until_seq(&event, 1).await;
    let (url, mut got) = receiver(1).await;
    let made = server.post("/v1/webhooks", &json!({"url": url, "event": event})).await.with(201).json();
    schema::holds(&made, "Webhook");
    let secrets = Secrets::new(&[made["secret"].as_str().unwrap()]).unwrap();
    let listed = server.get("/v1/webhooks").await.with(200).json();
    schema::holds(&listed, "WebhookList");
    assert_eq!(listed["webhooks"][0]["secret"], json!(null));
    server.buy(&event, &["A-1"], "ada").await;
    let mut last = 1;
    for kind in ["held", "sold"] {
        let (signature, body) = timeout(PATIENCE, got.recv()).await.expect("a message").unwrap();
        let seq = webhook::verify(&secrets, &signature, &body, wall_ms()).expect("it is signed");
        let told: Value = serde_json::from_slice(&body).unwrap();
        schema::holds(&told, "Entry");
        assert_eq!((seq, &told["seq"], &told["kind"]), (last + 1, &json!(seq), &json!(kind)), "{told}");
        assert_eq!((&told["event_id"], &told["buyer"]), (&json!(event), &json!("ada")));
        last = seq;
    }
    let path = format!("/v1/webhooks/{}", made["webhook_id"].as_str().unwrap());
    server.client().await.ask("DELETE", &path, &[], None).await.with(204);
    server.client().await.ask("DELETE", &path, &[], None).await.problem(404, "not_found");
    server.end().await;
}

/// Goal: bad targets and secrets are refused; a key has one effect, and another body under it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_made_once_and_goes_to_no_bad_place() {
    let server = Server::start().await;
    for body in [
        json!({}),
        json!({"url": "ftp://example.org/"}),
        json!({"url": "http://u:p@example.org/"}),
        json!({"url": "not a url"}),
        json!({"url": "http://example.org/", "secret": "short"}),
        json!({"url": "http://example.org/", "colour": "red"}),
    ] {
        server.post("/v1/webhooks", &body).await.problem(400, "invalid");
    }
    server
        .post("/v1/webhooks", &json!({"url": "http://example.org/", "event": "none"}))
        .await
        .problem(404, "not_found");
    let keyed = async |body: &Value| {
        server.client().await.ask("POST", "/v1/webhooks", &[("Idempotency-Key", "w")], Some(body)).await
    };
    let body = json!({"url": "http://127.0.0.1:9/"});
    let first = keyed(&body).await.with(201).json();
    assert_eq!(keyed(&body).await.with(201).json(), first);
    keyed(&json!({"url": "http://127.0.0.1:10/"})).await.problem(422, "idempotency_mismatch");
    assert_eq!(server.get("/v1/webhooks").await.with(200).json()["webhooks"].as_array().unwrap().len(), 1);
    server.end().await;
}

/// Goal: the limit holds, and no webhook overwrites another, however many are made at once.
/// Method: leave room for two, then ask for eight at the same time; then twice under one key with different bodies.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_made_at_once_keep_the_limit() {
    let server = Server::start().await;
    let made = async |number: usize| {
        server.post("/v1/webhooks", &json!({"url": format!("http://127.0.0.1:9/{number}")})).await
    };
    for number in 0..98 {
        made(number).await.with(201);
    }
    let replies = futures_util::future::join_all((98..106).map(made)).await;
    let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 429, 429, 429, 429, 429, 429]);
    let listed = server.get("/v1/webhooks").await.with(200).json()["webhooks"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 100);
    for hook in &listed[..2] {
        let path = format!("/v1/webhooks/{}", hook["webhook_id"].as_str().unwrap());
        server.client().await.ask("DELETE", &path, &[], None).await.with(204);
    }
    let keyed = async |port: u16| {
        let body = json!({"url": format!("http://127.0.0.1:{port}/")});
        server.client().await.ask("POST", "/v1/webhooks", &[("Idempotency-Key", "same")], Some(&body)).await.status
    };
    let mut statuses = futures_util::future::join_all((9..13).map(keyed)).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 422, 422, 422]);
    server.end().await;
}

/// Goal: by default nothing is sent into a private network, also not by a name that stands for such an address.
#[tokio::test(flavor = "multi_thread")]
async fn by_default_nothing_goes_inside() {
    let (url, mut got) = receiver(0).await;
    let guarded = Outbound::new(TargetGuard::default()).unwrap();
    assert!(guarded.post(&url, &[], b"{}".to_vec()).await.unwrap_err().to_string().contains("private"));
    let by_name = url.replace("127.0.0.1", "localhost");
    assert!(guarded.post(&by_name, &[], b"{}".to_vec()).await.is_err());
    let open = Outbound::new(TargetGuard { allow_private: true }).unwrap();
    let answer = open.post(&by_name, &[("Leasehold-Signature", "x")], b"{}".to_vec()).await.unwrap();
    assert_eq!(answer.status, 204);
    assert_eq!(got.recv().await.unwrap().1, b"{}");
    assert!(got.try_recv().is_err(), "the others never arrived");
}

//! How long a client may dawdle, by a clock that is set by hand.

use std::io::ErrorKind;
use std::time::Duration;

use super::Timed;
use super::client::Client;

/// Whether the server has not hung up.
fn is_open(client: &Client) -> bool {
    client.stream.get_ref().set_nonblocking(true).unwrap();
    let peeked = client.stream.get_ref().peek(&mut [0; 1]);
    client.stream.get_ref().set_nonblocking(false).unwrap();
    matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Goal: without a first byte a client is cut off after 5 s, with half a command after 10 s, neither before; who is merely
/// idle never.
#[tokio::test(flavor = "multi_thread")]
async fn silence_and_half_a_command_are_cut_off_each_at_its_limit() {
    let timed = Timed::open(Duration::ZERO, true).await;
    tokio::task::block_in_place(|| {
        let (mut silent, mut half) = (timed.house.connect(), timed.house.connect());
        half.send(b"PIN");
        let mut idle = timed.house.connect();
        // After the second answer the server has also looked at the others, at the time it is now.
        let mut looks = || (0..2).for_each(|_| assert_eq!(idle.ask(&["PING"]), "+PONG\r\n"));
        looks();
        timed.clock.advance(Duration::from_secs(5));
        looks();
        assert!(is_open(&silent) && is_open(&half), "not early");
        // It looks twice a second.
        timed.clock.advance(Duration::from_millis(500));
        assert_eq!(silent.reply(), b"", "no first byte");
        timed.clock.advance(Duration::from_millis(4500));
        looks();
        assert!(is_open(&half), "not early");
        timed.clock.advance(Duration::from_millis(500));
        assert_eq!(half.reply(), b"", "half a command");
        timed.clock.advance(Duration::from_secs(3600));
        looks();
        looks();
    });
    timed.house.end().await;
}

//! Raising the floor of tokens, and which engine it is.

use std::time::Duration;

use super::Subject;
use super::law_case::{LawCase, in_time};
use super::stopping::reopened;
use crate::engine::Token;
use crate::error::Error;

/// The token this far above another.
fn above(token: Token, by: u64) -> Token {
    Token::new(token.get() + by).expect("far below the last token")
}

impl LawCase<'_> {
    async fn floor(&self, raise: Option<Token>) -> Result<Token, Error> {
        in_time(self.engine.raise_floor(raise)).await
    }

    /// The floor after it was raised, or as it is.
    async fn floor_at(&self, raise: Option<Token>) -> Token {
        self.floor(raise).await.unwrap_or_else(|error| panic!("a floor of {raise:?} was not taken: {error:?}"))
    }

    /// The token of a lease that is taken and ended.
    async fn next_token(&self, name: &str) -> Token {
        let grant = self.granted(self.claim("ada", name)).await;
        self.end(&grant).await;
        grant.token.expect("fencing is promised")
    }
}

/// A case of an engine with tokens whose floor can be raised; none for others, which must say Invalid. An engine whose
/// tokens are another system's counter is one of them.
async fn with_floor(subject: &dyn Subject) -> Option<(LawCase<'_>, Token)> {
    let case = LawCase::new(subject).await;
    match case.floor(Some(Token::MIN)).await {
        Ok(floor) if case.promises.fencing => Some((case, floor)),
        Err(Error::Invalid(_)) => None,
        other => panic!("a floor is raised, or Invalid where it cannot be: {other:?}"),
    }
}

/// Goal: after the answer no token at or below the floor is granted: not to newcomers, not to those in line, on no name.
/// Method: floors just above the last token and far above it; bob waits while one of them is raised.
pub(super) async fn a_raised_floor_holds_for_every_later_grant(subject: &dyn Subject) {
    let Some((case, _)) = with_floor(subject).await else { return };
    for by in [1, 5, 1_000, 1 << 40] {
        let floor = above(case.next_token("seat").await, by);
        assert!(case.floor_at(Some(floor)).await >= floor, "the answer is the floor, or above it");
        for name in ["seat", "other seat", "seat"] {
            let token = case.next_token(name).await;
            assert!(token > floor, "token {token} after the floor was raised to {floor}");
        }
    }
    if case.promises.fair {
        let ada = case.granted(case.claim("ada", "seat")).await;
        let bob = case.in_line(case.patient("bob", "seat")).await;
        let floor = above(ada.token.expect("fencing is promised"), 1 << 41);
        case.floor_at(Some(floor)).await;
        case.end(&ada).await;
        let token = case.answered_with_a_grant(bob).await.token;
        assert!(token > Some(floor), "bob waited, and got {token:?} after the floor was raised to {floor}");
    }
}

/// Goal: a floor never goes down, and a lower one changes nothing.
/// Method: raise it, ask for lower ones, and look at answers and tokens.
pub(super) async fn a_floor_never_goes_down(subject: &dyn Subject) {
    let Some((case, first)) = with_floor(subject).await else { return };
    let floor = above(first, 5_000);
    case.floor_at(Some(floor)).await;
    for lower in [Token::MIN, first, above(first, 4_999), floor] {
        let answer = case.floor_at(Some(lower)).await;
        assert!(answer >= floor, "raised to {floor}, then {answer} after {lower} was asked for");
    }
    let token = case.next_token("seat").await;
    assert!(token > floor, "token {token} after the floor was raised to {floor}");
    let answer = case.floor_at(Some(floor)).await;
    assert!(answer >= token, "token {token} was granted, and {answer} is the floor");
}

/// Goal: to ask for the floor says what is true of every later token, and changes nothing.
/// Method: ask before and after grants; tokens go on as if nobody had asked.
pub(super) async fn a_floor_is_read_without_raising(subject: &dyn Subject) {
    let Some((case, mut last)) = with_floor(subject).await else { return };
    for _ in 0..3 {
        let floor = case.floor_at(None).await;
        assert!(floor >= last, "token {last} was granted, and {floor} is the floor");
        assert_eq!(case.floor_at(None).await, floor, "to ask raises nothing");
        let token = case.next_token("seat").await;
        assert!(token >= floor, "token {token} is below the floor {floor}");
        last = token;
    }
}

/// Goal: a floor that leaves too few tokens is Invalid, and changes nothing.
/// Method: the last token there can be, and those just above the highest floor.
pub(super) async fn a_floor_without_room_is_invalid(subject: &dyn Subject) {
    let Some((case, _)) = with_floor(subject).await else { return };
    let before = case.floor_at(None).await;
    for floor in [Token::MAX, above(Token::MAX_FLOOR, 1)] {
        let answer = case.floor(Some(floor)).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{floor}: {answer:?}");
    }
    assert_eq!(case.floor_at(None).await, before);
    let token = case.next_token("seat").await;
    assert!(token < Token::MAX_FLOOR, "token {token}");
}

/// Goal: a durable engine keeps its floor and its identity over a restart.
/// Method: raise the floor without any grant after it; restart; compare; twice.
pub(super) async fn a_floor_outlives_the_engine(subject: &dyn Subject) {
    let Some((mut case, first)) = with_floor(subject).await else { return };
    let mut floor = first;
    for by in [3, 1 << 33] {
        let identity = in_time(case.engine.identity()).await.expect("an identity or none");
        floor = above(floor, by);
        case.floor_at(Some(floor)).await;
        let Some(again) = reopened(case, Duration::ZERO).await else { return };
        case = again;
        assert_eq!(in_time(case.engine.identity()).await.expect("an identity or none"), identity);
        let kept = case.floor_at(None).await;
        assert!(kept >= floor, "raised to {floor}, and {kept} after a restart");
        let token = case.next_token("seat").await;
        assert!(token > floor, "token {token} after a restart, and the floor was raised to {floor} before it");
    }
}

/// Goal: an identity is text that can be shown and stored; it stays, and every client of the engine has the same.
/// Method: ask twice, with a grant in between, and then another client.
pub(super) async fn an_identity_is_one_for_all(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let first = in_time(case.engine.identity()).await.expect("an identity or none");
    case.granted(case.claim("ada", "seat")).await;
    assert_eq!(in_time(case.engine.identity()).await.expect("an identity or none"), first);
    if let Some(beside) = subject.beside().await {
        assert_eq!(in_time(beside.identity()).await.expect("an identity or none"), first);
    }
    if let Some(text) = first {
        assert!(!text.is_empty() && text.len() <= 256 && !text.contains(char::is_control), "{text:?}");
    }
}

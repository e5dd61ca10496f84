//! The rule of every fence, in one place.
//!
//! | shown | answer |
//! | --- | --- |
//! | higher than what is kept, or nothing is kept | admitted, and remembered in the same step as the write |
//! | equal, same mark | admitted: the same lease again |
//! | equal, and no mark is kept | admitted, and the mark is remembered: knowledge only grows |
//! | equal, another mark, or none where one is kept | refused, *other lease*: two engines give out the same tokens |
//! | lower | refused, *stale* |
//!
//! What was shown at all (nothing, something malformed, a token for other resources) is decided before:
//! [`FenceSetting`](super::FenceSetting).
//!
//! # Laws
//!
//! 1. The tokens of admitted writes never fall.
//! 2. What is refused leaves no trace.
//! 3. The newest holder is never refused, however often it writes.

use leasehold_core::Token;

use super::refusal::FenceRefusal;
use super::token_text::FenceToken;

/// What a fence answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceVerdict {
    /// Write. What the fence keeps already is what was shown.
    Admit,
    /// Write, and remember what was shown in the same step.
    AdmitAndRemember,
    /// Do not write: a higher token has been seen.
    Stale {
        /// The token that was shown.
        presented: Token,
        /// The highest one the fence has seen.
        highest: Token,
    },
    /// Do not write: the token is known, and belongs to another lease.
    OtherLease {
        /// The token that was shown, which is also the highest.
        presented: Token,
    },
}

/// Decides about a write.
///
/// ```
/// use leasehold::fence::{FenceToken, FenceVerdict, decide};
///
/// let kept: FenceToken = "41:0123456789abcdef".parse().unwrap();
/// let newer: FenceToken = "42:fedcba9876543210".parse().unwrap();
/// assert_eq!(decide(Some(kept), newer), FenceVerdict::AdmitAndRemember);
/// assert_eq!(decide(Some(kept), kept), FenceVerdict::Admit);
/// assert!(matches!(decide(Some(newer), kept), FenceVerdict::Stale { .. }));
/// ```
#[must_use]
pub fn decide(kept: Option<FenceToken>, shown: FenceToken) -> FenceVerdict {
    let Some(kept) = kept else { return FenceVerdict::AdmitAndRemember };
    if shown.token < kept.token {
        return FenceVerdict::Stale { presented: shown.token, highest: kept.token };
    }
    if shown.token > kept.token {
        return FenceVerdict::AdmitAndRemember;
    }
    match (kept.mark, shown.mark) {
        (kept, shown) if kept == shown => FenceVerdict::Admit,
        (None, Some(_)) => FenceVerdict::AdmitAndRemember,
        _ => FenceVerdict::OtherLease { presented: shown.token },
    }
}

impl FenceVerdict {
    /// Whether what was shown must be remembered, or the refusal for this resource.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub fn into_result(self, resource: &str) -> Result<bool, FenceRefusal> {
        let resource = resource.to_owned();
        match self {
            Self::Admit => Ok(false),
            Self::AdmitAndRemember => Ok(true),
            Self::Stale { presented, highest } => Err(FenceRefusal::Stale { resource, presented, highest }),
            Self::OtherLease { presented } => Err(FenceRefusal::OtherLease { resource, presented }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64, mark: u64) -> FenceToken {
        let text = if mark == 0 { number.to_string() } else { format!("{number}:{mark:016x}") };
        text.parse().unwrap()
    }

    /// Goal: the laws hold for every history of four writes.
    /// Method: all histories over three tokens and three marks (one of them none), against the laws themselves.
    #[test]
    fn admitted_tokens_never_fall_and_the_newest_is_never_refused() {
        for history in 0..9_u64.pow(4) {
            let mut kept: Option<FenceToken> = None;
            for step in 0..4 {
                let pick = history / 9_u64.pow(step) % 9;
                let shown = token(1 + pick / 3, pick % 3);
                let verdict = decide(kept, shown);
                let admitted = matches!(verdict, FenceVerdict::Admit | FenceVerdict::AdmitAndRemember);
                let highest = kept.map_or(0, |kept| kept.token.get());
                if shown.token.get() != highest {
                    assert_eq!(admitted, shown.token.get() > highest, "{history} {step}");
                } else {
                    let known = kept.and_then(|kept| kept.mark);
                    assert_eq!(admitted, known.is_none() || known == shown.mark, "{history} {step}");
                }
                if verdict == FenceVerdict::AdmitAndRemember {
                    kept = Some(shown);
                }
                assert!(!admitted || kept == Some(shown), "{history} {step}: an admitted write is remembered");
            }
        }
    }
}

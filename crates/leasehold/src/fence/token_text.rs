//! The texts in which a token travels to a resource.
//!
//! ```text
//! 42:0123456789abcdef                          speaks for whatever is written; the mark may be left out
//! 42:0123456789abcdef<TAB>seat/14<TAB>seat/15  speaks for these resources only
//! line<LF>line                                 several leases: the first line that speaks for the resource counts
//! ```
//!
//! The scoped form finds the forgotten lease: whoever writes to `seat/16` under a lease on `seat/14` is refused, and does
//! not fence out the rightful holder of `seat/16`.

use std::fmt;
use std::str::FromStr;

use leasehold_core::Token;

use super::refusal::{FenceError, FenceRefusal};
use crate::engine::LeaseId;
use crate::lease::FencedLease;

/// The digits of a mark.
const MARK_DIGITS: usize = 16;

/// The public mark of a lease: it tells two leases apart where their tokens are equal, and proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseMark(u64);

impl LeaseMark {
    /// The mark of a lease.
    #[must_use]
    pub fn from_lease_id(id: &LeaseId) -> Self {
        // The text of a mark is 16 hexadecimal digits: exactly a u64.
        Self(u64::from_str_radix(&id.mark(), 16).unwrap_or_default())
    }
}

impl fmt::Display for LeaseMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for LeaseMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseMark({self})")
    }
}

/// What is shown to a fence, and what a fence remembers: a token, and the mark of its lease where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FenceToken {
    /// The token of the lease.
    pub token: Token,
    /// The mark of the lease. Without it, two leases with the same token cannot be told apart.
    pub mark: Option<LeaseMark>,
}

impl FenceToken {
    /// What a lease shows.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a lease that shares a resource with others.
    pub fn from_lease(lease: &FencedLease) -> Result<Self, FenceError> {
        if !lease.is_exclusive() {
            return Err(FenceError::Invalid(
                "a fence is for exclusive leases: of two holders that share a resource, the one with the lower token \
                 would be refused while its lease is live"
                    .into(),
            ));
        }
        Ok(Self { token: lease.token(), mark: Some(LeaseMark::from_lease_id(lease.lease_id())) })
    }
}

impl From<Token> for FenceToken {
    fn from(token: Token) -> Self {
        Self { token, mark: None }
    }
}

impl fmt::Display for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mark {
            Some(mark) => write!(f, "{}:{mark}", self.token),
            None => self.token.fmt(f),
        }
    }
}

impl FromStr for FenceToken {
    type Err = FenceRefusal;

    fn from_str(text: &str) -> Result<Self, FenceRefusal> {
        let (number, mark) = match text.split_once(':') {
            Some((number, mark)) => (number, Some(parse_mark(mark)?)),
            None => (text, None),
        };
        // Digits only: the parser of numbers would take a plus sign and leading zeros.
        let plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
        let number = Some(number).filter(|_| plain).and_then(|number| number.parse().ok());
        let token = number.and_then(Token::new).ok_or(FenceRefusal::Malformed)?;
        Ok(Self { token, mark })
    }
}

fn parse_mark(text: &str) -> Result<LeaseMark, FenceRefusal> {
    let fits = text.len() == MARK_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let bits = u64::from_str_radix(text, 16).ok().filter(|_| fits);
    bits.map(LeaseMark).ok_or(FenceRefusal::Malformed)
}

/// The text of the setting `leasehold.token`, and of the environment variable `LEASEHOLD_FENCE`: which leases a writer
/// shows, and which resources each of them speaks for.
///
/// ```
/// use leasehold::fence::{FenceRefusal, FenceSetting};
///
/// let setting: FenceSetting = "42:0123456789abcdef\tseat/14".parse().unwrap();
/// assert_eq!(setting.pick_for("seat/14").unwrap().token.get(), 42);
/// assert!(matches!(setting.pick_for("seat/15"), Err(FenceRefusal::NotCovered { .. })));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceSetting {
    /// The token, and the resources that it speaks for; none: for all.
    lines: Vec<(FenceToken, Option<Vec<String>>)>,
}

impl FenceSetting {
    /// What a lease shows: its token, for its own resources only.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a lease that shares a resource with others.
    pub fn for_lease(lease: &FencedLease) -> Result<Self, FenceError> {
        Self::for_leases([lease])
    }

    /// What several leases show together, for a write that needs them all.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a lease that shares a resource with others.
    pub fn for_leases<'l>(leases: impl IntoIterator<Item = &'l FencedLease>) -> Result<Self, FenceError> {
        let line = |lease: &FencedLease| Ok((FenceToken::from_lease(lease)?, Some(lease.resources().to_vec())));
        leases.into_iter().map(line).collect::<Result<_, _>>().map(|lines| Self { lines })
    }

    /// A token that speaks for whatever is written.
    #[must_use]
    pub fn unscoped(shown: FenceToken) -> Self {
        Self { lines: vec![(shown, None)] }
    }

    /// The token that speaks for a resource.
    ///
    /// # Errors
    ///
    /// [`FenceRefusal::NotCovered`]: none does.
    pub fn pick_for(&self, resource: &str) -> Result<FenceToken, FenceRefusal> {
        let speaks =
            |names: &Option<Vec<String>>| names.as_ref().is_none_or(|names| names.iter().any(|name| name == resource));
        let found = self.lines.iter().find(|(_, names)| speaks(names));
        found.map(|(shown, _)| *shown).ok_or_else(|| FenceRefusal::NotCovered { resource: resource.to_owned() })
    }
}

impl fmt::Display for FenceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (shown, names)) in self.lines.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            shown.fmt(f)?;
            for name in names.iter().flatten() {
                write!(f, "\t{name}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for FenceSetting {
    type Err = FenceRefusal;

    fn from_str(text: &str) -> Result<Self, FenceRefusal> {
        let line = |line: &str| {
            let (head, names) = match line.split_once('\t') {
                Some((head, names)) => (head, Some(names.split('\t').map(str::to_owned).collect())),
                None => (line, None),
            };
            Ok((head.parse()?, names))
        };
        text.split('\n').map(line).collect::<Result<_, _>>().map(|lines| Self { lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text() {
        for text in ["1", "42:0123456789abcdef", "9223372036854775807:ffffffffffffffff", "7:0000000000000000"] {
            assert_eq!(text.parse::<FenceToken>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_token_is_malformed() {
        for text in [
            "",
            "0",
            "042",
            "+42",
            "-1",
            " 42",
            "42 ",
            "4 2",
            "42:",
            "42:0123",
            "42:0123456789ABCDEF",
            "42:0123456789abcdef0",
            "42:+123456789abcdef",
            ":0123456789abcdef",
            "9223372036854775808",
            "18446744073709551616",
            "1e3",
            "4२",
        ] {
            assert_eq!(text.parse::<FenceToken>(), Err(FenceRefusal::Malformed), "{text:?}");
            assert_eq!(format!("{text}\tseat/1").parse::<FenceSetting>(), Err(FenceRefusal::Malformed), "{text:?}");
        }
    }

    #[test]
    fn a_setting_survives_its_text_and_picks_the_first_line_that_speaks() {
        let text = "7:0123456789abcdef\ta\tb\n9\tb\tc d\n11";
        let setting: FenceSetting = text.parse().unwrap();
        assert_eq!(setting.to_string(), text);
        for (resource, token) in [("a", 7), ("b", 7), ("c d", 9), ("c", 11), ("", 11)] {
            assert_eq!(setting.pick_for(resource).unwrap().token.get(), token, "{resource}");
        }
        let scoped: FenceSetting = "7\tab".parse().unwrap();
        for resource in ["a", "b", "abc", "", "ab\t"] {
            let refused = Err(FenceRefusal::NotCovered { resource: resource.to_owned() });
            assert_eq!(scoped.pick_for(resource), refused, "{resource}");
        }
    }

    #[test]
    fn a_mark_is_the_mark_of_its_lease() {
        let id = LeaseId::new("2a-0123456789abcdef0123456789abcdef");
        assert_eq!(LeaseMark::from_lease_id(&id).to_string(), id.mark());
    }
}

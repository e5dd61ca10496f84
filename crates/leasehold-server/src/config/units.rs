//! Durations and sizes as people write them in a config file: `30s`, `64KiB`.

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

use leasehold_support::duration;

/// A duration: `500ms`, `30s`, `5m`, `1h30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigDuration(pub Duration);

impl ConfigDuration {
    /// So many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// In whole milliseconds.
    pub fn millis(self) -> u64 {
        duration::millis(self.0)
    }
}

impl fmt::Display for ConfigDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration::human(self.0))
    }
}

impl<'de> Deserialize<'de> for ConfigDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = ConfigDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, e.g. \"30s\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ConfigDuration, E> {
                duration::parse(text).map(ConfigDuration).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// A number of bytes: `65536`, `"64KiB"`, `"8MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigSize(pub usize);

const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl ConfigSize {
    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = if unit.is_empty() { "B" } else { unit };
        let known = UNITS.iter().find(|(name, _)| *name == unit).filter(|_| digits > 0);
        let (_, times) = known.ok_or("not a size: say e.g. 4096, 64KiB or 8MiB")?;
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*times));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or("larger than any size we can count")?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for ConfigSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as u64;
        let (name, times) =
            UNITS.into_iter().find(|(_, times)| bytes >= *times && bytes.is_multiple_of(*times)).unwrap_or(("B", 1));
        write!(f, "{}{name}", bytes / times)
    }
}

impl<'de> Deserialize<'de> for ConfigSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;
        impl Visitor<'_> for TextOrNumber {
            type Value = ConfigSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size, e.g. 4096 or \"64KiB\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ConfigSize, E> {
                ConfigSize::parse(text).map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<ConfigSize, E> {
                usize::try_from(bytes).map(ConfigSize).map_err(|_| E::custom("a size is not negative"))
            }
        }
        deserializer.deserialize_any(TextOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let table = [("0", 0), ("7", 7), ("7B", 7), ("64KiB", 65_536), ("8MiB", 8 << 20), ("1GiB", 1 << 30)];
        for (text, bytes) in table {
            assert_eq!(ConfigSize::parse(text), Ok(ConfigSize(bytes)), "{text}");
            assert_eq!(ConfigSize::parse(&ConfigSize(bytes).to_string()), Ok(ConfigSize(bytes)));
        }
        for text in ["", "KiB", "8 MiB", "8mb", "-1", "1.5MiB", "99999999999GiB", "18446744073709551616"] {
            assert!(ConfigSize::parse(text).is_err(), "{text}");
        }
    }
}

//! Names and moments.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest name of an event, a hold, an order or a buyer, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether it is of a shape that may be stored: 1 to 128 bytes, no control characters.
            #[must_use]
            pub fn is_well_formed(&self) -> bool {
                well_formed(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

name! {
    /// An event: an evening in a hall.
    EventId
}
name! {
    /// A hold. Public: lists, audit, payment metadata.
    HoldId
}
name! {
    /// An order. One hold becomes at most one order, and the name says which: see [`OrderId::for_hold`].
    OrderId
}
name! {
    /// Who buys, as the shop knows them.
    Buyer
}

impl OrderId {
    /// The order that this hold becomes. A retried confirm therefore cannot make two.
    #[must_use]
    pub fn for_hold(hold: &HoldId) -> Self {
        let bare = hold.0.strip_prefix("h_").unwrap_or(&hold.0);
        Self(format!("o_{bare}"))
    }
}

/// Whether a text may be stored as a name.
#[must_use]
pub fn well_formed(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

/// A moment on the ledger's own clock, in milliseconds. Nobody else's clock is compared with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// This moment plus milliseconds; the end of time if that is past it.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// Milliseconds from `earlier` to this; zero if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

//! Bugs planted on purpose, to prove that the checkers catch them. A bug is switched on for one thread.

/// A bug somebody shipped once, ready to be switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Bug {
    /// None of them.
    None = 0,
    /// A sale does not look whether the hold is still live.
    SellDead,
    /// A hold displaces one that is still live.
    DisplaceLive,
    /// The cap of a buyer counts only what is held, not what is sold.
    CapHeldOnly,
    /// A hold opens whatever the buyer has.
    NoCap,
    /// An area is not counted before it is held.
    Oversell,
    /// A renewal goes past the cap of the hold.
    RenewPastCap,
    /// A lapse leaves its seats behind.
    LapseKeepsSeats,
    /// A buyer's own confirm sells whatever the hold costs.
    SellUnpaid,
    /// A payment buys a hold that it is not for, whatever came of it.
    AnyPaymentBuys,
    /// An offer for late money goes back to active when a payment is declined, and is bought with the old money.
    OfferGrows,
    /// A seat is taken with a token that is not above the last one.
    TokensGoBack,
}

impl Bug {
    /// Every bug that can be planted.
    pub const ALL: [Self; 11] = [
        Self::SellDead,
        Self::DisplaceLive,
        Self::CapHeldOnly,
        Self::NoCap,
        Self::Oversell,
        Self::RenewPastCap,
        Self::LapseKeepsSeats,
        Self::SellUnpaid,
        Self::AnyPaymentBuys,
        Self::OfferGrows,
        Self::TokensGoBack,
    ];
}

thread_local! {
    static SWITCH: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

/// Switches one bug on (and the others off), on this thread.
pub fn plant(bug: Bug) {
    SWITCH.set(bug as u8);
}

/// Whether this bug is switched on, on this thread.
#[must_use]
pub fn on(bug: Bug) -> bool {
    SWITCH.get() == bug as u8
}

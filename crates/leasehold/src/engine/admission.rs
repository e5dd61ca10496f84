//! Who is admitted to a resource: one rule, for engines that keep their contenders in one total order.
//!
//! A contender is whoever holds the resource or waits for it. A holder was admitted earlier, so it counts as everybody
//! before it does. The book of the embedded engine and the scripts of other engines decide by sums instead; tests
//! compare them with this.

use super::Mode;

/// Whether a contender with this mode is admitted, given the modes of all contenders before it, in any order.
///
/// Exclusive: it is the first. Shared: all before it are shared. Permits: all before it are permits of the same
/// capacity, and there are enough for all of them together.
#[must_use]
pub fn is_admitted(before: impl IntoIterator<Item = Mode>, mode: Mode) -> bool {
    let mut before = before.into_iter();
    match mode {
        Mode::Exclusive => before.next().is_none(),
        Mode::Shared => before.all(|other| other == Mode::Shared),
        Mode::Permits { count, capacity } => {
            let mut taken = u64::from(count);
            before.all(|other| match other {
                Mode::Permits { count, capacity: same } if same == capacity => {
                    taken += u64::from(count);
                    true
                }
                _ => false,
            }) && taken <= u64::from(capacity)
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Acquire, Book, Command, Limits, Reply, Secret, Time, WaiterId, Want};
    use proptest::prelude::*;

    use super::*;

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            2 => Just(Mode::Exclusive),
            3 => Just(Mode::Shared),
            4 => (1..4u32).prop_map(|count| Mode::Permits { count, capacity: 4 }),
        ]
    }

    proptest! {
        /// Goal: the rule decides as the book does, for everybody who comes to one resource and waits.
        #[test]
        fn the_book_admits_whom_the_rule_admits(modes in prop::collection::vec(any_mode(), 1..12)) {
            let mut book = Book::new(Limits::default(), 1);
            book.set_ceiling(u64::MAX);
            for (at, mode) in modes.iter().enumerate() {
                let wants = [Want { name: "r", mode: *mode }];
                let id = WaiterId(at as u64 + 1);
                let claim = Acquire { wait_ms: 1000, ..Acquire::new(id, &wants, 1000, "", Secret::new([at as u8; 16])) };
                let reply = book.apply(Command::Acquire(claim), Time::from_millis(5)).reply;
                let admitted = is_admitted(modes[..at].iter().copied(), *mode);
                prop_assert_eq!(matches!(reply, Reply::Granted(_)), admitted, "{:?} after {:?}", mode, &modes[..at]);
            }
        }
    }

    #[test]
    fn another_capacity_is_not_admitted() {
        let permits = |count, capacity| Mode::Permits { count, capacity };
        assert!(is_admitted([permits(1, 3)], permits(2, 3)));
        assert!(!is_admitted([permits(1, 3)], permits(3, 3)));
        assert!(!is_admitted([permits(1, 4)], permits(1, 3)));
        assert!(!is_admitted([permits(u32::MAX, u32::MAX)], permits(1, u32::MAX)), "no overflow");
    }
}

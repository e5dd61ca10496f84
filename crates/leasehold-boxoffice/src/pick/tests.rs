//! Picks against a plain model that tries everything.

use proptest::prelude::*;

use super::*;
use crate::layout::{Layout, Seat};

fn seat(section: &str, row: &str, number: u32, price: u64) -> Seat {
    Seat { id: format!("{section}-{row}-{number}"), section: section.into(), row: row.into(), number, price }
}

/// Rows as text: `.` free, `x` taken, a blank is an aisle. The first letter before `:` is the section.
fn stage(rows: &[&str]) -> (SeatIndex, FreeSet) {
    let mut layout = Layout::default();
    let mut taken = Vec::new();
    for (at, text) in rows.iter().enumerate() {
        let (section, seats) = text.split_once(':').unwrap();
        for (number, mark) in (1u32..).zip(seats.chars()).filter(|(_, mark)| *mark != ' ') {
            let price = if section == "A" { 5000 } else { 3000 };
            let seat = seat(section, &at.to_string(), number, price);
            if mark == 'x' {
                taken.push(seat.id.clone());
            }
            layout.seats.push(seat);
        }
    }
    let index = SeatIndex::new(&layout);
    let mut free = FreeSet::new(&index, true);
    taken.iter().for_each(|id| free.set(index.position(id).unwrap(), false));
    (index, free)
}

fn ids(index: &SeatIndex, positions: Option<Vec<SeatPosition>>) -> Vec<String> {
    positions.into_iter().flatten().map(|position| index.seat(position).id.clone()).collect()
}

const fn ask(qty: usize, adjacent: bool, no_orphans: bool) -> PickRequest<'static> {
    PickRequest { qty, section: None, adjacent, no_orphans }
}

/// Goal: the best seats are the centre of the first row, then of the next; a section that is asked for comes first.
#[test]
fn the_centre_of_the_first_row_is_best() {
    let (index, free) = stage(&["A:.......", "A:.......", "B:...."]);
    assert_eq!(ids(&index, best(&index, &free, &ask(1, true, false))), ["A-0-4"]);
    assert_eq!(ids(&index, best(&index, &free, &ask(2, true, false))), ["A-0-3", "A-0-4"], "the lower of two as good");
    let (index, free) = stage(&["A:..xxx..", "A:...x...", "B:...."]);
    assert_eq!(ids(&index, best(&index, &free, &ask(3, true, false))), ["A-1-1", "A-1-2", "A-1-3"]);
    assert_eq!(ids(&index, best(&index, &free, &ask(4, true, false))), ["B-2-1", "B-2-2", "B-2-3", "B-2-4"]);
    assert_eq!(best(&index, &free, &ask(5, true, false)), None);
    let in_b = PickRequest { section: Some("B"), ..ask(1, false, false) };
    assert_eq!(ids(&index, best(&index, &free, &in_b)), ["B-2-2"]);
    assert_eq!(best(&index, &free, &PickRequest { section: Some("C"), ..in_b }), None);
    for silly in [0, MAX_SEATS_PER_PICK + 1, usize::MAX] {
        assert_eq!(best(&index, &free, &ask(silly, false, true)), None);
    }
}

/// Goal: seats on both sides of an aisle are not side by side.
#[test]
fn an_aisle_parts_neighbours() {
    let (index, free) = stage(&["A:.. .."]);
    assert_eq!(best(&index, &free, &ask(3, true, false)), None);
    assert_eq!(ids(&index, best(&index, &free, &ask(3, false, false))).len(), 3);
    let positions: Vec<SeatPosition> = ["A-0-2", "A-0-4"].map(|id| index.position(id).unwrap()).to_vec();
    assert!(!are_adjacent(&index, &positions));
    assert_eq!(orphans(&index, &free, &positions[..1]), [0]);
}

/// Goal: a choice that leaves one seat alone is known; one that was alone before is nobody's orphan.
#[test]
fn orphans_are_what_the_choice_leaves_alone() {
    let (index, free) = stage(&["A:.....x.x"]);
    let after = |ids: &[u32]| {
        let chosen: Vec<SeatPosition> = ids.iter().map(|id| index.position(&format!("A-0-{id}")).unwrap()).collect();
        orphans(&index, &free, &chosen).iter().map(|position| index.seat(*position).number).collect::<Vec<_>>()
    };
    assert_eq!(after(&[2]), [1]);
    assert_eq!(after(&[1]), [0u32; 0]);
    assert_eq!(after(&[2, 4]), [1, 3, 5]);
    assert_eq!(after(&[1, 2, 3, 4]), [5]);
    assert_eq!(after(&[1, 2, 3, 4, 5]), [0u32; 0]);
    assert_eq!(after(&[7]), [0u32; 0]);
}

/// Goal: with the rule, a pick goes elsewhere before it leaves an orphan, and leaves one before it refuses.
#[test]
fn the_orphan_rule_never_costs_a_pick() {
    let (index, free) = stage(&["A:...", "A:xx..x"]);
    assert_eq!(ids(&index, best(&index, &free, &ask(2, true, false))), ["A-0-1", "A-0-2"]);
    assert_eq!(ids(&index, best(&index, &free, &ask(2, true, true))), ["A-1-3", "A-1-4"]);
    let (index, free) = stage(&["A:..."]);
    assert_eq!(ids(&index, best(&index, &free, &ask(2, true, true))), ["A-0-1", "A-0-2"], "there is no other");
    let (index, free) = stage(&["A:x..x..x"]);
    assert_eq!(ids(&index, best(&index, &free, &ask(3, false, true))).len(), 3);
}

/// Goal: what is offered instead is near, as many, side by side if the choice was, and no dearer.
#[test]
fn an_alternative_is_near_and_no_dearer() {
    let (index, free) = stage(&["A:....xx..", "A:........", "B:........"]);
    let positions = |ids: &[&str]| ids.iter().map(|id| index.position(id).unwrap()).collect::<Vec<_>>();
    let other = |ids: &[&str], rule| self::ids(&index, alternative(&index, &free, &positions(ids), rule));
    assert_eq!(other(&["A-0-5", "A-0-6"], false), ["A-0-3", "A-0-4"]);
    assert_eq!(other(&["A-0-4", "A-0-5", "A-0-6"], false), ["A-0-2", "A-0-3", "A-0-4"], "the same row");
    assert_eq!(other(&["A-0-4", "A-0-5", "A-0-6"], true), ["A-1-4", "A-1-5", "A-1-6"], "but for the orphan");
    assert_eq!(other(&["A-0-1", "A-0-5"], false), ["A-0-1", "A-0-4"], "what is free stays");
    let (index, free) = stage(&["A:........", "B:xxx"]);
    let lost: Vec<SeatPosition> = ["B-1-1", "B-1-2"].map(|id| index.position(id).unwrap()).to_vec();
    assert_eq!(alternative(&index, &free, &lost, false), None, "only dearer seats are left");
    assert_eq!(alternative(&index, &free, &[], false), None);
}

/// Goal: a choice with an orphan is refused only with a clean offer of the same section in hand.
#[test]
fn an_orphan_is_refused_only_with_an_offer() {
    let (index, free) = stage(&["A:...", "A:xxxx", "B:....."]);
    let chosen = [index.position("A-0-2").unwrap()];
    assert_eq!(ids(&index, avoid_orphan(&index, &free, &chosen)), ["A-0-1"]);
    let both = ["A-0-1", "A-0-2"].map(|id| index.position(id).unwrap());
    assert_eq!(avoid_orphan(&index, &free, &both), None, "no other two in A: the sale goes on");
    assert_eq!(avoid_orphan(&index, &free, &[index.position("A-0-1").unwrap()]), None, "it leaves none");
}

/// Every choice of so many free seats, for halls small enough.
fn choices(free: &[SeatPosition], qty: usize) -> Vec<Vec<SeatPosition>> {
    match (qty, free) {
        (0, _) => vec![Vec::new()],
        (_, []) => Vec::new(),
        (_, [first, rest @ ..]) => {
            let mut with: Vec<Vec<SeatPosition>> = choices(rest, qty - 1);
            with.iter_mut().for_each(|choice| choice.insert(0, *first));
            with.extend(choices(rest, qty));
            with
        }
    }
}

fn small_hall() -> impl Strategy<Value = (SeatIndex, FreeSet)> {
    let row = ("[AB]:", "[.x ]{1,6}").prop_map(|(section, seats)| format!("{section}{seats}"));
    prop::collection::vec(row, 1..4).prop_map(|rows| {
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        stage(&rows)
    })
}

proptest! {
    /// Goal: a pick keeps laws 1, 2 and 4, and there is none only where there is no choice at all.
    /// Method: compare with every choice there is.
    #[test]
    fn picks_keep_their_laws((index, free) in small_hall(), qty in 1usize..6, adjacent: bool, no_orphans: bool) {
        let open: Vec<SeatPosition> = (0..index.len()).filter(|position| free.is_free(*position)).collect();
        let mut all = choices(&open, qty);
        if adjacent {
            all.retain(|choice| are_adjacent(&index, choice));
        }
        let picked = best(&index, &free, &ask(qty, adjacent, no_orphans));
        prop_assert_eq!(picked.is_some(), !all.is_empty());
        if let Some(mut picked) = picked {
            picked.sort_unstable();
            prop_assert!(all.contains(&picked), "{:?}", picked);
            let clean = |choice: &Vec<SeatPosition>| orphans(&index, &free, choice).is_empty();
            if no_orphans && all.iter().any(clean) {
                prop_assert!(clean(&picked), "{:?} leaves an orphan", picked);
            }
            prop_assert_eq!(best(&index, &free, &ask(qty, adjacent, no_orphans)).map(|mut p| { p.sort_unstable(); p }), Some(picked));
        }
    }

    /// Goal: an alternative is free, as many, adjacent if the choice was, and no dearer; and for adjacent choices there
    /// is one wherever there can be one, without an orphan if that can be.
    #[test]
    fn alternatives_keep_their_laws((index, free) in small_hall(), qty in 1usize..4, at in any::<prop::sample::Index>(), rule: bool) {
        prop_assume!(index.len() >= qty);
        let all: Vec<SeatPosition> = (0..index.len()).collect();
        let wanted = choices(&all, qty);
        let wanted = at.get(&wanted);
        let open: Vec<SeatPosition> = all.into_iter().filter(|position| free.is_free(*position)).collect();
        let together = are_adjacent(&index, wanted);
        let fits = |choice: &Vec<SeatPosition>| {
            index.total(choice) <= index.total(wanted) && (!together || are_adjacent(&index, choice))
        };
        let fitting: Vec<Vec<SeatPosition>> = choices(&open, qty).into_iter().filter(fits).collect();
        let offer = alternative(&index, &free, wanted, rule);
        if together {
            prop_assert_eq!(offer.is_some(), !fitting.is_empty());
        }
        if let Some(offer) = offer {
            prop_assert!(fitting.contains(&offer), "{:?}", offer);
            let clean = |choice: &Vec<SeatPosition>| orphans(&index, &free, choice).is_empty();
            if rule && together && fitting.iter().any(clean) {
                prop_assert!(clean(&offer), "{:?}", offer);
            }
        }
    }

    /// Goal: an orphan is refused only with an offer that keeps law 5.
    #[test]
    fn offers_for_orphans_keep_their_law((index, free) in small_hall(), qty in 1usize..4, at in any::<prop::sample::Index>()) {
        let open: Vec<SeatPosition> = (0..index.len()).filter(|position| free.is_free(*position)).collect();
        let chosen = choices(&open, qty);
        prop_assume!(!chosen.is_empty());
        let chosen = at.get(&chosen);
        if let Some(offer) = avoid_orphan(&index, &free, chosen) {
            prop_assert!(!orphans(&index, &free, chosen).is_empty());
            prop_assert!(orphans(&index, &free, &offer).is_empty());
            prop_assert!(are_adjacent(&index, &offer) && offer.len() == qty && offer.iter().all(|p| free.is_free(*p)));
            prop_assert!(index.total(&offer) <= index.total(chosen));
            prop_assert!(offer.iter().all(|position| index.section_of(*position) == index.section_of(chosen[0])));
        }
    }
}

/// Goal: the index says of every seat what the layout said, whatever the order of the file.
#[test]
fn the_hall_is_in_order() {
    let mut layout = Layout::default();
    for (section, row, number) in [("B", "2", 3), ("B", "2", 1), ("A", "1", 9), ("B", "1", 1), ("B", "2", 2)] {
        layout.seats.push(seat(section, row, number, 1));
    }
    let index = SeatIndex::new(&layout);
    let order: Vec<&str> = index.seats().map(|seat| seat.id.as_str()).collect();
    assert_eq!(order, ["B-2-1", "B-2-2", "B-2-3", "B-1-1", "A-1-9"]);
    assert!(index.seats().enumerate().all(|(at, seat)| index.position(&seat.id) == Some(at)));
    assert_eq!(index.position("nobody"), None);
    let mut free = FreeSet::new(&index, true);
    assert_eq!(free.count(), 5);
    free.set(2, false);
    assert_eq!((free.count(), free.is_free(2), free.is_free(99)), (4, false, false));
}

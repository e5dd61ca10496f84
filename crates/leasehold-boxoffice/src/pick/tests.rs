//! Picks against a plain model that tries everything.

use proptest::prelude::*;

use super::*;
use crate::layout::{Layout, Seat};

fn seat(section: &str, row: &str, number: u32, price: u64) -> Seat {
    Seat { id: format!("{section}-{row}-{number}"), section: section.into(), row: row.into(), number, price }
}

/// Rows as text: `.` free, `x` taken, a blank is an aisle. The first letter before `:` is the section.
fn stage(rows: &[&str]) -> (Hall, Free) {
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
    let hall = Hall::new(&layout);
    let mut free = Free::new(&hall, true);
    taken.iter().for_each(|id| free.set(hall.place(id).unwrap(), false));
    (hall, free)
}

fn ids(hall: &Hall, places: Option<Vec<Place>>) -> Vec<String> {
    places.into_iter().flatten().map(|place| hall.seat(place).id.clone()).collect()
}

const fn ask(qty: usize, adjacent: bool, no_orphans: bool) -> Ask<'static> {
    Ask { qty, section: None, adjacent, no_orphans }
}

/// Goal: the best seats are the centre of the first row, then of the next; a section that is asked for comes first.
#[test]
fn the_centre_of_the_first_row_is_best() {
    let (hall, free) = stage(&["A:.......", "A:.......", "B:...."]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(1, true, false))), ["A-0-4"]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(2, true, false))), ["A-0-3", "A-0-4"], "the lower of two as good");
    let (hall, free) = stage(&["A:..xxx..", "A:...x...", "B:...."]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(3, true, false))), ["A-1-1", "A-1-2", "A-1-3"]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(4, true, false))), ["B-2-1", "B-2-2", "B-2-3", "B-2-4"]);
    assert_eq!(best(&hall, &free, &ask(5, true, false)), None);
    let in_b = Ask { section: Some("B"), ..ask(1, false, false) };
    assert_eq!(ids(&hall, best(&hall, &free, &in_b)), ["B-2-2"]);
    assert_eq!(best(&hall, &free, &Ask { section: Some("C"), ..in_b }), None);
    for silly in [0, MOST + 1, usize::MAX] {
        assert_eq!(best(&hall, &free, &ask(silly, false, true)), None);
    }
}

/// Goal: seats on both sides of an aisle are not side by side.
#[test]
fn an_aisle_parts_neighbours() {
    let (hall, free) = stage(&["A:.. .."]);
    assert_eq!(best(&hall, &free, &ask(3, true, false)), None);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(3, false, false))).len(), 3);
    let places: Vec<Place> = ["A-0-2", "A-0-4"].map(|id| hall.place(id).unwrap()).to_vec();
    assert!(!are_adjacent(&hall, &places));
    assert_eq!(orphans(&hall, &free, &places[..1]), [0]);
}

/// Goal: a choice that leaves one seat alone is known; one that was alone before is nobody's orphan.
#[test]
fn orphans_are_what_the_choice_leaves_alone() {
    let (hall, free) = stage(&["A:.....x.x"]);
    let after = |ids: &[u32]| {
        let chosen: Vec<Place> = ids.iter().map(|id| hall.place(&format!("A-0-{id}")).unwrap()).collect();
        orphans(&hall, &free, &chosen).iter().map(|place| hall.seat(*place).number).collect::<Vec<_>>()
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
    let (hall, free) = stage(&["A:...", "A:xx..x"]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(2, true, false))), ["A-0-1", "A-0-2"]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(2, true, true))), ["A-1-3", "A-1-4"]);
    let (hall, free) = stage(&["A:..."]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(2, true, true))), ["A-0-1", "A-0-2"], "there is no other");
    let (hall, free) = stage(&["A:x..x..x"]);
    assert_eq!(ids(&hall, best(&hall, &free, &ask(3, false, true))).len(), 3);
}

/// Goal: what is offered instead is near, as many, side by side if the choice was, and no dearer.
#[test]
fn an_alternative_is_near_and_no_dearer() {
    let (hall, free) = stage(&["A:....xx..", "A:........", "B:........"]);
    let places = |ids: &[&str]| ids.iter().map(|id| hall.place(id).unwrap()).collect::<Vec<_>>();
    let other = |ids: &[&str], rule| self::ids(&hall, alternative(&hall, &free, &places(ids), rule));
    assert_eq!(other(&["A-0-5", "A-0-6"], false), ["A-0-3", "A-0-4"]);
    assert_eq!(other(&["A-0-4", "A-0-5", "A-0-6"], false), ["A-0-2", "A-0-3", "A-0-4"], "the same row");
    assert_eq!(other(&["A-0-4", "A-0-5", "A-0-6"], true), ["A-1-4", "A-1-5", "A-1-6"], "but for the orphan");
    assert_eq!(other(&["A-0-1", "A-0-5"], false), ["A-0-1", "A-0-4"], "what is free stays");
    let (hall, free) = stage(&["A:........", "B:xxx"]);
    let lost: Vec<Place> = ["B-1-1", "B-1-2"].map(|id| hall.place(id).unwrap()).to_vec();
    assert_eq!(alternative(&hall, &free, &lost, false), None, "only dearer seats are left");
    assert_eq!(alternative(&hall, &free, &[], false), None);
}

/// Goal: a choice with an orphan is refused only with a clean offer of the same section in hand.
#[test]
fn an_orphan_is_refused_only_with_an_offer() {
    let (hall, free) = stage(&["A:...", "A:xxxx", "B:....."]);
    let chosen = [hall.place("A-0-2").unwrap()];
    assert_eq!(ids(&hall, instead_of_orphan(&hall, &free, &chosen)), ["A-0-1"]);
    let both = ["A-0-1", "A-0-2"].map(|id| hall.place(id).unwrap());
    assert_eq!(instead_of_orphan(&hall, &free, &both), None, "no other two in A: the sale goes on");
    assert_eq!(instead_of_orphan(&hall, &free, &[hall.place("A-0-1").unwrap()]), None, "it leaves none");
}

/// Every choice of so many free seats, for halls small enough.
fn choices(free: &[Place], qty: usize) -> Vec<Vec<Place>> {
    match (qty, free) {
        (0, _) => vec![Vec::new()],
        (_, []) => Vec::new(),
        (_, [first, rest @ ..]) => {
            let mut with: Vec<Vec<Place>> = choices(rest, qty - 1);
            with.iter_mut().for_each(|choice| choice.insert(0, *first));
            with.extend(choices(rest, qty));
            with
        }
    }
}

fn small_hall() -> impl Strategy<Value = (Hall, Free)> {
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
    fn picks_keep_their_laws((hall, free) in small_hall(), qty in 1usize..6, adjacent: bool, no_orphans: bool) {
        let open: Vec<Place> = (0..hall.len()).filter(|place| free.is_free(*place)).collect();
        let mut all = choices(&open, qty);
        if adjacent {
            all.retain(|choice| are_adjacent(&hall, choice));
        }
        let picked = best(&hall, &free, &ask(qty, adjacent, no_orphans));
        prop_assert_eq!(picked.is_some(), !all.is_empty());
        if let Some(mut picked) = picked {
            picked.sort_unstable();
            prop_assert!(all.contains(&picked), "{:?}", picked);
            let clean = |choice: &Vec<Place>| orphans(&hall, &free, choice).is_empty();
            if no_orphans && all.iter().any(clean) {
                prop_assert!(clean(&picked), "{:?} leaves an orphan", picked);
            }
            prop_assert_eq!(best(&hall, &free, &ask(qty, adjacent, no_orphans)).map(|mut p| { p.sort_unstable(); p }), Some(picked));
        }
    }

    /// Goal: an alternative is free, as many, adjacent if the choice was, and no dearer; and for adjacent choices there
    /// is one wherever there can be one, without an orphan if that can be.
    #[test]
    fn alternatives_keep_their_laws((hall, free) in small_hall(), qty in 1usize..4, at in any::<prop::sample::Index>(), rule: bool) {
        prop_assume!(hall.len() >= qty);
        let all: Vec<Place> = (0..hall.len()).collect();
        let wanted = choices(&all, qty);
        let wanted = at.get(&wanted);
        let open: Vec<Place> = all.into_iter().filter(|place| free.is_free(*place)).collect();
        let together = are_adjacent(&hall, wanted);
        let fits = |choice: &Vec<Place>| {
            hall.total(choice) <= hall.total(wanted) && (!together || are_adjacent(&hall, choice))
        };
        let fitting: Vec<Vec<Place>> = choices(&open, qty).into_iter().filter(fits).collect();
        let offer = alternative(&hall, &free, wanted, rule);
        if together {
            prop_assert_eq!(offer.is_some(), !fitting.is_empty());
        }
        if let Some(offer) = offer {
            prop_assert!(fitting.contains(&offer), "{:?}", offer);
            let clean = |choice: &Vec<Place>| orphans(&hall, &free, choice).is_empty();
            if rule && together && fitting.iter().any(clean) {
                prop_assert!(clean(&offer), "{:?}", offer);
            }
        }
    }

    /// Goal: an orphan is refused only with an offer that keeps law 5.
    #[test]
    fn offers_for_orphans_keep_their_law((hall, free) in small_hall(), qty in 1usize..4, at in any::<prop::sample::Index>()) {
        let open: Vec<Place> = (0..hall.len()).filter(|place| free.is_free(*place)).collect();
        let chosen = choices(&open, qty);
        prop_assume!(!chosen.is_empty());
        let chosen = at.get(&chosen);
        if let Some(offer) = instead_of_orphan(&hall, &free, chosen) {
            prop_assert!(!orphans(&hall, &free, chosen).is_empty());
            prop_assert!(orphans(&hall, &free, &offer).is_empty());
            prop_assert!(are_adjacent(&hall, &offer) && offer.len() == qty && offer.iter().all(|p| free.is_free(*p)));
            prop_assert!(hall.total(&offer) <= hall.total(chosen));
            prop_assert!(offer.iter().all(|place| hall.section_of(*place) == hall.section_of(chosen[0])));
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
    let hall = Hall::new(&layout);
    let order: Vec<&str> = hall.seats().map(|seat| seat.id.as_str()).collect();
    assert_eq!(order, ["B-2-1", "B-2-2", "B-2-3", "B-1-1", "A-1-9"]);
    assert!(hall.seats().enumerate().all(|(at, seat)| hall.place(&seat.id) == Some(at)));
    assert_eq!(hall.place("nobody"), None);
    let mut free = Free::new(&hall, true);
    assert_eq!(free.count(), 5);
    free.set(2, false);
    assert_eq!((free.count(), free.is_free(2), free.is_free(99)), (4, false, false));
}

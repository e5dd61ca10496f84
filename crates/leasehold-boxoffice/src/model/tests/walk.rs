//! A random walk: many buyers, a small hall, and time that jumps.

use super::map_ledger::MapLedger;
use crate::layout::{Area, Layout, Seat};
use crate::model::check::invariants;
use crate::model::history::HistoryPlayer;
use crate::model::*;

/// What came of a walk.
pub(super) struct WalkResult {
    pub(super) faults: Vec<String>,
    pub(super) sold: usize,
}

/// A small generator: the same seed, the same walk.
struct WalkDice(u64);

impl WalkDice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

pub(super) fn hall() -> Layout {
    let seat =
        |number: u32| Seat { id: format!("A-{number}"), section: "A".into(), row: "A".into(), number, price: 100 };
    Layout { seats: (1..=6).map(seat).collect(), areas: vec![Area { id: "floor".into(), capacity: 4, price: 10 }] }
}

struct RandomWalk {
    dice: WalkDice,
    ledger: MapLedger,
    now: Moment,
    token: u64,
    event: EventId,
}

pub(super) fn walk(seed: u64, steps: usize) -> WalkResult {
    let mut walk = RandomWalk {
        dice: WalkDice(seed),
        ledger: MapLedger::default(),
        now: Moment(1000),
        token: 0,
        event: "ev".into(),
    };
    let settings = EventSettings {
        ttl_ms: 100_000,
        max_hold_ms: 250_000,
        pay_ms: 150_000,
        per_buyer: 3,
        ..EventSettings::named("walk")
    };
    let command = NewEvent { event_id: walk.event.clone(), settings: settings.clone(), layout: hall() };
    let need = decide::need_create_event(&command);
    let now = walk.now;
    walk.ledger.transact(&need, now, |facts| decide::create_event(&command, facts, "staff", now)).unwrap();
    let mut player = HistoryPlayer::new(&settings, &hall());
    let (mut played, mut faults) = (0, Vec::new());
    for _ in 0..steps {
        walk.now = walk.now.plus(walk.dice.roll(30_000));
        walk.take_step();
        for entry in &walk.ledger.entries[played..] {
            player.play(entry);
        }
        played = walk.ledger.entries.len();
        faults.extend(player.faults().iter().cloned());
        let broken = invariants(&walk.ledger.dump(walk.now)).into_iter().filter(|check| !check.ok);
        faults.extend(broken.map(|check| format!("{}: {}", check.name, check.detail)));
        if !faults.is_empty() {
            break;
        }
    }
    let sold = walk.ledger.orders.len();
    WalkResult { faults, sold }
}

impl RandomWalk {
    /// One transaction that a pair of functions in `decide` describes; its refusal is as good as its success.
    fn decide<C, T>(
        &mut self,
        command: &C,
        need: fn(&C) -> facts::Need,
        decide: fn(&C, &facts::Facts, &str, Moment) -> decide::Decision<T>,
    ) -> Option<T> {
        let now = self.now;
        self.ledger.transact(&need(command), now, |facts| decide(command, facts, "walker", now)).ok()
    }

    fn some_hold(&mut self) -> Option<HoldRow> {
        let count = self.ledger.holds.len() as u64;
        let at = self.dice.roll(count.max(1));
        // The newest are the most interesting.
        let back = at.min(self.dice.roll(count.max(1))).min(self.dice.roll(12));
        self.ledger.holds.values().rev().nth(usize::try_from(back).unwrap()).cloned()
    }

    fn take_step(&mut self) {
        self.token += 1;
        let die = self.dice.roll(100);
        if die < 30 {
            return if die < 3 { self.offer() } else { self.open() };
        }
        let Some(hold) = self.some_hold() else { return };
        let (hold_id, access) = (hold.hold_id.clone(), Access::Key(hold.key_hash.clone()));
        let thief = self.dice.roll(20) == 0;
        let access = if thief { Access::Key("stolen".into()) } else { access };
        let tokens: Vec<u64> = hold.leases.iter().map(|lease| lease.token).collect();
        let payment_ref = self.payment_for(&hold);
        let callback = (self.dice.roll(3) == 0).then(|| format!("m {}", self.dice.roll(400)));
        match die {
            30..40 => drop(self.decide(&RenewHold { hold_id, access, tokens }, decide::need_renew, decide::renew)),
            40..52 => {
                let command =
                    BeginPay { hold_id, access, payment_ref, pay_url: None, total: None, paid_for: vec![], tokens };
                self.decide(&command, decide::need_begin_pay, decide::begin_pay);
            }
            52..58 => {
                let command = Decline { hold_id, access, payment_ref, given_up: false, callback };
                self.decide(&command, decide::need_decline, decide::decline);
            }
            58..70 => {
                let proof = self.proof(&hold, callback.is_some());
                let command = Confirm { hold_id, access, payment_ref, tokens: vec![], proof, callback };
                self.decide(&command, decide::need_confirm, decide::confirm);
            }
            70..76 => drop(self.decide(&ReleaseHold { hold_id, access }, decide::need_release, decide::release)),
            76..80 => self.change(hold_id, access),
            80..84 => {
                let command = SellLate { hold_id, payment_ref, token: self.token };
                self.decide(&command, decide::need_sell_late, decide::sell_late);
            }
            84..87 => {
                let old = tokens.first().copied().unwrap_or(0);
                let lease = LeaseRef { token: self.token, id: "relet".into() };
                self.decide(&ReplaceLease { hold_id, old, lease }, decide::need_replace_lease, decide::replace_lease);
            }
            87..90 => {
                let now = self.now;
                let _ = self.ledger.transact(&decide::need_lapse_due(5), now, |facts| decide::lapse_due(5, facts, now));
            }
            90..94 => self.block(),
            94..97 => {
                let command = ForceRelease { event_id: self.event.clone(), seat: self.seat(), reason: "staff".into() };
                self.decide(&command, decide::need_force_release, decide::force_release);
            }
            _ => {
                let (order_id, seats, reason) = (OrderId::for_hold(&hold_id), None, "void".into());
                self.decide(&Void { order_id, seats, reason }, decide::need_void, decide::void);
            }
        }
    }

    /// Mostly the payment that was begun for it; sometimes a second one, or somebody else's.
    fn payment_for(&mut self, hold: &HoldRow) -> String {
        let other = match self.dice.roll(12) {
            0 => self.some_hold(),
            _ => None,
        };
        match (&hold.payment_ref, self.dice.roll(4)) {
            (Some(begun), 1..) => begun.clone(),
            _ => format!("pi {} {}", other.as_ref().unwrap_or(hold).hold_id, self.dice.roll(5) / 4),
        }
    }

    /// Other seats for money that came late: their hold is opened, and the money says so.
    fn offer(&mut self) {
        let Some(money) = self.ledger.money.values().find(|row| row.state == MoneyState::Received).cloned() else {
            return;
        };
        let hold_id = HoldId(format!("h_{:06}", self.token));
        let command = OpenHold {
            hold_id: hold_id.clone(),
            buyer: money.buyer.clone(),
            payment_ref: Some(money.payment_ref.clone()),
            ..self.opening(vec![self.free_seat()], 0, self.token)
        };
        if self.decide(&command, decide::need_open_hold, decide::open_hold).is_some() {
            let (from, to, offer) = (money.state, MoneyState::Offered, Some(hold_id));
            let command = MoneyStep { payment_ref: money.key(), from, to, offer, note: "offer".into(), callback: None };
            self.decide(&command, decide::need_money_step, decide::money_step);
        }
    }

    fn free_seat(&self) -> String {
        let held: Vec<&str> = self
            .ledger
            .holds
            .values()
            .filter(|hold| hold.is_live(self.now))
            .flat_map(|hold| &hold.seats)
            .map(|seat| seat.id.as_str())
            .collect();
        (1..=6).map(|n| format!("A-{n}")).find(|seat| !held.contains(&seat.as_str())).unwrap_or_else(|| "A-1".into())
    }

    /// Who says that it is paid: mostly whoever may, and rightly; sometimes somebody who is mistaken, or lies.
    fn proof(&mut self, hold: &HoldRow, told: bool) -> PaymentProof {
        let amount = match self.dice.roll(12) {
            0 => hold.total() / 2,
            1 => hold.total() + 50,
            _ => hold.total(),
        };
        if !told {
            return match self.dice.roll(3) {
                0 => PaymentProof::Buyer,
                1 => PaymentProof::Key { amount: None },
                _ => PaymentProof::Key { amount: Some(amount) },
            };
        }
        let other = self.some_hold().filter(|_| self.dice.roll(8) == 0);
        PaymentProof::Provider(ProviderWord {
            amount,
            currency: (self.dice.roll(10) == 0).then(|| "USD".into()),
            hold_id: other.map_or_else(|| hold.hold_id.clone(), |other| other.hold_id),
            authorised: self.dice.roll(3) == 0,
        })
    }

    fn seat(&mut self) -> String {
        format!("A-{}", self.dice.roll(6) + 1)
    }

    fn open(&mut self) {
        let mut seats: Vec<String> = (0..self.dice.roll(3)).map(|_| self.seat()).collect();
        seats.sort();
        seats.dedup();
        let qty = u32::try_from(self.dice.roll(3)).unwrap();
        if seats.is_empty() && qty == 0 {
            return;
        }
        let buyer = format!("b{}", self.dice.roll(4));
        // Now and then a server that was stalled comes with an old token.
        let token = if self.dice.roll(10) == 0 { self.token.saturating_sub(20).max(1) } else { self.token };
        let command = OpenHold { buyer: buyer.as_str().into(), ..self.opening(seats, qty, token) };
        self.decide(&command, decide::need_open_hold, decide::open_hold);
    }

    fn opening(&self, seats: Vec<String>, qty: u32, token: u64) -> OpenHold {
        OpenHold {
            event_id: self.event.clone(),
            layout_version: 1,
            hold_id: HoldId(format!("h_{:06}", self.token)),
            key_hash: format!("key {}", self.token),
            buyer: "b0".into(),
            sealed_key: String::new(),
            seats: seats.into_iter().map(|id| Priced { id, price: 100 }).collect(),
            areas: if qty > 0 { vec![PricedArea { id: "floor".into(), qty, price: 10 }] } else { vec![] },
            lease: LeaseRef { token, id: format!("lease {token}") },
            payment_ref: None,
        }
    }

    fn change(&mut self, hold_id: HoldId, access: Access) {
        let add = vec![Priced { id: self.seat(), price: 100 }];
        let command = ChangeSeats {
            hold_id,
            access,
            layout_version: 1,
            add,
            add_areas: vec![],
            lease: Some(LeaseRef { token: self.token, id: "more".into() }),
            remove: if self.dice.roll(2) == 0 { vec![self.seat()] } else { vec![] },
            remove_areas: vec![],
        };
        self.decide(&command, decide::need_change_seats, decide::change_seats);
    }

    fn block(&mut self) {
        let (mut block, mut unblock) = (vec![], vec![]);
        let seat = self.seat();
        if self.dice.roll(2) == 0 {
            block.push(seat)
        } else {
            unblock.push(seat)
        }
        let places = u32::try_from(self.dice.roll(3)).unwrap();
        let command = SetBlocks {
            event_id: self.event.clone(),
            block,
            unblock,
            areas: if self.dice.roll(3) == 0 { vec![("floor".into(), places)] } else { vec![] },
            reason: "house".into(),
        };
        self.decide(&command, decide::need_set_blocks, decide::set_blocks);
    }
}

//! The scripted provider of demos and tests: which callbacks it sends, how often, and when. Pure: the server sends them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackOutcome, SeatToken, short_id};

/// What the buyer's bank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptedAct {
    /// The money is taken, and told at once.
    Approve,
    /// The card is declined.
    Decline,
    /// The money is taken, and told after some seconds.
    Slow,
    /// It is told three times: twice by the same id, once by another.
    Duplicate,
    /// A first try is declined and a second one taken, and the decline arrives last.
    OutOfOrder,
    /// It is told when the pay deadline is over.
    Late,
    /// Half of it is taken.
    Short,
    /// The money is kept, and taken when it is asked for after the sale.
    Authorise,
    /// The money is kept, and then refused when it is asked for.
    CaptureFails,
}

impl ScriptedAct {
    /// Every way there is.
    pub const ALL: [Self; 9] = [
        Self::Approve,
        Self::Decline,
        Self::Slow,
        Self::Duplicate,
        Self::OutOfOrder,
        Self::Late,
        Self::Short,
        Self::Authorise,
        Self::CaptureFails,
    ];
}

/// What a buyer pays for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptedPayment {
    /// The payment.
    pub payment_ref: String,
    /// For which hold.
    pub hold_id: String,
    /// In minor units.
    pub amount: u64,
    /// Of which currency.
    pub currency: String,
    /// The seats and their tokens.
    pub tokens: Vec<SeatToken>,
    /// How long the pay deadline is away, in milliseconds.
    pub remaining_ms: u64,
}

/// The delay of an ordinary callback.
const CALLBACK_DELAY: Duration = Duration::from_millis(250);
/// The delay of [`ScriptedAct::Slow`].
const SLOW_CALLBACK_DELAY: Duration = Duration::from_secs(6);

/// What is told, each after a pause counted from the payment, in the order in which it is sent. `attempt`: another for
/// each time that it is tried, since a message is acted upon once.
#[must_use]
pub fn plan(payment: &ScriptedPayment, act: ScriptedAct, attempt: &str) -> Vec<(Duration, Callback)> {
    let name = short_id(&payment.payment_ref);
    let tell = |nth: u32, outcome: CallbackOutcome| Callback {
        callback_id: format!("cb_{name}_{attempt}_{nth}"),
        payment_ref: payment.payment_ref.clone(),
        hold_id: payment.hold_id.clone(),
        outcome,
        amount: payment.amount,
        currency: Some(payment.currency.clone()),
        tokens: payment.tokens.clone(),
        at: String::new(),
        refund_id: None,
    };
    let late = Duration::from_millis(payment.remaining_ms).saturating_add(Duration::from_secs(2));
    match act {
        ScriptedAct::Approve => vec![(CALLBACK_DELAY, tell(1, CallbackOutcome::Captured))],
        ScriptedAct::Decline => vec![(CALLBACK_DELAY, tell(1, CallbackOutcome::Declined))],
        ScriptedAct::Slow => vec![(SLOW_CALLBACK_DELAY, tell(1, CallbackOutcome::Captured))],
        ScriptedAct::Duplicate => vec![
            (CALLBACK_DELAY, tell(1, CallbackOutcome::Captured)),
            (CALLBACK_DELAY, tell(1, CallbackOutcome::Captured)),
            (CALLBACK_DELAY * 2, tell(2, CallbackOutcome::Captured)),
        ],
        ScriptedAct::OutOfOrder => vec![
            (CALLBACK_DELAY, tell(2, CallbackOutcome::Captured)),
            (CALLBACK_DELAY * 2, tell(1, CallbackOutcome::Declined)),
        ],
        ScriptedAct::Late => vec![(late, tell(1, CallbackOutcome::Captured))],
        ScriptedAct::Authorise | ScriptedAct::CaptureFails => {
            vec![(CALLBACK_DELAY, tell(1, CallbackOutcome::Authorised))]
        }
        ScriptedAct::Short => {
            vec![(CALLBACK_DELAY, Callback { amount: payment.amount / 2, ..tell(1, CallbackOutcome::Captured) })]
        }
    }
}

/// What is told when money that was kept is taken.
#[must_use]
pub fn captured(payment: &ScriptedPayment, amount: u64) -> Callback {
    Callback {
        callback_id: format!("cb_{}_capture", short_id(&payment.payment_ref)),
        outcome: CallbackOutcome::Captured,
        refund_id: None,
        ..refunded(payment, "", amount)
    }
}

/// What is told when a buyer went back from the payment.
#[must_use]
pub fn cancelled(payment: &ScriptedPayment) -> Callback {
    Callback {
        callback_id: format!("cb_{}_cancel", short_id(&payment.payment_ref)),
        outcome: CallbackOutcome::Cancelled,
        refund_id: None,
        ..refunded(payment, "", payment.amount)
    }
}

/// What is told when money went back.
#[must_use]
pub fn refunded(payment: &ScriptedPayment, refund_id: &str, amount: u64) -> Callback {
    Callback {
        callback_id: format!("cb_{}", short_id(refund_id)),
        payment_ref: payment.payment_ref.clone(),
        hold_id: payment.hold_id.clone(),
        outcome: CallbackOutcome::Refunded,
        amount,
        currency: Some(payment.currency.clone()),
        tokens: payment.tokens.clone(),
        at: String::new(),
        refund_id: Some(refund_id.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every way of behaving is what its name says.
    #[test]
    fn plans_are_what_they_are_called() {
        let payment = ScriptedPayment {
            payment_ref: "pi_1".into(),
            hold_id: "h".into(),
            amount: 5,
            currency: "EUR".into(),
            tokens: Vec::new(),
            remaining_ms: 60_000,
        };
        for act in ScriptedAct::ALL {
            let plan = plan(&payment, act, "1");
            assert!(plan.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{act:?} is sent in order");
            assert!(
                plan.iter()
                    .all(|(_, told)| (told.amount == 5) == (act != ScriptedAct::Short) && told.payment_ref == "pi_1")
            );
            let ids: Vec<&str> = plan.iter().map(|(_, told)| told.callback_id.as_str()).collect();
            match act {
                ScriptedAct::Duplicate => assert!(ids.len() == 3 && ids[0] == ids[1] && ids[1] != ids[2]),
                ScriptedAct::OutOfOrder => {
                    assert!(ids[0].ends_with("_2") && ids[1].ends_with("_1"), "{ids:?}");
                    assert_eq!(plan[1].1.outcome, CallbackOutcome::Declined);
                }
                ScriptedAct::Late => assert!(plan[0].0 > Duration::from_secs(60)),
                _ => assert_eq!(ids.len(), 1),
            }
        }
        assert_eq!(serde_json::to_string(&ScriptedAct::OutOfOrder).unwrap(), "\"out_of_order\"");
    }

    /// Goal: what is told of a payment is heard, however long its name; and a second try is not taken for the first.
    #[test]
    fn ids_are_short_enough_to_be_heard_and_none_is_used_twice() {
        let payment = |name: &str| ScriptedPayment {
            payment_ref: name.into(),
            hold_id: "h".into(),
            amount: 5,
            currency: "EUR".into(),
            tokens: Vec::new(),
            remaining_ms: 0,
        };
        let (long, other) = (payment(&"p".repeat(128)), payment(&("p".repeat(127) + "q")));
        let attempt = format!("{:x}.{}", u64::MAX, u64::MAX);
        let mut ids = std::collections::BTreeSet::new();
        for (payment, attempt) in [(&long, "1"), (&long, "2"), (&other, "1"), (&long, &attempt)] {
            let told = plan(payment, ScriptedAct::OutOfOrder, attempt);
            assert!(told.iter().all(|(_, told)| crate::model::ids::well_formed(&told.callback_id)));
            ids.extend(told.into_iter().map(|(_, told)| told.callback_id));
        }
        assert_eq!(ids.len(), 8, "{ids:?}");
        let refund = refunded(&long, &format!("rf_{}", long.payment_ref), 5);
        assert!(crate::model::ids::well_formed(&refund.callback_id), "{}", refund.callback_id);
    }
}

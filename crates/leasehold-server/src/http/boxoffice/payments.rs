//! Callbacks of the payment provider, and payments of a demo.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold_boxoffice::Error;
use leasehold_boxoffice::model::{HoldId, HoldState, MoneyState, Refusal};
use leasehold_boxoffice::office::{PaymentMessage, PaymentOutcome, RefundMessage};
use leasehold_boxoffice::provider::script::{ScriptedAct, ScriptedPayment};
use leasehold_boxoffice::provider::{Callback, CallbackError, CallbackOutcome};
use leasehold_boxoffice::sign;
use serde_json::{Value, json};

use super::{BoxOfficeRequest, holds};
use crate::api::boxoffice::{order_json, resolution_json};
use crate::boxoffice::demo_provider::DemoPayment;
use crate::boxoffice::payment::seat_tokens;
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::{Role, Verb};

/// `POST /v1/payments/callback`
pub async fn callback(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let signature = call.single_header("leasehold-signature", sign::HEADER)?.unwrap_or_default();
    let forged =
        || Problem::with_code(StatusCode::UNAUTHORIZED, "bad_signature", "the signature does not fit the callback");
    let secrets = call.app.service.provider_secrets().ok_or_else(forged)?;
    let callback = Callback::verify(secrets, signature, &body).map_err(|why| match why {
        CallbackError::Forged(_) => forged(),
        CallbackError::Unreadable(_) => Problem::invalid(why.to_string()),
    })?;
    let request = BoxOfficeRequest::authorize_caller(&call, call.app.service.provider().clone(), Verb::Settle)?;
    let answered = run_detached(async move { apply_callback(&request, callback).await }).await??;
    Ok(json_response(StatusCode::OK, &answered))
}

async fn apply_callback(request: &BoxOfficeRequest, callback: Callback) -> Result<Value, Problem> {
    let hold_id = HoldId(callback.hold_id.clone());
    if callback.outcome == CallbackOutcome::Refunded {
        let Callback { callback_id, payment_ref, refund_id, amount, .. } = callback;
        let message = RefundMessage { id: callback_id, payment_ref: payment_ref.clone(), refund_id, amount };
        let row = request.office().record_refund_message(message).await;
        if let Err(Error::Refused(_)) = &row {
            tracing::error!(
                payment = payment_ref,
                amount,
                "money went back that was not to, or not all of it: ask the payment provider"
            );
        }
        let row = row?;
        let ended = matches!(row.state, MoneyState::Refunded | MoneyState::Closed);
        return Ok(json!({"outcome": if ended { "refunded" } else { "ignored" }, "money": row.state}));
    }
    let tokens = paid_tokens(&callback);
    let message = PaymentMessage {
        tokens,
        id: callback.callback_id,
        payment_ref: callback.payment_ref,
        paid_for: hold_id.clone(),
        hold_id,
        outcome: callback.outcome,
        amount: callback.amount,
        currency: callback.currency,
    };
    let payment = message.payment_ref.clone();
    let succeeded = matches!(message.outcome, CallbackOutcome::Captured | CallbackOutcome::Authorised);
    let outcome = request.office().payment(message).await;
    if let (Err(Error::Refused(refusal)), true) = (&outcome, succeeded) {
        // Without a hold there is no event to record it under.
        tracing::error!(%refusal, payment, "money came that nothing is known of: ask the payment provider");
    }
    let outcome = outcome?;
    Ok(match outcome {
        PaymentOutcome::Order(order) => json!({"outcome": "order", "order": order_json(&order)}),
        // The hold was sold meanwhile.
        PaymentOutcome::Declined(HoldState::Sold) => json!({"outcome": "ignored"}),
        PaymentOutcome::Declined(state) => json!({"outcome": "declined", "state": state}),
        PaymentOutcome::Late(found) => json!({"outcome": "late", "resolution": resolution_json(&found)}),
        PaymentOutcome::Ignored => json!({"outcome": "ignored"}),
    })
}

/// Seats and tokens. Texts that are no numbers were refused before.
fn paid_tokens(callback: &Callback) -> Vec<(String, u64)> {
    callback.tokens.iter().map(|paid| (paid.seat.clone(), paid.token.parse().unwrap_or_default())).collect()
}

/// `POST /v1/demo/pay`: plays the buyer's payment at the demo provider.
pub async fn demo_pay(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    call.query_params([])?;
    let nothing =
        || Problem::invalid_with_status(StatusCode::NOT_FOUND, "there is nothing at this path: this server is no demo");
    call.app.service.boxoffice_info().filter(|front| front.demo).ok_or_else(nothing)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let hold = HoldId(fields.take_text("hold_id")?.ok_or_else(|| missing_field("hold_id"))?);
    let payment_ref = fields.take_text("payment_ref")?.ok_or_else(|| missing_field("payment_ref"))?;
    let act = fields.take_value("outcome").ok_or_else(|| missing_field("outcome"))?;
    fields.deny_unknown()?;
    if !leasehold_boxoffice::model::ids::well_formed(&payment_ref) {
        return Err(Problem::invalid("payment_ref must be 1 to 128 bytes, without control characters"));
    }
    let act: ScriptedAct = serde_json::from_value(act).map_err(|_| {
        let acts = "approve, decline, slow, duplicate, out_of_order, late, short, authorise or capture_fails";
        Problem::invalid(format!("outcome is {acts}"))
    })?;
    let caller = call.demo_caller(Role::Buyer)?;
    let request = BoxOfficeRequest::authorize_caller(&call, caller, Verb::Buy)?;
    let demo = request.boxoffice.demo().ok_or_else(nothing)?;
    // The public id alone must not allow to end or buy the hold of another buyer.
    let (hold, access) = holds::check_hold_access(&request, (hold, holds::hold_key_header(&call)?)).await?;
    let view = request.office().hold_view(&hold, access).await.map_err(holds::hold_error(&request))?;
    let row = view.hold;
    // A payment belongs to the hold that it was begun for.
    if row.payment_ref.as_ref() != Some(&payment_ref) {
        return Err(Problem::from(Error::Refused(Refusal::PaymentMismatch)));
    }
    let event = request.office().event(&row.event_id).await?;
    let payment = ScriptedPayment {
        payment_ref,
        hold_id: row.hold_id.0.clone(),
        amount: row.total(),
        currency: event.settings.currency,
        tokens: seat_tokens(&row),
        remaining_ms: view.remaining_ms,
    };
    let taken = demo.pay(&DemoPayment { payment, act }).await;
    match taken {
        Ok(true) => Ok(json_response(StatusCode::ACCEPTED, &json!({"accepted": true}))),
        _ => Err(Problem::unavailable("the bank of the demo does not answer")),
    }
}

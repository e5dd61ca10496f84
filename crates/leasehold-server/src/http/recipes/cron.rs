//! Schedules and their runs.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::engine::Token;
use leasehold::recipe::cron::{CronBegun, CronRecorded, CronStart, MissedTicks};
use leasehold::recipe::moment::parse_moment;
use leasehold::recipe::{RecipeError, RecipeRefusal};
use leasehold_support::time::wall_ms;
use serde_json::{Value, json};

use super::super::call::{HttpCall, run_detached};
use super::super::fields::{Fields, missing_field};
use super::super::problem::Problem;
use super::super::respond;
use super::{deny, parse_limit, required_decimal, required_text};
use crate::api::recipes::{RunJson, ScheduleJson};
use crate::service::recipes::{RecipeAccess, cron_resource};
use crate::service::{Caller, Denial, Verb};

/// Runs of a schedule, where nobody says how many, and at most.
const DEFAULT_RUNS: usize = 100;
const MAX_RUNS: usize = 1000;

fn authorize_schedule(call: &HttpCall, caller: &Caller, verb: Verb) -> Result<(RecipeAccess, String), Problem> {
    let name = call.path_segment(2)?;
    let access = call.app.service.recipes(caller, verb, Some(&cron_resource(&name)));
    access.map(|access| (access, name)).map_err(|denial| call.denial_problem(&denial, caller))
}

/// `GET /v1/schedules`
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let app = call.app;
    let denied = deny(&app, &caller);
    let access = app.service.recipes(&caller, Verb::SeeSchedule, None).map_err(&denied)?;
    let found = access.cron_schedules(&caller).await.map_err(&denied)?;
    let shown: Vec<ScheduleJson> =
        found.into_iter().map(|seen| ScheduleJson::new(seen.schedule, seen.runs, true)).collect();
    Ok(respond::json_response(StatusCode::OK, &json!({"schedules": shown})))
}

/// `GET /v1/schedules/{n}`
pub async fn show(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let (access, name) = authorize_schedule(&call, &caller, Verb::SeeSchedule)?;
    let found = access.cron_schedule(&name).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let missing =
        || Problem::with_code(StatusCode::NOT_FOUND, "not_found", format!("no tick of {name} was ever begun"));
    let found = found.ok_or_else(missing)?;
    let last = access.cron_runs(&name, 1).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::OK, &ScheduleJson::new(found, last, false)))
}

/// `GET /v1/schedules/{n}/runs`
pub async fn runs(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [limit] = call.query_params(["limit"])?;
    let limit = parse_limit("limit", limit, DEFAULT_RUNS, 1..=MAX_RUNS)?;
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let (access, name) = authorize_schedule(&call, &caller, Verb::SeeSchedule)?;
    let found = access.cron_runs(&name, limit).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let shown: Vec<RunJson> = found.into_iter().map(RunJson::whole).collect();
    Ok(respond::json_response(StatusCode::OK, &json!({"runs": shown})))
}

/// `POST /v1/schedules/{n}/begin`
pub async fn begin(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let name = call.path_segment(2)?;
    let start = CronStart {
        name,
        tick: take_moment(&mut fields, "tick")?.ok_or_else(|| missing_field("tick"))?,
        token: take_token(&mut fields)?,
        machine: required_text(&mut fields, "machine")?,
        spec: required_text(&mut fields, "spec")?,
        seen: take_moment(&mut fields, "seen")?,
        missed: take_missed(&mut fields)?,
    };
    fields.deny_unknown()?;
    let (access, _) = authorize_schedule(&call, &caller, Verb::RunSchedule)?;
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(wall_ms());
    let begun = run_detached(async move { access.cron_begin(start, now).await }).await?;
    let body = match begun.map_err(|denial| call.denial_problem(&denial, &caller))? {
        CronBegun::First { token, recorded: CronRecorded { skipped, missed, lost } } => json!({
            "outcome": "first", "token": token.to_string(), "skipped": skipped, "missed": missed, "lost": lost,
        }),
        CronBegun::Done => json!({"outcome": "done"}),
        CronBegun::Stale => json!({"outcome": "stale"}),
        CronBegun::Again => json!({"outcome": "again"}),
        CronBegun::Early => json!({"outcome": "early"}),
    };
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/schedules/{n}/finish`
pub async fn finish(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let tick = take_moment(&mut fields, "tick")?.ok_or_else(|| missing_field("tick"))?;
    let token = required_decimal(&mut fields, "token")?;
    let code = fields.take_signed("code")?.ok_or_else(|| missing_field("code"))?;
    let tail = fields.take_text("tail")?.unwrap_or_default();
    fields.deny_unknown()?;
    let (access, name) = authorize_schedule(&call, &caller, Verb::RunSchedule)?;
    let ours = run_detached(async move { access.cron_finish(&name, tick, token, code, &tail).await }).await?;
    match ours {
        Ok(true) => Ok(respond::no_content()),
        Ok(false) => {
            let what = format!("run {token} of this schedule");
            Err(Problem::from(&Denial::Recipe(RecipeError::Refused(RecipeRefusal::Stale { what }))))
        }
        Err(denial) => Err(call.denial_problem(&denial, &caller)),
    }
}

fn take_moment(fields: &mut Fields, name: &'static str) -> Result<Option<SystemTime>, Problem> {
    let Some(text) = fields.take_text(name)? else { return Ok(None) };
    let at = parse_moment(&text);
    at.map(Some).ok_or_else(|| Problem::invalid(format!("{name} is a moment in UTC, as 2026-11-18T03:00:00Z")))
}

/// The token of a lease; none: the engine has none.
fn take_token(fields: &mut Fields) -> Result<Option<Token>, Problem> {
    let Some(token) = fields.take_decimal("token")? else { return Ok(None) };
    let token = u64::try_from(token).ok().and_then(Token::new);
    token.map(Some).ok_or_else(|| Problem::invalid("token is a token of a lease: from 1 on"))
}

fn take_missed(fields: &mut Fields) -> Result<Vec<MissedTicks>, Problem> {
    match fields.take_value("missed") {
        None => Ok(Vec::new()),
        Some(Value::Array(ranges)) => ranges.into_iter().map(read_missed).collect(),
        Some(_) => Err(Problem::invalid("missed is a list of objects with from, upto and count")),
    }
}

fn read_missed(range: Value) -> Result<MissedTicks, Problem> {
    let Value::Object(object) = range else {
        return Err(Problem::invalid("missed is a list of objects with from, upto and count"));
    };
    let mut fields = Fields::from_object("missed", object);
    let missed = MissedTicks {
        from: take_moment(&mut fields, "from")?.ok_or_else(|| missing_field("from of missed"))?,
        upto: take_moment(&mut fields, "upto")?.ok_or_else(|| missing_field("upto of missed"))?,
        count: fields.take_signed("count")?.ok_or_else(|| missing_field("count of missed"))?,
    };
    fields.deny_unknown()?;
    Ok(missed)
}

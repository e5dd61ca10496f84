//! The ledger of runs at a server, over HTTP.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer};
use serde_json::json;

use super::{
    CronBegun, CronEnd, CronRecorded, CronRun, CronSchedule, CronStart, MissedTicks, RunState, from_unix_millis,
    token_number,
};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::moment::{format_moment, parse_moment};
use crate::recipe::store::server::{STORE_NAME, ServerDatabase, path_segment};

#[derive(Deserialize)]
struct BegunAnswer {
    outcome: String,
    token: Option<String>,
    #[serde(default)]
    skipped: u32,
    #[serde(default)]
    missed: u32,
    #[serde(default)]
    lost: u32,
}

#[derive(Deserialize)]
struct ScheduleAnswer {
    name: String,
    spec: String,
    #[serde(deserialize_with = "read_moment")]
    last_tick: SystemTime,
    #[serde(deserialize_with = "read_number")]
    token: i64,
}

#[derive(Deserialize)]
struct SchedulesAnswer {
    schedules: Vec<ScheduleAnswer>,
}

#[derive(Deserialize)]
struct RunsAnswer {
    runs: Vec<RunAnswer>,
}

#[derive(Deserialize)]
struct RunAnswer {
    #[serde(deserialize_with = "read_moment")]
    tick: SystemTime,
    #[serde(deserialize_with = "read_moment")]
    upto: SystemTime,
    ticks: u32,
    #[serde(deserialize_with = "read_number")]
    token: i64,
    state: String,
    machine: Option<String>,
    #[serde(deserialize_with = "read_moment")]
    started_at: SystemTime,
    ended_at: Option<String>,
    code: Option<i32>,
    tail: Option<String>,
}

impl From<ScheduleAnswer> for CronSchedule {
    fn from(answer: ScheduleAnswer) -> Self {
        let ScheduleAnswer { name, spec, last_tick, token } = answer;
        Self { name, spec, last_tick, token }
    }
}

impl ServerDatabase {
    pub(super) async fn cron_begin(&self, start: &CronStart) -> Result<CronBegun, RecipeError> {
        const ATTEMPT: &str = "begin a run";
        let range = |missed: &MissedTicks| json!({"from": format_moment(missed.from), "upto": format_moment(missed.upto), "count": missed.count});
        let missed: Vec<_> = start.missed.iter().map(range).collect();
        let body = json!({
            "tick": format_moment(start.tick),
            "token": token_number(start.token).map(|token| token.to_string()),
            "machine": start.machine,
            "spec": start.spec,
            "seen": start.seen.map(format_moment),
            "missed": missed,
        });
        let path = format!("/v1/schedules/{}/begin", path_segment(&start.name));
        let begun: BegunAnswer = self.post(ATTEMPT, &path, &body).await?;
        let token = begun.token.as_deref().and_then(|token| token.parse().ok());
        let recorded = CronRecorded { skipped: begun.skipped, missed: begun.missed, lost: begun.lost };
        match (begun.outcome.as_str(), token) {
            ("first", Some(token)) => Ok(CronBegun::First { token, recorded }),
            ("done", _) => Ok(CronBegun::Done),
            ("stale", _) => Ok(CronBegun::Stale),
            ("again", _) => Ok(CronBegun::Again),
            ("early", _) => Ok(CronBegun::Early),
            _ => {
                Err(RecipeError::indeterminate(STORE_NAME, ATTEMPT, "an answer that this version does not understand"))
            }
        }
    }

    pub(super) async fn cron_finish(&self, end: &CronEnd) -> Result<bool, RecipeError> {
        let body = json!({
            "tick": format_moment(from_unix_millis(end.tick)),
            "token": end.token.to_string(),
            "code": end.code,
            "tail": end.tail,
        });
        let path = format!("/v1/schedules/{}/finish", path_segment(&end.name));
        match self.post_done("finish a run", &path, &body).await {
            Ok(()) => Ok(true),
            Err(RecipeError::Refused(RecipeRefusal::Stale { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn cron_schedule(&self, name: &str) -> Result<Option<CronSchedule>, RecipeError> {
        let path = format!("/v1/schedules/{}", path_segment(name));
        let found: Option<ScheduleAnswer> = self.find("read a schedule", &path).await?;
        Ok(found.map(CronSchedule::from))
    }

    pub(super) async fn cron_schedules(&self, most: u32) -> Result<Vec<CronSchedule>, RecipeError> {
        let answer: SchedulesAnswer = self.get("list the schedules", "/v1/schedules").await?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(answer.schedules.into_iter().take(most).map(CronSchedule::from).collect())
    }

    pub(super) async fn cron_runs(&self, name: &str, limit: u32) -> Result<Vec<CronRun>, RecipeError> {
        const ATTEMPT: &str = "read the runs of a schedule";
        let path = format!("/v1/schedules/{}/runs?limit={}", path_segment(name), limit.clamp(1, 1000));
        let answer: RunsAnswer = self.get(ATTEMPT, &path).await?;
        let odd = || RecipeError::unavailable(STORE_NAME, ATTEMPT, "an answer that this version does not understand");
        let read = |run: RunAnswer| {
            let RunAnswer { tick, upto, ticks, token, state, machine, started_at, ended_at, code, tail } = run;
            let state = RunState::from_word(&state).ok_or_else(odd)?;
            let ended_at = ended_at.map(|text| parse_moment(&text).ok_or_else(odd)).transpose()?;
            Ok(CronRun { tick, upto, ticks, token, state, machine, started_at, ended_at, code, tail })
        };
        answer.runs.into_iter().map(read).collect()
    }
}

fn read_moment<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(from)?;
    parse_moment(&text).ok_or_else(|| serde::de::Error::custom("no moment"))
}

fn read_number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| serde::de::Error::custom("no number"))
}

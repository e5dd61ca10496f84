//! What everybody may see: resources, holders and waiters, as rows of the server.

use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Error as SqlError, Row};

use super::read_token;
use super::shared::{PostgresShared, ResendPolicy};
use super::sql_error::Cause;
use super::statements::Sql;
use crate::engine::{AttemptText, Holding, Mode, Query, Resource, Waiting};
use crate::error::Error;

/// Holders shown of one resource: by its name, and in a list.
const MAX_HOLDERS_SHOWN: i32 = 1000;
const MAX_HOLDERS_LISTED: i32 = 100;
/// Names in one page of a list.
const MAX_PAGE: usize = 1000;

impl PostgresShared {
    pub async fn show_one(&self, name: &str, with_tokens: bool) -> Result<Option<Resource>, Error> {
        let attempt = || format!("inspect {name}");
        let names = [name];
        let shown = self.show(&attempt, &names, MAX_HOLDERS_SHOWN, with_tokens).await?;
        Ok(shown.into_iter().next())
    }

    /// Resources under a prefix. A name whose lease has just lapsed is in the table and is not shown: others take its place,
    /// so that only the last page is short.
    pub async fn list_page(&self, query: &Query, with_tokens: bool) -> Result<Vec<Resource>, Error> {
        let attempt = || format!("list {}", query.prefix);
        let most = query.limit.min(MAX_PAGE);
        let mut after = query.after.clone().unwrap_or_default();
        let mut found = Vec::new();
        while found.len() < most {
            let limit = i32::try_from(most - found.len()).unwrap_or(i32::MAX);
            let parameters = [(&query.prefix as _, Type::TEXT), (&after as _, Type::TEXT), (&limit as _, Type::INT4)];
            let rows =
                self.query_with_retry(&attempt, &self.reader, Sql::List, &parameters, ResendPolicy::ReadOnly).await?;
            let names: Result<Vec<String>, SqlError> = rows.iter().map(|row| row.try_get(0)).collect();
            let names = names.map_err(|error| odd_row(&attempt, &error))?;
            let Some(last) = names.last() else { break };
            let texts: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut shown = self.show(&attempt, &texts, MAX_HOLDERS_LISTED, with_tokens).await?;
            shown.sort_by(|one, other| one.name.cmp(&other.name));
            found.append(&mut shown);
            after.clone_from(last);
        }
        Ok(found)
    }

    async fn show(
        &self,
        attempt: AttemptText<'_>,
        names: &[&str],
        most: i32,
        with_tokens: bool,
    ) -> Result<Vec<Resource>, Error> {
        let parameters = [(&names as _, Type::TEXT_ARRAY), (&most as _, Type::INT4)];
        let rows = self.query_with_retry(attempt, &self.reader, Sql::Show, &parameters, ResendPolicy::ReadOnly).await?;
        let resources: Result<Vec<Resource>, SqlError> =
            rows.iter().map(|row| read_resource(row, with_tokens)).collect();
        resources.map_err(|error| odd_row(attempt, &error))
    }
}

fn odd_row(attempt: AttemptText<'_>, error: &SqlError) -> Error {
    super::unavailable(attempt(), Cause::new(format!("the server sent a row that cannot be read: {error}")))
}

fn read_resource(row: &Row, with_tokens: bool) -> Result<Resource, SqlError> {
    let numbers = |at: usize| row.try_get::<_, Option<Vec<i64>>>(at).map(Option::unwrap_or_default);
    let labels = |at: usize| row.try_get::<_, Option<Vec<String>>>(at).map(Option::unwrap_or_default);
    let (tokens, since, remaining) = (numbers(6)?, numbers(7)?, numbers(8)?);
    let times = tokens.into_iter().zip(since).zip(remaining);
    let holding = |(holder, ((token, since), remaining))| Holding {
        holder,
        token: read_token(token).filter(|_| with_tokens),
        since: micros(since),
        remaining: micros(remaining),
    };
    let waiting = |(holder, waiting)| Waiting { holder, waiting: micros(waiting) };
    Ok(Resource {
        name: row.try_get(0)?,
        mode: read_mode(row)?,
        holders: labels(5)?.into_iter().zip(times).map(holding).collect(),
        holders_total: usize::try_from(row.try_get::<_, i64>(4)?).unwrap_or(0),
        waiters: labels(10)?.into_iter().zip(numbers(11)?).map(waiting).collect(),
        queue_len: usize::try_from(row.try_get::<_, i32>(9)?).unwrap_or(0),
    })
}

fn read_mode(row: &Row) -> Result<Mode, SqlError> {
    let count = |number: i64| u32::try_from(number).unwrap_or(0);
    let held: i8 = row.try_get(1)?;
    Ok(match held.cast_unsigned() {
        b'x' => Mode::Exclusive,
        b's' => Mode::Shared,
        b'p' => {
            let used: Option<i64> = row.try_get(2)?;
            Mode::Permits { count: count(used.unwrap_or(0)), capacity: count(row.try_get::<_, i32>(3)?.into()) }
        }
        // Nobody has it: as the head of its queue wants it.
        _ => match row.try_get::<_, Option<i32>>(12)?.unwrap_or(0) {
            0 => Mode::Exclusive,
            shared if shared < 0 => Mode::Shared,
            permits => {
                let capacity: Option<i32> = row.try_get(13)?;
                Mode::Permits { count: count(permits.into()), capacity: count(capacity.unwrap_or(0).into()) }
            }
        },
    })
}

/// A span of the server.
pub(super) fn micros(span: i64) -> Duration {
    Duration::from_micros(u64::try_from(span).unwrap_or(0))
}

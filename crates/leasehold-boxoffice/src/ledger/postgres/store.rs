//! Stores the changes of a batch: one statement for each table, and COMMIT, in one round trip.
//!
//! Updates and deletes must touch an exact number of rows. The server counts them (SQL function `exactly`), since COMMIT
//! was already sent when the first result arrives.

use serde::Serialize;
use tokio_postgres::types::ToSql;

use super::batch::QueueTurn;
use super::batch_state::{BatchChanges, HeldSeatChange, InEvent, RowChange};
use super::error::{PostgresError, PostgresResult};
use super::job::TransactionOutcome;
use super::session::{Pipeline, PipelineResults, PooledSession, StatementParams};
use crate::layout::Layout;
use crate::model::*;

const NEW_EVENTS: &str = "INSERT INTO events (event_id, body) SELECT * FROM unnest($1::text[], $2::text[])";
const EVENTS: &str = "WITH touched AS (UPDATE events e SET body = u.body
    FROM unnest($1::text[], $2::text[]) AS u (event_id, body) WHERE e.event_id = u.event_id RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $3, 'events')";
const NO_SEATS: &str = "DELETE FROM seats WHERE event_id = $1";
const LAYOUT_SEATS: &str = "INSERT INTO seats SELECT $1, u.seat_id, u.pos - 1, u.section, u.row, u.number, u.price
    FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
    WITH ORDINALITY AS u (seat_id, section, row, number, price, pos)";
const OTHER_AREAS: &str = "DELETE FROM areas WHERE event_id = $1 AND NOT area_id = ANY($2::text[])";
const LAYOUT_AREAS: &str = "INSERT INTO areas (event_id, area_id, pos, capacity, price)
    SELECT $1, u.area_id, u.pos - 1, u.capacity, u.price
    FROM unnest($2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS u (area_id, capacity, price, pos)
    ON CONFLICT (event_id, area_id)
    DO UPDATE SET pos = excluded.pos, capacity = excluded.capacity, price = excluded.price";
const NEW_HOLDS: &str = "INSERT INTO holds (hold_id, event_id, live, expires_at, body)
    SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::bigint[], $5::text[])";
const HOLDS: &str = "WITH touched AS (UPDATE holds h SET live = u.live, expires_at = u.expires_at, body = u.body
    FROM unnest($1::text[], $2::boolean[], $3::bigint[], $4::text[]) AS u (hold_id, live, expires_at, body)
    WHERE h.hold_id = u.hold_id AND (h.live OR NOT u.live) RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $5, 'holds')";
// The condition is the last line of defence: a seat is taken from nobody, and its token rises.
const HELD_SEATS: &str = "WITH touched AS (UPDATE hold_seats h
    SET hold_id = u.after, token = coalesce(u.token, h.token)
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
    AS u (event_id, seat_id, before, after, token)
    WHERE h.event_id = u.event_id AND h.seat_id = u.seat_id AND h.hold_id IS NOT DISTINCT FROM u.before
    AND (u.token IS NULL OR u.token > h.token) RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $6, 'hold_seats')";
const TAKE_SEATS: &str = "INSERT INTO hold_seats (event_id, seat_id, hold_id, token)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])";
const UNSELL: &str = "WITH touched AS (DELETE FROM sold_seats s
    USING unnest($1::text[], $2::text[], $3::text[]) AS u (event_id, seat_id, order_id)
    WHERE s.event_id = u.event_id AND s.seat_id = u.seat_id AND s.order_id = u.order_id RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $4, 'sold_seats')";
const SELL: &str = "INSERT INTO sold_seats (event_id, seat_id, order_id, token, price)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])";
const UNBLOCK: &str =
    "WITH touched AS (DELETE FROM blocks b USING unnest($1::text[], $2::text[]) AS u (event_id, seat_id)
    WHERE b.event_id = u.event_id AND b.seat_id = u.seat_id RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $3, 'blocks')";
const BLOCK: &str = "INSERT INTO blocks (event_id, seat_id, reason)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[])";
const AREAS: &str = "WITH touched AS (UPDATE areas a
    SET held = a.held + u.held, sold = a.sold + u.sold, blocked = a.blocked + u.blocked
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
    AS u (event_id, area_id, held, sold, blocked)
    WHERE a.event_id = u.event_id AND a.area_id = u.area_id RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $6, 'areas')";
const BUYERS: &str = "WITH touched AS (UPDATE buyers b
    SET held = b.held + u.held, sold = b.sold + u.sold, lapses = u.lapses, lapsed_at = u.lapsed_at
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    AS u (event_id, buyer, held, sold, lapses, lapsed_at)
    WHERE b.event_id = u.event_id AND b.buyer = u.buyer RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $7, 'buyers')";
const NEW_ORDERS: &str = "INSERT INTO orders (order_id, event_id, body)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[])";
const ORDERS: &str = "WITH touched AS (UPDATE orders o SET body = u.body
    FROM unnest($1::text[], $2::text[]) AS u (order_id, body) WHERE o.order_id = u.order_id RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $3, 'orders')";
const NEW_MONEY: &str = "INSERT INTO money (payment_ref, event_id, state, received_at, body)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[])";
const MONEY: &str = "WITH touched AS (UPDATE money m SET state = u.state, body = u.body
    FROM unnest($1::text[], $2::text[], $3::text[]) AS u (payment_ref, state, body)
    WHERE m.payment_ref = u.payment_ref RETURNING 1)
    SELECT exactly((SELECT count(*) FROM touched), $4, 'money')";
const PAYMENTS: &str = "INSERT INTO payments (payment_ref, hold_id) SELECT * FROM unnest($1::text[], $2::text[])";
const CALLBACKS: &str = "INSERT INTO callbacks (id) SELECT * FROM unnest($1::text[])";
const ANSWERS: &str = "INSERT INTO answers (key, asked, answer, at)
    SELECT u.key, u.asked, u.answer, $4 FROM unnest($1::bytea[], $2::bytea[], $3::text[]) AS u (key, asked, answer)
    ORDER BY u.key";
const TELL: &str = "INSERT INTO outbox (event_id, kind, body) SELECT u.event_id, u.kind, u.body
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS u (event_id, kind, body, at) ORDER BY u.at";

/// Array parameters: one for each column of the rows that a statement writes.
struct ColumnParams(StatementParams);

impl ColumnParams {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn with_column<T>(mut self, values: impl IntoIterator<Item = T>) -> Self
    where
        Vec<T>: ToSql + Sync + Send + 'static,
    {
        self.0.push(Box::new(values.into_iter().collect::<Vec<T>>()));
        self
    }

    fn with_value(mut self, value: impl ToSql + Sync + Send + 'static) -> Self {
        self.0.push(Box::new(value));
        self
    }

    /// Adds how many rows the statement must touch.
    fn with_row_count(self, rows: usize) -> Self {
        self.with_value(i64::try_from(rows).unwrap_or(i64::MAX))
    }
}

/// Sends all changes and COMMIT. Releases the queue when they are built.
pub(super) async fn commit(
    session: &mut PooledSession,
    changes: BatchChanges,
    now: Moment,
    turn: Option<QueueTurn>,
) -> TransactionOutcome {
    let pipeline = match build_pipeline(&changes, now) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            session.roll_back(None).await;
            return TransactionOutcome::RolledBack(error);
        }
    };
    drop(turn);
    match session.finish(pipeline).await {
        Ok(results) => outcome_of(results),
        // COMMIT may have been sent and executed.
        Err(error) => TransactionOutcome::Unknown(error),
    }
}

/// The outcome that the results imply. The server executes in order: if it reports the end of the session at a statement
/// before COMMIT, COMMIT was not executed. If the connection just breaks, the outcome is unknown.
fn outcome_of(mut results: PipelineResults) -> TransactionOutcome {
    let commit = results.pop();
    for answer in results {
        match answer {
            Ok(_) => {}
            Err(error) if error.is_server_error() || error.is_session_end() => {
                return TransactionOutcome::RolledBack(error);
            }
            Err(error) => return TransactionOutcome::Unknown(error),
        }
    }
    match commit {
        Some(Ok(_)) => TransactionOutcome::Durable,
        Some(Err(error)) if error.is_server_error() => TransactionOutcome::RolledBack(error),
        Some(Err(error)) => TransactionOutcome::Unknown(error),
        None => TransactionOutcome::Unknown(PostgresError::NoConnection("no answer to COMMIT".into())),
    }
}

fn build_pipeline(changes: &BatchChanges, now: Moment) -> PostgresResult<Pipeline> {
    let mut pipeline = Pipeline::default();
    events(&mut pipeline, changes)?;
    holds(&mut pipeline, changes)?;
    seats(&mut pipeline, changes)?;
    counters(&mut pipeline, changes);
    orders(&mut pipeline, changes)?;
    let BatchChanges { payments, callbacks, answers, entries, .. } = changes;
    if !payments.is_empty() {
        let columns = ColumnParams::new().with_column(payments.keys().cloned());
        pipeline.add(PAYMENTS, columns.with_column(payments.values().map(|hold| hold.0.clone())).0);
    }
    if !callbacks.is_empty() {
        pipeline.add(CALLBACKS, ColumnParams::new().with_column(callbacks.iter().cloned()).0);
    }
    if !answers.is_empty() {
        let columns = ColumnParams::new().with_column(answers.iter().map(|row| row.0.to_vec()));
        let columns = columns.with_column(answers.iter().map(|row| row.1.to_vec()));
        pipeline.add(ANSWERS, columns.with_column(answers.iter().map(|row| row.2.clone())).with_value(big(now.0)?).0);
    }
    if !entries.is_empty() {
        let columns = ColumnParams::new().with_column(entries.iter().map(|entry| entry.event_id.0.clone()));
        let columns = columns.with_column(words(entries.iter().map(|entry| &entry.kind))?);
        pipeline.add(TELL, columns.with_column(jsons(entries)?).0);
    }
    pipeline.add("COMMIT", vec![]);
    Ok(pipeline)
}

fn events(pipeline: &mut Pipeline, changes: &BatchChanges) -> PostgresResult<()> {
    let BatchChanges { new_events, events, layouts, .. } = changes;
    if !new_events.is_empty() {
        let ids = new_events.iter().map(|row| row.event_id.0.clone());
        pipeline.add(NEW_EVENTS, ColumnParams::new().with_column(ids).with_column(jsons(new_events)?).0);
    }
    if !events.is_empty() {
        let columns = ColumnParams::new().with_column(events.keys().map(|id| id.0.clone()));
        pipeline.add(EVENTS, columns.with_column(jsons(events.values())?).with_row_count(events.len()).0);
    }
    layouts.iter().try_for_each(|(event, new)| layout(pipeline, event, new))
}

fn layout(pipeline: &mut Pipeline, event: &EventId, layout: &Layout) -> PostgresResult<()> {
    let Layout { seats, areas } = layout;
    pipeline.add(NO_SEATS, ColumnParams::new().with_value(event.0.clone()).0);
    let columns = ColumnParams::new().with_value(event.0.clone()).with_column(seats.iter().map(|seat| seat.id.clone()));
    let columns = columns.with_column(seats.iter().map(|seat| seat.section.clone()));
    let columns = columns.with_column(seats.iter().map(|seat| seat.row.clone()));
    let columns = columns.with_column(seats.iter().map(|seat| i64::from(seat.number)));
    pipeline.add(LAYOUT_SEATS, columns.with_column(bigs(seats.iter().map(|seat| seat.price))?).0);
    let ids = || areas.iter().map(|area| area.id.clone());
    pipeline.add(OTHER_AREAS, ColumnParams::new().with_value(event.0.clone()).with_column(ids()).0);
    let columns = ColumnParams::new().with_value(event.0.clone()).with_column(ids());
    let columns = columns.with_column(areas.iter().map(|area| i64::from(area.capacity)));
    pipeline.add(LAYOUT_AREAS, columns.with_column(bigs(areas.iter().map(|area| area.price))?).0);
    Ok(())
}

fn holds(pipeline: &mut Pipeline, changes: &BatchChanges) -> PostgresResult<()> {
    let (new, known): (Vec<&HoldRow>, Vec<&HoldRow>) =
        changes.holds.values().partition(|row| changes.new_holds.contains(&row.hold_id));
    let ids = |rows: &[&HoldRow]| rows.iter().map(|row| row.hold_id.0.clone()).collect::<Vec<_>>();
    let rest = |columns: ColumnParams, rows: &[&HoldRow]| -> PostgresResult<ColumnParams> {
        let columns = columns.with_column(rows.iter().map(|row| row.state.has_seats()));
        Ok(columns.with_column(bigs(rows.iter().map(|row| row.expires_at.0))?).with_column(jsons(rows)?))
    };
    if !new.is_empty() {
        let columns =
            ColumnParams::new().with_column(ids(&new)).with_column(new.iter().map(|row| row.event_id.0.clone()));
        pipeline.add(NEW_HOLDS, rest(columns, &new)?.0);
    }
    if !known.is_empty() {
        let columns = rest(ColumnParams::new().with_column(ids(&known)), &known)?;
        pipeline.add(HOLDS, columns.with_row_count(known.len()).0);
    }
    Ok(())
}

/// A row that the table has, and that is deleted or replaced.
fn deleted_row<T>((key, net): (&InEvent<String>, &RowChange<T>)) -> Option<(InEvent<String>, T)>
where
    T: Clone,
{
    Some((key.clone(), net.before.clone()?))
}

/// A row that is inserted.
fn inserted_row<T>((key, net): (&InEvent<String>, &RowChange<T>)) -> Option<(InEvent<String>, T)>
where
    T: Clone,
{
    Some((key.clone(), net.after.clone()?))
}

fn key_columns<T>(rows: &[(InEvent<String>, T)]) -> ColumnParams {
    let columns = ColumnParams::new().with_column(rows.iter().map(|(key, _)| key.0.0.clone()));
    columns.with_column(rows.iter().map(|(key, _)| key.1.clone()))
}

fn seats(pipeline: &mut Pipeline, changes: &BatchChanges) -> PostgresResult<()> {
    let (known, new): (Vec<_>, Vec<_>) =
        changes.held.iter().map(|(key, net)| (key.clone(), net.clone())).partition(|(_, net)| net.there);
    let hold = |hold: &Option<HoldId>| hold.as_ref().map(|hold| hold.0.clone());
    let token = |net: &HeldSeatChange| net.token.map(big).transpose();
    if !known.is_empty() {
        let columns = key_columns(&known).with_column(known.iter().map(|(_, net)| hold(&net.before)));
        let columns = columns.with_column(known.iter().map(|(_, net)| hold(&net.after)));
        let tokens = known.iter().map(|(_, net)| token(net)).collect::<PostgresResult<Vec<_>>>()?;
        pipeline.add(HELD_SEATS, columns.with_column(tokens).with_row_count(known.len()).0);
    }
    if !new.is_empty() {
        let columns = key_columns(&new).with_column(new.iter().map(|(_, net)| hold(&net.after)));
        let tokens = new.iter().map(|(_, net)| token(net)).collect::<PostgresResult<Vec<_>>>()?;
        pipeline.add(TAKE_SEATS, columns.with_column(tokens).0);
    }
    let unsold: Vec<_> = changes.sold.iter().filter_map(deleted_row).collect();
    if !unsold.is_empty() {
        let columns = key_columns(&unsold).with_column(unsold.iter().map(|(_, row)| row.0.0.clone()));
        pipeline.add(UNSELL, columns.with_row_count(unsold.len()).0);
    }
    let sold: Vec<_> = changes.sold.iter().filter_map(inserted_row).collect();
    if !sold.is_empty() {
        let columns = key_columns(&sold).with_column(sold.iter().map(|(_, row)| row.0.0.clone()));
        let columns = columns.with_column(bigs(sold.iter().map(|(_, row)| row.1))?);
        pipeline.add(SELL, columns.with_column(bigs(sold.iter().map(|(_, row)| row.2))?).0);
    }
    let unblocked: Vec<_> = changes.blocked.iter().filter_map(deleted_row).collect();
    if !unblocked.is_empty() {
        pipeline.add(UNBLOCK, key_columns(&unblocked).with_row_count(unblocked.len()).0);
    }
    let blocked: Vec<_> = changes.blocked.iter().filter_map(inserted_row).collect();
    if !blocked.is_empty() {
        pipeline.add(BLOCK, key_columns(&blocked).with_column(blocked.iter().map(|(_, reason)| reason.clone())).0);
    }
    Ok(())
}

fn counters(pipeline: &mut Pipeline, changes: &BatchChanges) {
    let areas: Vec<_> = changes.areas.iter().map(|(key, delta)| (key.clone(), *delta)).collect();
    if !areas.is_empty() {
        let columns = key_columns(&areas).with_column(areas.iter().map(|(_, delta)| delta.0));
        let columns = columns
            .with_column(areas.iter().map(|(_, delta)| delta.1))
            .with_column(areas.iter().map(|(_, delta)| delta.2));
        pipeline.add(AREAS, columns.with_row_count(areas.len()).0);
    }
    let buyers = &changes.buyers;
    if !buyers.is_empty() {
        let columns = ColumnParams::new().with_column(buyers.keys().map(|key| key.0.0.clone()));
        let columns = columns.with_column(buyers.keys().map(|key| key.1.0.clone()));
        let columns =
            columns.with_column(buyers.values().map(|row| row.0)).with_column(buyers.values().map(|row| row.1));
        let columns = columns.with_column(buyers.values().map(|row| i64::from(row.2)));
        let columns = columns.with_column(buyers.values().map(|row| i64::try_from(row.3.0).unwrap_or(i64::MAX)));
        pipeline.add(BUYERS, columns.with_row_count(buyers.len()).0);
    }
}

fn orders(pipeline: &mut Pipeline, changes: &BatchChanges) -> PostgresResult<()> {
    let (new, known): (Vec<&OrderRow>, Vec<&OrderRow>) =
        changes.orders.values().partition(|row| changes.new_orders.contains(&row.order_id));
    let ids = |rows: &[&OrderRow]| rows.iter().map(|row| row.order_id.0.clone()).collect::<Vec<_>>();
    if !new.is_empty() {
        let columns =
            ColumnParams::new().with_column(ids(&new)).with_column(new.iter().map(|row| row.event_id.0.clone()));
        pipeline.add(NEW_ORDERS, columns.with_column(jsons(&new)?).0);
    }
    if !known.is_empty() {
        pipeline.add(
            ORDERS,
            ColumnParams::new().with_column(ids(&known)).with_column(jsons(&known)?).with_row_count(known.len()).0,
        );
    }
    let (new, known): (Vec<&MoneyRow>, Vec<&MoneyRow>) =
        changes.money.values().partition(|row| changes.new_money.contains(&row.key()));
    let ids = |rows: &[&MoneyRow]| rows.iter().map(|row| row.key()).collect::<Vec<_>>();
    if !new.is_empty() {
        let columns =
            ColumnParams::new().with_column(ids(&new)).with_column(new.iter().map(|row| row.event_id.0.clone()));
        let columns = columns.with_column(words(new.iter().map(|row| &row.state))?);
        pipeline.add(
            NEW_MONEY,
            columns.with_column(bigs(new.iter().map(|row| row.received_at.0))?).with_column(jsons(&new)?).0,
        );
    }
    if !known.is_empty() {
        let columns =
            ColumnParams::new().with_column(ids(&known)).with_column(words(known.iter().map(|row| &row.state))?);
        pipeline.add(MONEY, columns.with_column(jsons(&known)?).with_row_count(known.len()).0);
    }
    Ok(())
}

pub(super) fn json<T: Serialize>(row: &T) -> PostgresResult<String> {
    serde_json::to_string(row).map_err(|error| PostgresError::corrupt("rows can be written", error.to_string()))
}

fn jsons<T: Serialize>(rows: impl IntoIterator<Item = T>) -> PostgresResult<Vec<String>> {
    rows.into_iter().map(|row| json(&row)).collect()
}

/// Names of states and kinds, as in JSON and without its quotes.
pub(super) fn words<'a, T: Serialize + 'a>(values: impl Iterator<Item = &'a T>) -> PostgresResult<Vec<String>> {
    values.map(|value| Ok(json(value)?.trim_matches('"').to_owned())).collect()
}

/// Numbers that PostgreSQL can keep: tokens, prices and moments up to 2^63.
fn big(value: u64) -> PostgresResult<i64> {
    i64::try_from(value)
        .map_err(|_| PostgresError::corrupt("tokens, prices and moments are below 2^63", value.to_string()))
}

fn bigs(values: impl Iterator<Item = u64>) -> PostgresResult<Vec<i64>> {
    values.map(big).collect()
}

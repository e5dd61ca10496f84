//! The tables `webhooks` and `webhook_cursors`. Each function runs inside one transaction of the writer or of a reader.

use rusqlite::{Connection, params};

use super::load::{self, SqliteResult, json};
use crate::model::{EventId, WebhookAdded, WebhookRow};

pub(super) fn list_all(db: &Connection) -> SqliteResult<Vec<WebhookRow>> {
    load::load_list(db, "SELECT body FROM webhooks ORDER BY id", [], "webhooks")
}

fn find_webhook(db: &Connection, id: &str) -> SqliteResult<Option<WebhookRow>> {
    Ok(load::load_list(db, "SELECT body FROM webhooks WHERE id = ?1", [id], "webhooks")?.pop())
}

/// Inserts a webhook and its cursors: it hears what gets a number after this transaction.
pub(super) fn add(db: &Connection, webhook: &WebhookRow, max: usize) -> SqliteResult<WebhookAdded> {
    if let Some(found) = find_webhook(db, &webhook.id)? {
        return Ok(WebhookAdded::Exists(found));
    }
    let count: usize = db.prepare_cached("SELECT count(*) FROM webhooks")?.query_row([], |row| row.get(0))?;
    if count >= max {
        return Ok(WebhookAdded::TooMany);
    }
    db.prepare_cached("INSERT INTO webhooks VALUES (?1, ?2)")?.execute(params![webhook.id, json(webhook)?])?;
    let sql = "INSERT INTO webhook_cursors SELECT ?1, event_id, seq FROM heads WHERE ?2 IS NULL OR event_id = ?2
               ON CONFLICT (webhook_id, event_id) DO UPDATE SET seq = max(seq, excluded.seq)";
    db.prepare_cached(sql)?.execute(params![webhook.id, webhook.event_id.as_ref().map(EventId::as_str)])?;
    Ok(WebhookAdded::Added)
}

pub(super) fn deactivate(db: &Connection, id: &str) -> SqliteResult<bool> {
    let Some(found) = find_webhook(db, id)? else { return Ok(false) };
    let body = json(&WebhookRow { active: false, ..found })?;
    Ok(db.prepare_cached("UPDATE webhooks SET body = ?2 WHERE id = ?1")?.execute([id, &body])? > 0)
}

pub(super) fn remove(db: &Connection, seen: &WebhookRow) -> SqliteResult<bool> {
    if find_webhook(db, &seen.id)?.is_none_or(|found| found.event_id != seen.event_id) {
        return Ok(false);
    }
    db.prepare_cached("DELETE FROM webhook_cursors WHERE webhook_id = ?1")?.execute([&seen.id])?;
    Ok(db.prepare_cached("DELETE FROM webhooks WHERE id = ?1")?.execute([&seen.id])? > 0)
}

pub(super) fn cursor(db: &Connection, id: &str, event: &EventId) -> SqliteResult<u64> {
    let sql = "SELECT coalesce(max(seq), 0) FROM webhook_cursors WHERE webhook_id = ?1 AND event_id = ?2";
    Ok(db.prepare_cached(sql)?.query_row([id, event.as_str()], |row| row.get(0))?)
}

/// Moves a cursor forward. A webhook that was removed gets none: a message may be on its way while it is removed.
pub(super) fn advance(db: &Connection, id: &str, event: &EventId, seq: u64) -> SqliteResult<()> {
    let sql = "INSERT INTO webhook_cursors SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM webhooks WHERE id = ?1)
               ON CONFLICT (webhook_id, event_id) DO UPDATE SET seq = max(seq, excluded.seq)";
    db.prepare_cached(sql)?.execute(params![id, event.as_str(), seq])?;
    Ok(())
}

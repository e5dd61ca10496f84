//! The table of cases that every adapter passes, for every way to fence a table and every way to write.

use leasehold::fence::FenceRefusal;
use leasehold::fence::postgres::{Remember, check_fence, refusal_from_sql};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};
use tokio_postgres::Client;

use crate::support::{Database, options};

struct TableSubject {
    client: Client,
    sql: String,
}

impl FenceSubject for TableSubject {
    async fn write(&mut self, _resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let transaction = self.client.transaction().await.unwrap();
        if let Some(shown) = shown {
            transaction.execute("SELECT set_config('leasehold.token', $1, true)", &[&shown]).await.unwrap();
        }
        match transaction.batch_execute(&self.sql).await {
            Ok(()) => transaction.commit().await.map_err(|error| refusal_from_sql(&error).unwrap()),
            Err(error) => Err(refusal_from_sql(&error).unwrap_or_else(|| panic!("{error:?}"))),
        }
    }
}

/// Goal: rows that keep their own fence, and fences by name, obey the table of cases.
/// Method: every case by UPDATE, by upsert of a row that is there and of one that is not, and by DELETE and INSERT.
#[tokio::test]
async fn tables_fenced_by_key_pass_the_table_of_cases() {
    for remember in [Remember::Row, Remember::Name] {
        let database = Database::new("CREATE TABLE seats (seat_id int PRIMARY KEY, owner text)").await;
        // Rows from before the fence: they have seen no token.
        database.admin.batch_execute("INSERT INTO seats SELECT n, '' FROM generate_series(1, 400) n").await.unwrap();
        database.install(&options("seats", &["seat_id"], "seat/{}", remember)).await;
        let writes = [
            (0, "UPDATE seats SET owner = owner || 'x' WHERE seat_id = @"),
            (100, "INSERT INTO seats VALUES (@, 'x') ON CONFLICT (seat_id) DO UPDATE SET owner = 'x'"),
            (1000, "INSERT INTO seats VALUES (@, 'x') ON CONFLICT (seat_id) DO UPDATE SET owner = 'x'"),
            (200, "DELETE FROM seats WHERE seat_id = @; INSERT INTO seats VALUES (@, 'x')"),
        ];
        for (first, sql) in writes {
            for (at, case) in all_cases().iter().enumerate() {
                let seat = first + at + 1;
                let sql = sql.replace('@', &seat.to_string());
                let mut subject = TableSubject { client: database.client().await, sql };
                case.run(&format!("seat/{seat}"), &mut subject).await;
            }
        }
    }
}

/// Goal: one name for a whole table obeys the table of cases.
#[tokio::test]
async fn a_table_fenced_by_one_name_passes_the_table_of_cases() {
    let database = Database::new("").await;
    for (at, case) in all_cases().iter().enumerate() {
        let (table, name) = (format!("bills{at}"), format!("billing/{at}"));
        database.admin.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
        database.install(&options(&table, &[], &name, Remember::Name)).await;
        let sql = format!("INSERT INTO {table} VALUES (1); UPDATE {table} SET n = n + 1");
        case.run(&name, &mut TableSubject { client: database.client().await, sql }).await;
    }
}

struct CheckSubject(Client);

impl FenceSubject for CheckSubject {
    async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let transaction = self.0.transaction().await.unwrap();
        let checked = match shown.map(str::parse) {
            // The helper takes what was parsed; SQL by hand may show anything.
            Some(Ok(setting)) => match check_fence(&transaction, resource, &setting).await {
                Err(leasehold::fence::FenceError::Refused(refusal)) => Err(refusal),
                checked => {
                    checked.unwrap();
                    Ok(())
                }
            },
            _ => {
                let sql = "SELECT leasehold_fence.check($1, $2)";
                let checked = transaction.execute(sql, &[&resource, &shown]).await;
                checked.map(|_| ()).map_err(|error| refusal_from_sql(&error).unwrap_or_else(|| panic!("{error:?}")))
            }
        };
        if checked.is_ok() {
            transaction.commit().await.unwrap();
        }
        checked
    }
}

/// Goal: `leasehold_fence.check` obeys the table of cases.
#[tokio::test]
async fn the_check_for_hand_written_transactions_passes_the_table_of_cases() {
    let database = Database::new("CREATE TABLE things (n int)").await;
    database.install(&options("things", &[], "things", Remember::Name)).await;
    for (at, case) in all_cases().iter().enumerate() {
        case.run(&format!("hand/{at}"), &mut CheckSubject(database.client().await)).await;
    }
}

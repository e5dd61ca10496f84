//! A table of seats in PostgreSQL, written as any client writes it: the token is a setting of the transaction.

use anyhow::Context as _;
use leasehold::fence::postgres::{FenceMode, InstallOptions, install};
use tokio_postgres::{Client, NoTls};

use super::SeatWrite;

/// What the codes of the fence begin with.
const FENCE_CODE: &str = "LH";

/// Makes a table with one free seat.
pub async fn create_seats(url: &str, fenced: bool) -> anyhow::Result<()> {
    let mut client = connect(url).await?;
    let sql =
        "CREATE TABLE seats (seat_id text PRIMARY KEY, owner text NOT NULL); INSERT INTO seats VALUES ('14', 'free')";
    client.batch_execute(sql).await.context("make a table of seats")?;
    if fenced {
        let options = InstallOptions {
            table: "seats".into(),
            keys: vec!["seat_id".into()],
            resource: Some("seat/{}".into()),
            remember: None,
            mode: FenceMode::Enforce,
        };
        install(&mut client, &options).await.context("install the fence")?;
    }
    Ok(())
}

/// Who owns the seat.
pub async fn read_owner(url: &str) -> anyhow::Result<String> {
    let client = connect(url).await?;
    let row = client.query_one("SELECT owner FROM seats WHERE seat_id = '14'", &[]).await.context("read the seat")?;
    Ok(row.get(0))
}

/// Writes an owner into the seat.
pub async fn write_owner(url: &str, owner: &str, shown: Option<&str>) -> anyhow::Result<SeatWrite> {
    let mut client = connect(url).await?;
    let transaction = client.transaction().await.context("begin a write")?;
    if let Some(shown) = shown {
        let sql = "SELECT set_config('leasehold.token', $1, true)";
        transaction.execute(sql, &[&shown]).await.context("show the token")?;
    }
    let sql = "UPDATE seats SET owner = $1 WHERE seat_id = '14'";
    match transaction.execute(sql, &[&owner]).await {
        Ok(_) => {
            transaction.commit().await.context("commit a write")?;
            Ok(SeatWrite::Admitted)
        }
        Err(error) => match error.as_db_error() {
            Some(refusal) if refusal.code().code().starts_with(FENCE_CODE) => {
                let (code, why) = (refusal.code().code().to_owned(), refusal.message().to_owned());
                Ok(SeatWrite::Fenced { code, why })
            }
            _ => Err(error).context("write"),
        },
    }
}

/// Makes an empty database beside the one of this URL.
pub async fn create_database(url: &str, name: &str) -> anyhow::Result<()> {
    let client = connect(url).await?;
    client.batch_execute(&format!("CREATE DATABASE {name}")).await.context("make a database")
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("connect to PostgreSQL")?;
    // It ends with the client.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

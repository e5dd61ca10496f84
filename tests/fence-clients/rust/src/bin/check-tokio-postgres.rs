//! tokio-postgres: the recipe of the guide on one connection. `RECIPES` names the directory of the recipes at build time.

mod recipe {
    include!(concat!(env!("RECIPES"), "/tokio-postgres"));
}

use recipe::{sell, why};
use tokio_postgres::{Error, NoTls};

fn say(answer: Result<(), Error>) {
    match answer {
        Ok(()) => println!("null"),
        Err(error) => {
            let (code, detail) = why(&error).expect("an error of the database");
            println!("[{code:?}, {detail:?}]");
        }
    }
}

#[tokio::main]
async fn main() {
    let from_env = |name: &str| std::env::var(name).expect(name);
    let (new, old) = (from_env("NEW"), from_env("OLD"));
    let (mut client, connection) = tokio_postgres::connect(&from_env("DATABASE"), NoTls).await.expect("connected");
    tokio::spawn(connection);
    say(sell(&mut client, &new, 14, "bob").await);
    say(sell(&mut client, &old, 14, "ada").await);
    say(client.execute("UPDATE seats SET owner = 'nobody' WHERE seat_id = 14", &[]).await.map(drop));
    say(sell(&mut client, &new, 14, "bob again").await);
}

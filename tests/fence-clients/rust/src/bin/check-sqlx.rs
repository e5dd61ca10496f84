//! sqlx: the recipe of the guide on a pool of one connection. `RECIPES` names the directory of the recipes at build time.

mod recipe {
    include!(concat!(env!("RECIPES"), "/sqlx"));
}

use recipe::{sell, why};
use sqlx::postgres::PgPoolOptions;

fn say(answer: Result<(), sqlx::Error>) {
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
    let pool = PgPoolOptions::new().max_connections(1).connect(&from_env("DATABASE")).await.expect("connected");
    say(sell(&pool, &new, 14, "bob").await);
    say(sell(&pool, &old, 14, "ada").await);
    say(sqlx::query("UPDATE seats SET owner = 'nobody' WHERE seat_id = 14").execute(&pool).await.map(drop));
    say(sell(&pool, &new, 14, "bob again").await);
}

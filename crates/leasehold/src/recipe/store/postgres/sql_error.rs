//! What an error of PostgreSQL means for a recipe: refused, without effect, or unknown.

use leasehold_postgres::message_and_code;
use leasehold_postgres::tokio_postgres::Error as SqlError;
use leasehold_postgres::tokio_postgres::error::Severity;

use super::STORE_NAME;
use crate::recipe::error::{RecipeError, RecipeRefusal};

/// What a statement without an answer may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlEffect {
    /// Nothing: it is inside a transaction that is not committed, or it only reads.
    None,
    /// Everything: it commits by itself.
    Unknown,
}

/// The cause in errors of this store: the text without values, and the code of the server.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct StoreSqlCause {
    text: String,
    code: String,
}

/// The code of the server in an error of this store.
pub(crate) fn sql_code(error: &RecipeError) -> Option<&str> {
    match error {
        RecipeError::Unavailable { source, .. } => {
            source.downcast_ref::<StoreSqlCause>().map(|cause| cause.code.as_str())
        }
        _ => None,
    }
}

/// The error for the caller of a statement.
pub(crate) fn recipe_error(error: &SqlError, attempt: &str, effect: SqlEffect) -> RecipeError {
    let cause = message_and_code(error);
    let Some(answer) = error.as_db_error() else { return lost(cause, attempt, effect) };
    let code = answer.code().code();
    match code {
        "LH400" => RecipeError::Invalid(answer.message().to_owned()),
        "LH404" => {
            let name = answer.message().strip_prefix("no queue ").unwrap_or(answer.message()).to_owned();
            RecipeError::Refused(RecipeRefusal::NoQueue { name })
        }
        "LH409" => {
            let what = answer.message().strip_suffix(" is stale").unwrap_or(answer.message()).to_owned();
            RecipeError::Refused(RecipeRefusal::Stale { what })
        }
        "42501" => RecipeError::Invalid(format!("the role may not use the store, grant it what it needs: {cause}")),
        "42P01" | "3F000" | "42883" => RecipeError::Invalid(format!(
            "the store is not in this database, run `leasehold migrate --store URL` as its owner: {cause}"
        )),
        "26000" | "42P05" => {
            RecipeError::Invalid("this address is a transaction pooler: a store needs the server's own address".into())
        }
        "XX001" | "XX002" => RecipeError::corrupt(STORE_NAME, "the database is sound", cause),
        // Text that the database does not take, such as a NUL.
        _ if code.starts_with("22") => RecipeError::Invalid(format!("{attempt}: {cause}")),
        _ if code.starts_with("23") => {
            RecipeError::corrupt(STORE_NAME, "no call goes against a constraint", format!("{attempt}: {cause}"))
        }
        // The session goes on: the transaction of the statement is rolled back.
        _ if answer.parsed_severity() == Some(Severity::Error) => {
            let source = StoreSqlCause { text: cause, code: code.to_owned() };
            RecipeError::unavailable(STORE_NAME, attempt, source)
        }
        _ => lost(cause, attempt, effect),
    }
}

fn lost(cause: String, attempt: &str, effect: SqlEffect) -> RecipeError {
    match effect {
        SqlEffect::None => RecipeError::unavailable(STORE_NAME, attempt, cause),
        SqlEffect::Unknown => RecipeError::indeterminate(STORE_NAME, attempt, cause),
    }
}

/// What kept us from connecting. Nothing was asked yet.
pub(super) fn connect_error(error: &SqlError, attempt: &str) -> RecipeError {
    match error.code().map(|code| code.code()) {
        Some("28P01" | "28000") => RecipeError::Invalid("PostgreSQL does not accept this user and password".into()),
        Some("3D000") => RecipeError::Invalid("there is no such database".into()),
        _ => RecipeError::unavailable(STORE_NAME, attempt, message_and_code(error)),
    }
}

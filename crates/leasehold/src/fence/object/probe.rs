//! Tries a store before it is believed: does it keep its conditions, and does a version come twice?

use std::collections::BTreeMap;

use super::store::{NewObject, ObjectStore, PutCondition, PutOutcome, StoreError};
use super::{read_failed, unavailable};
use crate::fence::FenceError;

/// A version that no store gives.
const WRONG_VERSION: &str = "\"00000000000000000000000000000000\"";
const PROBE_METADATA: &str = "leasehold-fence";

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedStore {
    /// The same body written again has another version.
    pub versions_are_unique: bool,
}

/// Writes, overwrites and removes a scratch object.
pub(super) async fn try_store<S: ObjectStore>(store: &S, key: &str) -> Result<ProbedStore, FenceError> {
    let found = try_conditions(store, key).await;
    // It is a scratch object of a name of its own: what is left of it does no harm.
    let _ = store.delete(key).await;
    found
}

async fn try_conditions<S: ObjectStore>(store: &S, key: &str) -> Result<ProbedStore, FenceError> {
    let first = written(put(store, key, "first", "1", &PutCondition::Absent).await?, "a condition that holds")?;
    refused(put(store, key, "again", "2", &PutCondition::Absent).await?, "If-None-Match on an object that is there")?;
    let wrong = PutCondition::Version(WRONG_VERSION.into());
    refused(put(store, key, "wrong", "3", &wrong).await?, "If-Match with a wrong ETag")?;
    let second = put(store, key, "second", "4", &PutCondition::Version(first.clone())).await?;
    let second = written(second, "If-Match with the right ETag")?;
    let old = PutCondition::Version(first);
    refused(put(store, key, "late", "5", &old).await?, "If-Match with the ETag of an older version")?;
    let again = put(store, key, "second", "6", &PutCondition::Version(second.clone())).await?;
    let third = written(again, "If-Match with the right ETag")?;
    let head = store.head(key).await.map_err(|error| read_failed(key, error))?;
    let head = head.ok_or_else(|| lies("forgets what was just written"))?;
    if head.metadata.get(PROBE_METADATA).map(String::as_str) != Some("6") {
        return Err(lies("loses metadata, or reads an older version than was written"));
    }
    if head.version != third {
        return Err(lies("reads another version than was written"));
    }
    let missing = format!("{key}-missing");
    refused(put(store, &missing, "none", "7", &wrong).await?, "If-Match on an object that is not there")?;
    Ok(ProbedStore { versions_are_unique: third != second })
}

async fn put<S: ObjectStore>(
    store: &S,
    key: &str,
    body: &str,
    mark: &str,
    condition: &PutCondition,
) -> Result<PutOutcome, FenceError> {
    let metadata = BTreeMap::from([(PROBE_METADATA.to_owned(), mark.to_owned())]);
    let object = NewObject { body: body.into(), metadata };
    store.put(key, &object, condition).await.map_err(|error| match error {
        StoreError::NoEffect(source) | StoreError::Unknown(source) => unavailable(key, source),
        StoreError::Invalid(sentence) => FenceError::Invalid(sentence),
    })
}

fn written(outcome: PutOutcome, what: &str) -> Result<String, FenceError> {
    match outcome {
        PutOutcome::Written { version } => Ok(version),
        PutOutcome::ConditionFailed => Err(lies(&format!("refuses {what}"))),
    }
}

fn refused(outcome: PutOutcome, what: &str) -> Result<(), FenceError> {
    match outcome {
        PutOutcome::ConditionFailed => Ok(()),
        PutOutcome::Written { .. } => Err(lies(&format!("accepts {what}"))),
    }
}

fn lies(what: &str) -> FenceError {
    FenceError::Invalid(format!("this object store {what}: it cannot be fenced"))
}

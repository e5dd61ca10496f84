//! What a fence needs of an object store. Implement it over the client that you have.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use crate::error::BoxError;

/// An answer of a store.
pub type StoreAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// An object store with conditional writes: S3 and what speaks like it (`If-Match`, `If-None-Match`), Azure Blob, Google
/// Cloud Storage (`ifGenerationMatch`).
///
/// It has no signatures and no retries of its own: those belong to the client of the store. **Turn the client's retries of
/// `put` off.** A retry that meets its own first try is [`PutOutcome::ConditionFailed`], and the fence recognises the
/// write as its own, but only while nobody else has written since. After that an edit would be made twice.
pub trait ObjectStore: Send + Sync {
    /// The object; none if there is none. It must be as new as the last acknowledged `put`.
    fn get<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<StoredObject>>;

    /// What [`ObjectStore::get`] says, without the body. S3: HEAD.
    fn head<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<ObjectHead>>;

    /// Writes the object with its metadata, if the condition holds, in one step.
    fn put<'a>(
        &'a self,
        key: &'a str,
        object: &'a NewObject,
        condition: &'a PutCondition,
    ) -> StoreAnswer<'a, PutOutcome>;

    /// Removes an object. Only the scratch object of the probe is ever removed.
    fn delete<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, ()>;
}

/// What to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewObject {
    /// The bytes.
    pub body: Vec<u8>,
    /// The metadata, whole. Names are lower case. S3: `x-amz-meta-NAME`.
    pub metadata: BTreeMap<String, String>,
}

/// An object without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHead {
    /// What a condition compares: the ETag, or the generation.
    pub version: String,
    /// Its metadata. Names are lower case.
    pub metadata: BTreeMap<String, String>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// All but the body.
    pub head: ObjectHead,
    /// The bytes.
    pub body: Vec<u8>,
}

/// When to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// There is no object. S3: `If-None-Match: *`; Google: generation 0.
    Absent,
    /// The object is still this version. S3: `If-Match`.
    Version(String),
}

/// What came of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written, durably. The version that it has now.
    Written {
        /// The new ETag or generation.
        version: String,
    },
    /// Not written: the condition did not hold, or another write was under way. S3: 412 and 409; also 404 with `If-Match`.
    ConditionFailed,
}

/// Why a store has no answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It did not take effect: refused, or never sent.
    #[error("the store is unavailable, nothing was written")]
    NoEffect(#[source] BoxError),
    /// It may have taken effect, or may still: a timeout, a lost connection, a 5xx.
    #[error("the store gave no answer")]
    Unknown(#[source] BoxError),
    /// It can never succeed: no such bucket, access denied.
    #[error("{0}")]
    Invalid(String),
}

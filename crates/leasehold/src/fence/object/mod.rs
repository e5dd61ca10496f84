//! Objects of an object store, fenced: the token stands in the metadata of the object, and a conditional write replaces
//! both in one step.
//!
//! ```text
//! head: version and fence · decide · put if still that version · otherwise again
//! ```
//!
//! The store is yours: implement [`ObjectStore`] over the client that you have. There is none here, because signatures,
//! roles and endpoints are what such clients are made for.
//!
//! # Laws
//!
//! 1. A write is conditional on the version that was decided about. Between the two nobody can write unseen.
//! 2. **A version never comes twice.** The ETag of S3 is the hash of the body: the same body has the same ETag, whatever
//!    its fence. A late writer that decided at that body would be admitted when the body comes again. So where versions
//!    are hashes, every body gets a stamp at its end that is unique, and [`ObjectFence::read`] takes it off again.
//! 3. A store that accepts a wrong version is refused when the fence is opened: it is no fence.
//! 4. Nothing is removed, because a removed object has forgotten its fence: [`ObjectFence::remove`] writes a tombstone.
//! 5. Each write has an id of its own in its metadata. Whether a write without an answer took effect is read there.
//!
//! # Not here
//!
//! Writers that use the bucket without asking. Rules of the bucket that expire objects: they delete, and forget. Versions
//! that a person restores: they restore the old fence too.

mod probe;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use store::{NewObject, ObjectHead, ObjectStore, PutCondition, PutOutcome, StoreAnswer, StoreError, StoredObject};

use super::{FenceError, FenceKind, FenceRefusal, FenceSetting, FenceToken, counters, decide};
use crate::clock::{Clock, SystemClock};
use crate::error::BoxError;
use crate::lease::FencedLease;

/// The metadata that holds `token:mark`.
pub const FENCE_METADATA: &str = "leasehold-fence";
/// The metadata that tells a write from every other.
const WRITE_METADATA: &str = "leasehold-write";
/// The metadata of a tombstone.
const GONE_METADATA: &str = "leasehold-gone";
/// The metadata that says how many bytes at the end of the body are a stamp.
const STAMP_METADATA: &str = "leasehold-stamp";
/// How often a write begins anew because others write too.
const MAX_ROUNDS: u32 = 64;
/// How often a write without an answer is asked for again.
const MAX_SETTLE_ROUNDS: u32 = 5;
/// The first pause between rounds, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A bucket whose objects are written under a fence. See the module.
pub struct ObjectFence<S> {
    store: S,
    /// Whether bodies get a stamp, because versions are hashes of them.
    stamps: bool,
    clock: Arc<dyn Clock>,
}

impl<S> fmt::Debug for ObjectFence<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFence").field("stamps", &self.stamps).finish_non_exhaustive()
    }
}

/// What a write makes of the object that is there.
enum ObjectChange<'a> {
    Replace(Vec<u8>),
    Edit(&'a mut (dyn FnMut(Option<Vec<u8>>) -> Result<Vec<u8>, BoxError> + Send)),
    Remove,
}

/// What came of one round.
enum PutRound {
    Done,
    /// Others wrote meanwhile.
    Again,
    /// No answer: the same write may be asked for again.
    Unknown {
        sent: SentWrite,
        source: BoxError,
    },
}

/// A write that was sent, and may have taken effect.
struct SentWrite {
    object: NewObject,
    condition: PutCondition,
}

impl<S: ObjectStore> ObjectFence<S> {
    /// Tries the store with a scratch object under this prefix, and removes it again.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: the store accepts a condition that does not hold, or loses metadata, or reads an older
    /// version than it wrote. [`FenceError::Unavailable`]: it does not answer.
    pub async fn open(store: S, scratch_prefix: &str) -> Result<Self, FenceError> {
        let key = format!("{scratch_prefix}leasehold-probe-{}", random_id()?);
        let found = probe::try_store(&store, &key).await?;
        Ok(Self { store, stamps: !found.versions_are_unique, clock: SystemClock::shared() })
    }

    /// A fence on a store that was not tried, for tests that plant a fault.
    #[cfg(any(test, feature = "testkit"))]
    pub fn untried(store: S, stamps: bool) -> Self {
        Self { store, stamps, clock: SystemClock::shared() }
    }

    /// Whether bodies end with a stamp, because the versions of this store are hashes of
    /// the bodies. Readers that do not use [`ObjectFence::read`] see it.
    #[must_use]
    pub const fn stamps_bodies(&self) -> bool {
        self.stamps
    }

    /// Writes an object under a lease on `resource`.
    ///
    /// A lease for efficiency has no token, and opens no fenced write:
    ///
    /// ```compile_fail,E0308
    /// use leasehold::{Lease, fence::object::{ObjectFence, ObjectStore}};
    ///
    /// async fn save<S: ObjectStore>(bucket: &ObjectFence<S>, lease: &Lease) {
    ///     let _ = bucket.write(lease, "seat/14", "seats/14.json", "{}").await; // expected `&FencedLease`, found `&Lease`
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]: a later holder has written, or the lease does not cover the resource.
    pub async fn write(
        &self,
        lease: &FencedLease,
        resource: &str,
        key: &str,
        body: impl Into<Vec<u8>>,
    ) -> Result<(), FenceError> {
        self.change_object(&FenceSetting::for_lease(lease)?, resource, key, ObjectChange::Replace(body.into())).await
    }

    /// Replaces an object by what `edit` makes of it; `None` is an object that is not there. `edit` is called again when
    /// others write meanwhile.
    ///
    /// # Errors
    ///
    /// As [`ObjectFence::write`]; [`FenceError::Work`] if `edit` fails.
    pub async fn update<F>(&self, lease: &FencedLease, resource: &str, key: &str, mut edit: F) -> Result<(), FenceError>
    where
        F: FnMut(Option<Vec<u8>>) -> Result<Vec<u8>, BoxError> + Send,
    {
        self.change_object(&FenceSetting::for_lease(lease)?, resource, key, ObjectChange::Edit(&mut edit)).await
    }

    /// Writes a tombstone: [`ObjectFence::read`] finds nothing, and the fence stays.
    ///
    /// # Errors
    ///
    /// As [`ObjectFence::write`].
    pub async fn remove(&self, lease: &FencedLease, resource: &str, key: &str) -> Result<(), FenceError> {
        self.change_object(&FenceSetting::for_lease(lease)?, resource, key, ObjectChange::Remove).await
    }

    /// As [`ObjectFence::update`], under whatever is shown: for tables of cases and races.
    ///
    /// # Errors
    ///
    /// As [`ObjectFence::update`].
    #[cfg(any(test, feature = "testkit"))]
    pub async fn update_shown<F>(
        &self,
        shown: &FenceSetting,
        resource: &str,
        key: &str,
        mut edit: F,
    ) -> Result<(), FenceError>
    where
        F: FnMut(Option<Vec<u8>>) -> Result<Vec<u8>, BoxError> + Send,
    {
        self.change_object(shown, resource, key, ObjectChange::Edit(&mut edit)).await
    }

    /// The body; none for an object that is not there, or is a tombstone.
    ///
    /// # Errors
    ///
    /// [`FenceError::Unavailable`], or [`FenceError::Invalid`].
    pub async fn read(&self, key: &str) -> Result<Option<Vec<u8>>, FenceError> {
        let read = self.store.get(key).await.map_err(|error| read_failed(key, error))?;
        Ok(read.and_then(visible_body))
    }

    async fn change_object(
        &self,
        setting: &FenceSetting,
        resource: &str,
        key: &str,
        mut change: ObjectChange<'_>,
    ) -> Result<(), FenceError> {
        let picked = setting.pick_for(resource);
        let shown = picked.inspect_err(|_| counters::count_rejected(FenceKind::Object))?;
        let target = ObjectTarget { resource, key, shown };
        let mut pause = FIRST_PAUSE;
        let mut last_write = None;
        for _ in 0..MAX_ROUNDS {
            match self.try_round(&target, &mut change, &mut last_write).await {
                Ok(PutRound::Again) => {}
                Ok(PutRound::Done) => {
                    counters::count_admitted(FenceKind::Object);
                    return Ok(());
                }
                Ok(PutRound::Unknown { sent, source }) => {
                    self.settle_unknown(&target, sent, source).await?;
                    counters::count_admitted(FenceKind::Object);
                    return Ok(());
                }
                Err(FenceError::Refused(refusal)) => {
                    counters::count_rejected(FenceKind::Object);
                    return Err(refusal.into());
                }
                Err(other) => return Err(other),
            }
            self.pause_between(&mut pause).await;
        }
        Err(unavailable(key, "others write the object all the time".into()))
    }

    /// Reads, decides, and writes if nothing changed between. `last_write`: what the round before sent, and was told that
    /// the condition did not hold.
    async fn try_round(
        &self,
        target: &ObjectTarget<'_>,
        change: &mut ObjectChange<'_>,
        last_write: &mut Option<String>,
    ) -> Result<PutRound, FenceError> {
        let key = target.key;
        // The body is read only by who edits it.
        let (head, body) = if matches!(change, ObjectChange::Edit(_)) {
            let read = self.store.get(key).await.map_err(|error| read_failed(key, error))?;
            let head = read.as_ref().map(|object| object.head.clone());
            (head, read.and_then(visible_body))
        } else {
            (self.store.head(key).await.map_err(|error| read_failed(key, error))?, None)
        };
        // A client of the store that sent the write twice: its second try met its first.
        let found = head.as_ref().and_then(|head| head.metadata.get(WRITE_METADATA));
        if last_write.is_some() && found == last_write.as_ref() {
            return Ok(PutRound::Done);
        }
        let kept = head.as_ref().map(|head| kept_fence(head, key)).transpose()?.flatten();
        decide(kept, target.shown).into_result(target.resource)?;
        let (body, gone) = match change {
            ObjectChange::Replace(body) => (body.clone(), false),
            ObjectChange::Edit(edit) => (edit(body).map_err(FenceError::Work)?, false),
            ObjectChange::Remove => (Vec::new(), true),
        };
        let sent = SentWrite {
            object: self.prepare_object(target.shown, body, gone)?,
            condition: head.map_or(PutCondition::Absent, |head| PutCondition::Version(head.version)),
        };
        match self.store.put(key, &sent.object, &sent.condition).await {
            Ok(PutOutcome::Written { .. }) => Ok(PutRound::Done),
            Ok(PutOutcome::ConditionFailed) => {
                *last_write = sent.object.metadata.get(WRITE_METADATA).cloned();
                Ok(PutRound::Again)
            }
            Err(StoreError::NoEffect(source)) => Err(unavailable(key, source)),
            Err(StoreError::Invalid(sentence)) => Err(FenceError::Invalid(sentence)),
            Err(StoreError::Unknown(source)) => Ok(PutRound::Unknown { sent, source }),
        }
    }

    /// Finds out what came of a write without an answer. The same write under the same condition takes effect once at
    /// most, so it is asked for again until somebody answers.
    async fn settle_unknown(
        &self,
        target: &ObjectTarget<'_>,
        sent: SentWrite,
        source: BoxError,
    ) -> Result<(), FenceError> {
        let attempt = format!("write the object {}", target.key);
        let unknown = |source| FenceError::Indeterminate { kind: FenceKind::Object, attempt, source };
        let mut pause = FIRST_PAUSE;
        for _ in 0..MAX_SETTLE_ROUNDS {
            self.pause_between(&mut pause).await;
            match self.store.put(target.key, &sent.object, &sent.condition).await {
                Ok(PutOutcome::Written { .. }) => return Ok(()),
                Ok(PutOutcome::ConditionFailed) => {
                    let Ok(head) = self.store.head(target.key).await else { continue };
                    let ours = head.is_some_and(|head| {
                        head.metadata.get(WRITE_METADATA) == sent.object.metadata.get(WRITE_METADATA)
                    });
                    // Another's write is there now: ours may have been there before it.
                    return if ours { Ok(()) } else { Err(unknown(source)) };
                }
                Err(_) => {}
            }
        }
        Err(unknown(source))
    }

    fn prepare_object(&self, shown: FenceToken, mut body: Vec<u8>, gone: bool) -> Result<NewObject, FenceError> {
        let id = random_id()?;
        let mut metadata =
            BTreeMap::from([(FENCE_METADATA.to_owned(), shown.to_string()), (WRITE_METADATA.to_owned(), id.clone())]);
        if self.stamps {
            let stamp = format!("\nleasehold {id}\n");
            metadata.insert(STAMP_METADATA.into(), stamp.len().to_string());
            body.extend_from_slice(stamp.as_bytes());
        }
        if gone {
            metadata.insert(GONE_METADATA.into(), "1".into());
        }
        Ok(NewObject { body, metadata })
    }

    async fn pause_between(&self, pause: &mut Duration) {
        self.clock.sleep_until(self.clock.now().plus(*pause)).await;
        *pause = (*pause * 2).min(MAX_PAUSE);
    }
}

/// What is written, and what is shown for it.
struct ObjectTarget<'a> {
    resource: &'a str,
    key: &'a str,
    shown: FenceToken,
}

/// What the object remembers. An object that was there before the fence remembers nothing.
fn kept_fence(head: &ObjectHead, key: &str) -> Result<Option<FenceToken>, FenceError> {
    let kept = head.metadata.get(FENCE_METADATA).map(|text| text.parse());
    kept.transpose().map_err(|_: FenceRefusal| FenceError::Corrupt { kind: FenceKind::Object, at: key.to_owned() })
}

/// The body as its writer gave it.
fn visible_body(object: StoredObject) -> Option<Vec<u8>> {
    let StoredObject { head, mut body } = object;
    if head.metadata.contains_key(GONE_METADATA) {
        return None;
    }
    let stamp = head.metadata.get(STAMP_METADATA).and_then(|text| text.parse().ok()).unwrap_or(0_usize);
    body.truncate(body.len().saturating_sub(stamp));
    Some(body)
}

/// 128 bits that no other write has.
fn random_id() -> Result<String, FenceError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|_| FenceError::Invalid("the operating system gives no random bits".into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}

fn unavailable(key: &str, source: BoxError) -> FenceError {
    FenceError::Unavailable { kind: FenceKind::Object, attempt: format!("write the object {key}"), source }
}

/// Reading changes nothing, so it is never Indeterminate.
fn read_failed(key: &str, error: StoreError) -> FenceError {
    match error {
        StoreError::NoEffect(source) | StoreError::Unknown(source) => unavailable(key, source),
        StoreError::Invalid(sentence) => FenceError::Invalid(sentence),
    }
}

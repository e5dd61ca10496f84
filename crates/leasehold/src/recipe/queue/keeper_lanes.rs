//! What the keeper does differently for a queue by key: the claim is on a key, and its jobs run one after the other.

use super::calls::is_locked;
use super::keeper::Keeper;
use super::rows::LaneAsk;
use crate::clock::Time;
use crate::recipe::error::{RecipeError, RecipeRefusal};

/// Claims in a row that may find only keys of others, before the worker rests.
const MAX_EMPTY_CLAIMS: u32 = 20;

impl Keeper {
    /// Acknowledges what ended, frees keys that are done, gives back what failed, and claims keys.
    pub(super) async fn step_lanes(&mut self) -> Result<(), RecipeError> {
        self.ack_lanes().await?;
        while self.claim_due && self.free_slots() > 0 {
            let sent = self.clock.now();
            let keys = self.free_slots();
            let ask = LaneAsk {
                keys,
                jobs_per_key: self.options.jobs_per_key,
                visible: Some(self.facts.visible),
                worker: self.options.worker.clone(),
                after: self.cursor.clone(),
            };
            let answer = self.calls.lane_claim(ask).await?;
            let mut taken = 0;
            if !answer.jobs.is_empty() {
                self.sleep_no_more().await;
            }
            for jobs in answer.jobs.chunk_by(|one, other| one.key == other.key) {
                taken += 1;
                self.assign(jobs.to_vec(), sent);
            }
            let last_key = answer.jobs.last().and_then(|job| job.key.clone());
            let goes_on = answer.go_on_after.is_some();
            self.cursor = answer.go_on_after.or(last_key).unwrap_or_default();
            self.empty_claims = if goes_on && taken == 0 { self.empty_claims + 1 } else { 0 };
            self.claim_due = taken == keys || (goes_on && self.empty_claims < MAX_EMPTY_CLAIMS);
        }
        Ok(())
    }

    /// Acknowledges jobs, and frees keys whose jobs have all ended. A key with a failed job is freed by giving that back.
    async fn ack_lanes(&mut self) -> Result<(), RecipeError> {
        let due = |claim: &super::keeper::HeldClaim| claim.complete || !claim.done.is_empty();
        let numbers: Vec<u64> = self.held.iter().filter(|(_, claim)| due(claim)).map(|(number, _)| *number).collect();
        for number in numbers {
            let Some(claim) = self.held.get(&number) else { continue };
            let (token, complete, done) = (claim.token, claim.complete, claim.done.clone());
            let key = claim.key.clone().unwrap_or_default();
            let failed =
                self.failed.iter().any(|failed| failed.is_of(token, &key)) || self.locked.has_failed(token, &key);
            let free = complete && !failed;
            if free || !done.is_empty() {
                match self.calls.lane_ack(&key, token, done.clone(), free).await {
                    Ok(()) => self.report.acked += done.len() as u64,
                    Err(RecipeError::Refused(RecipeRefusal::Stale { .. })) => {
                        self.report.stale += done.len() as u64;
                        self.failed.retain(|failed| !failed.is_of(token, &key));
                        self.held.remove(&number);
                        continue;
                    }
                    // Somebody's transaction has this key: other keys go on.
                    Err(error) if is_locked(&error) => {
                        self.note_locked();
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if complete {
                self.held.remove(&number);
                // The key may have more jobs, and nobody else was told.
                self.claim_due = true;
            } else if let Some(claim) = self.held.get_mut(&number) {
                claim.done.retain(|job| !done.contains(job));
            }
        }
        Ok(())
    }

    /// As [`Keeper::extend_all`].
    pub(super) async fn extend_lanes(&mut self) -> Result<bool, RecipeError> {
        let numbers: Vec<u64> = self.held.keys().copied().collect();
        let (mut failed, mut all) = (Ok(()), true);
        for number in numbers {
            let Some(claim) = self.held.get(&number) else { continue };
            let (token, key) = (claim.token, claim.key.clone().unwrap_or_default());
            let sent = self.clock.now();
            let ours = match self.calls.lane_extend(&key, token, self.facts.visible).await {
                Ok(ours) => ours,
                Err(error) if is_locked(&error) => {
                    all = false;
                    continue;
                }
                Err(error) => {
                    failed = failed.and(Err(error));
                    continue;
                }
            };
            if let Some(claim) = self.held.get(&number) {
                claim.valid_until.send_replace(if ours { sent.plus(self.facts.visible) } else { Time::ZERO });
            }
        }
        failed.map(|()| all)
    }
}

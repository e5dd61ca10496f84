//! The numbers of a directory come to an end. Before they do, the directory is replaced.
//!
//! Every node that is made takes a number from the counter of its directory, and a claim that waits takes three. The counter has 31
//! bits and does not wrap: from 2147483647 on a server (3.8.0 was tried) gives that number again and again, and negative ones
//! while other requests are under way. Then a list of children tells neither who came first nor who holds.
//!
//! # Laws
//!
//! 1. No claim is granted and none waits by a number near the end: whoever gets one takes its nodes away again.
//! 2. A directory is replaced only while nobody is in it, in one transaction. Whoever is in it keeps its place, and a client that
//!    relies on the directory always finds one.
//! 3. A directory without numbers is not written to until it is replaced, so that the last numbers are not used up.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zookeeper_client::{self as zk, Acls, Client, MultiWriteError, Stat};

use crate::clock::Time;
use crate::engine::Want;
use crate::error::Error;

use super::failure::{CLOSED, unavailable};
use super::shared::ZookeeperShared;

/// Numbers from here on are not used: what is left is for requests under way, and for other clients.
const USABLE_NUMBERS: i32 = i32::MAX - (1 << 20);
/// How often a claim that waits looks whether everybody has left the directory.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether a claim may stand in a queue by this number.
pub(super) const fn is_usable(number: i32) -> bool {
    number >= 0 && number < USABLE_NUMBERS
}

/// The number that the next node gets. The server shows it doubled, less the number of children, and cut to 32 bits.
fn next_number(directory: &Stat) -> i32 {
    let doubled = directory.cversion.wrapping_add(directory.num_children).cast_unsigned();
    (doubled / 2).cast_signed()
}

/// Resources whose directories had no numbers left when they were last seen.
#[derive(Default)]
pub(super) struct UsedUpDirectories {
    names: Mutex<HashSet<String>>,
}

impl UsedUpDirectories {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, name: &str) {
        self.lock().insert(name.to_owned());
    }

    /// The first of these resources that is one of them.
    pub fn first_of(&self, wants: &[Want]) -> Option<String> {
        let names = self.lock();
        if names.is_empty() {
            return None;
        }
        wants.iter().find(|want| names.contains(&want.name)).map(|want| want.name.clone())
    }
}

impl ZookeeperShared {
    /// Replaces the directories of these resources that have no numbers left, as soon as nobody is in them. The error: who is
    /// in one when the patience is over.
    pub async fn replace_used_up(
        &self,
        client: &Client,
        attempt: &str,
        wants: &[Want],
        patience: Time,
    ) -> Result<Option<Error>, zk::Error> {
        while let Some(name) = self.used_up.first_of(wants) {
            if self.replace_directory(client, &name).await? {
                self.used_up.lock().remove(&name);
                continue;
            }
            if self.closed.is_cancelled() {
                return Ok(Some(unavailable(attempt, CLOSED.into())));
            }
            if self.now() >= patience {
                let queue = self.fresh_queue(client, &name).await?;
                return self.held_by(client, &name, &queue, None).await.map(Some);
            }
            self.options.clock.sleep_until(self.now().plus(LOOK_EVERY).min(patience)).await;
        }
        Ok(None)
    }

    /// Whether the directory has numbers again: it was replaced, here or elsewhere.
    async fn replace_directory(&self, client: &Client, name: &str) -> Result<bool, zk::Error> {
        let directory = self.paths.directory(name);
        let (sync, stat) = (client.sync(&directory), client.check_stat(&directory));
        sync.await?;
        match stat.await? {
            Some(stat) if !is_usable(next_number(&stat)) => {}
            _ => return Ok(true),
        }
        let mut writer = client.new_multi_writer();
        writer.add_delete(&directory, None)?;
        writer.add_create(&directory, &[], &self.directory_mode().with_acls(Acls::new(&self.acls)))?;
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { source: zk::Error::NotEmpty, .. }) => Ok(false),
            // Somebody else was faster.
            Err(MultiWriteError::OperationFailed { source: zk::Error::NoNode | zk::Error::NodeExists, .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the counter is read from what the server shows. The stats are those of a real server.
    #[test]
    fn the_next_number_is_read_from_a_stat() {
        for (cversion, num_children, next) in
            [(0, 0, 0), (3, 1, 2), (-7, 1, i32::MAX - 2), (-6, 2, i32::MAX - 1), (-5, 3, i32::MAX), (-8, 6, i32::MAX)]
        {
            let stat = Stat { cversion, num_children, ..stat() };
            assert_eq!(next_number(&stat), next, "{cversion} and {num_children} children");
        }
    }

    #[test]
    fn numbers_near_the_end_are_not_used() {
        for (number, usable) in [
            (0, true),
            (USABLE_NUMBERS - 1, true),
            (USABLE_NUMBERS, false),
            (i32::MAX, false),
            (i32::MIN, false),
            (-1, false),
        ] {
            assert_eq!(is_usable(number), usable, "{number}");
        }
    }

    fn stat() -> Stat {
        Stat {
            czxid: 1,
            mzxid: 1,
            pzxid: 1,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }
}

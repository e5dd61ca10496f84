//! What a busy process said before it was killed, compared with what the directory holds afterwards.

use std::collections::{HashMap, HashSet};

/// What is known from the lines of one run. See the `victim` binary for their form.
#[derive(Debug, Default)]
pub struct Testimony {
    /// Granted, and nobody asked for its release: name and token.
    pub held: HashMap<u64, String>,
    /// The release was answered.
    pub released: HashSet<u64>,
    /// The release was asked for and not answered: it may be either.
    pub open: HashMap<u64, String>,
    /// Names for which an acquire was asked and not answered.
    pub asked: HashSet<String>,
    /// Every token that was ever reported.
    pub tokens: HashSet<u64>,
    /// How many operations were answered.
    pub answered: u64,
}

impl Testimony {
    /// Reads the lines of one run, after those of the runs before it.
    ///
    /// # Errors
    ///
    /// A token that was reported twice.
    pub fn read_lines(&mut self, lines: &str) -> Result<(), String> {
        let mut asked: HashMap<&str, Vec<&str>> = HashMap::new();
        // The last line may be torn by the kill.
        let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["?", id, what @ ..] => {
                    asked.insert(id, what.to_vec());
                }
                ["!", id, "granted", name, token] => {
                    asked.remove(id);
                    let token = token.parse().map_err(|_| format!("not a token: {line}"))?;
                    if !self.tokens.insert(token) {
                        return Err(format!("token {token} was given out twice"));
                    }
                    self.held.insert(token, (*name).to_owned());
                    self.answered += 1;
                }
                ["!", id, "released", _, token] => {
                    asked.remove(id);
                    let token = token.parse().map_err(|_| format!("not a token: {line}"))?;
                    self.held.remove(&token);
                    self.released.insert(token);
                    self.answered += 1;
                }
                ["!", id, "refused"] => {
                    asked.remove(id);
                    self.answered += 1;
                }
                ["!", id, "unavailable"] => {
                    asked.remove(id);
                }
                // Unknown, too: asked, and it stays asked, since it may have happened.
                _ => {}
            }
        }
        for what in asked.into_values() {
            match what.as_slice() {
                ["acquire", name] => {
                    self.asked.insert((*name).to_owned());
                }
                ["release", name, token] => {
                    let token = token.parse().map_err(|_| "not a token".to_owned())?;
                    self.held.remove(&token);
                    self.open.insert(token, (*name).to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Compares with what is held: name and token of every lease.
    ///
    /// # Errors
    ///
    /// What was acknowledged and is not so.
    pub fn compare(&mut self, found: &HashMap<String, u64>) -> Result<(), String> {
        for (token, name) in &self.held {
            if found.get(name) != Some(token) {
                return Err(format!("{name} was granted with token {token}; found is {:?}", found.get(name)));
            }
        }
        for (name, token) in found {
            if self.released.contains(token) {
                return Err(format!("{name} is held with token {token}, whose release was answered"));
            }
            let known = self.held.contains_key(token) || self.open.contains_key(token);
            if !known && !self.asked.contains(name) {
                return Err(format!("{name} is held with token {token}, and nobody asked for it"));
            }
        }
        // What the unanswered came to is known now.
        self.open.retain(|token, name| found.get(name) == Some(token));
        for (name, token) in found {
            self.held.entry(*token).or_insert_with(|| name.clone());
            self.tokens.insert(*token);
        }
        self.open.clear();
        self.asked.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_grant_a_revived_release_and_a_second_token_are_seen() {
        let mut lost = Testimony::default();
        lost.read_lines("? 0 acquire a\n! 0 granted a 7\n").unwrap();
        assert!(lost.compare(&HashMap::new()).is_err());
        let mut revived = Testimony::default();
        revived.read_lines("? 0 acquire a\n! 0 granted a 7\n? 1 release a 7\n! 1 released a 7\n").unwrap();
        assert!(revived.compare(&HashMap::from([("a".into(), 7)])).is_err());
        let mut twice = Testimony::default();
        twice.read_lines("! 0 granted a 7\n").unwrap();
        assert!(twice.read_lines("! 0 granted b 7\n").is_err());
        let mut unasked = Testimony::default();
        assert!(unasked.compare(&HashMap::from([("a".into(), 7)])).is_err());
        let mut open = Testimony::default();
        open.read_lines("! 0 granted a 7\n? 1 release a 7\n? 2 acquire b\n! 2 gran").unwrap();
        assert!(open.compare(&HashMap::from([("a".into(), 7), ("b".into(), 9)])).is_ok());
    }
}

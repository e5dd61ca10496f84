//! What the judge reads: triggers record every grant and every answer, in the transactions that make them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Place;

const POSTGRES: &str = "
CREATE TABLE audit (n bigint GENERATED ALWAYS AS IDENTITY, what text, key text, token bigint, answer text);
CREATE TABLE effects (key text, token bigint);
CREATE FUNCTION record_try() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
 IF TG_OP = 'INSERT' OR NEW.token <> OLD.token THEN INSERT INTO audit (what, key, token) VALUES ('grant', NEW.key, NEW.token); END IF;
 IF NEW.status IS NOT NULL THEN
  INSERT INTO audit (what, key, token, answer) VALUES ('answer', NEW.key, NEW.token, convert_from(NEW.answer, 'UTF8'));
 END IF;
 RETURN NULL;
END $$;
CREATE TRIGGER record_try AFTER INSERT OR UPDATE ON leasehold.once FOR EACH ROW EXECUTE FUNCTION record_try()";

const SQLITE: &str = "
CREATE TABLE audit (n INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, key TEXT, token INTEGER, answer TEXT);
CREATE TABLE effects (key TEXT, token INTEGER);
CREATE TRIGGER record_new AFTER INSERT ON leasehold_once BEGIN
 INSERT INTO audit (what, key, token) VALUES ('grant', NEW.key, NEW.token);
END;
CREATE TRIGGER record_grant AFTER UPDATE ON leasehold_once WHEN NEW.token <> OLD.token BEGIN
 INSERT INTO audit (what, key, token) VALUES ('grant', NEW.key, NEW.token);
END;
CREATE TRIGGER record_answer AFTER UPDATE ON leasehold_once WHEN NEW.status IS NOT NULL BEGIN
 INSERT INTO audit (what, key, token, answer) VALUES ('answer', NEW.key, NEW.token, CAST(NEW.answer AS TEXT));
END";

/// An answer names the form and the token of the try that gave it, so that the judge can compare.
pub(crate) fn answer_text(form: &str, token: i64) -> String {
    format!("{form} {token}")
}

pub(crate) async fn install(place: &Place) {
    match place {
        Place::Postgres { cluster, database } => cluster.execute(database, POSTGRES).await,
        Place::Sqlite { .. } => place.open_file().execute_batch(SQLITE).unwrap(),
    }
}

/// What the judge found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) keys: usize,
    pub(crate) grants: usize,
    /// Each a sentence.
    pub(crate) violations: Vec<String>,
}

/// Compares the records with the laws. `told`: key and answer, as processes were told them.
pub(crate) async fn judge(place: &Place, told: &[(String, String)]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    let mut answers: BTreeMap<String, String> = BTreeMap::new();
    let sql = "SELECT what, key, CAST(token AS text), coalesce(answer, '') FROM audit ORDER BY n";
    for record in place.rows(sql).await {
        let [what, key, token, answer] = &record[..] else { unreachable!() };
        let token: i64 = token.parse().unwrap();
        if what == "grant" {
            verdict.grants += 1;
            let before = newest.insert(key.clone(), token);
            if before.is_some_and(|before| before >= token) {
                verdict.violations.push(format!("{key}: token {token} after {before:?}"));
            }
            if answers.contains_key(key) {
                verdict.violations.push(format!("{key}: begun again after its answer"));
            }
            continue;
        }
        if answers.insert(key.clone(), answer.clone()).is_some() {
            verdict.violations.push(format!("{key}: a second answer, {answer}"));
        }
        let by: i64 = answer.rsplit(' ').next().unwrap().parse().unwrap();
        if by != token || newest.get(key) != Some(&by) {
            verdict.violations.push(format!("{key}: answered by try {by}, and the newest was {token}"));
        }
    }
    for (key, answer) in told {
        if answers.get(key) != Some(answer) {
            verdict.violations.push(format!("{key}: told {answer}, stored {:?}", answers.get(key)));
        }
    }
    // One effect where the work is in the transaction: none from a try that did not answer.
    let effects = place.rows("SELECT key, CAST(token AS text) FROM effects").await;
    let effects: Vec<(String, String)> = effects.into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let distinct: BTreeSet<&(String, String)> = effects.iter().collect();
    if distinct.len() != effects.len() {
        verdict.violations.push("an effect came twice".into());
    }
    for (key, answer) in &answers {
        let of_key: Vec<&str> = effects.iter().filter(|(of, _)| of == key).map(|(_, token)| &**token).collect();
        let expected: Vec<&str> = answer.strip_prefix("transaction ").into_iter().collect();
        if of_key != expected {
            verdict.violations.push(format!("{key}: answered by {answer}, with effects of {of_key:?}"));
        }
    }
    for (key, token) in effects.iter().filter(|(key, _)| !answers.contains_key(key)) {
        verdict.violations.push(format!("{key}: an effect of try {token} without an answer"));
    }
    verdict.keys = answers.len();
    verdict
}

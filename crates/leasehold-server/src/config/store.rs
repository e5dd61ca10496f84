//! The URL of the store of recipes.

use std::path::Path;

use leasehold::recipe::store::default_url;

use super::SecretText;

/// Where recipes keep their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// There is no store.
    None,
    /// At this URL.
    At(SecretText),
}

impl StoreUrl {
    /// The URL that was given, or that of the engine. Engines that keep no rows have none: a file for each of several servers
    /// would run things twice.
    ///
    /// # Errors
    ///
    /// A sentence. It does not repeat the URL: that may carry a password.
    pub fn choose(given: Option<&SecretText>, engine: &str, data: &Path) -> Result<Self, String> {
        let Some(given) = given else {
            let engine = if engine == "embedded" { format!("embedded:{}", data.display()) } else { engine.to_owned() };
            return Ok(default_url(&engine).map_or(Self::None, |url| Self::At(SecretText::new(&url))));
        };
        let scheme = given.expose().split_once(':').map(|(scheme, _)| scheme);
        match scheme {
            None if given.expose() == "none" => Ok(Self::None),
            Some("postgres" | "postgresql" | "sqlite" | "leasehold" | "leaseholds") => Ok(Self::At(given.clone())),
            _ => Err("a store is postgres://…, sqlite:FILE, leasehold://…, or none".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the default of each engine is that of the contract, and no server gets a file by itself but the embedded one.
    #[test]
    fn each_engine_has_its_default() {
        let data = Path::new("/d");
        let chosen = |given: Option<&str>, engine: &str| match StoreUrl::choose(
            given.map(SecretText::new).as_ref(),
            engine,
            data,
        ) {
            Ok(StoreUrl::At(url)) => url.expose().to_owned(),
            Ok(StoreUrl::None) => "none".to_owned(),
            Err(sentence) => format!("no: {sentence}"),
        };
        for (given, engine, url) in [
            (None, "embedded", "sqlite:/d/recipes.db"),
            (None, "postgres://u:hunter2@h/d", "postgres://u:hunter2@h/d"),
            (None, "leasehold://:hunter2@h", "leasehold://:hunter2@h"),
            (None, "etcd://h", "none"),
            (None, "zk://h", "none"),
            (None, "redis://h", "none"),
            (None, "redlock://a,b,c", "none"),
            (Some("none"), "embedded", "none"),
            (Some("sqlite:/x.db"), "etcd://h", "sqlite:/x.db"),
            (Some("postgres://h/d"), "embedded", "postgres://h/d"),
        ] {
            assert_eq!(chosen(given, engine), url, "{given:?} {engine}");
        }
        for bad in ["", "sqlite", "mysql://u:hunter2@h/d", "embedded:/d"] {
            let said = chosen(Some(bad), "embedded");
            assert!(said.starts_with("no: a store is") && !said.contains("hunter2"), "{said}");
        }
    }
}

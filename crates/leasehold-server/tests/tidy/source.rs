//! Production sources, read line by line: rustfmt makes them regular enough for that.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One production file, without its unit tests.
pub struct Source {
    /// From the root of the repository.
    pub path: String,
    pub package: String,
    /// The top module it belongs to; `lib` or `main` for the root.
    pub module: String,
    pub text: String,
    /// The top modules of its crate.
    siblings: BTreeSet<String>,
}

/// A function as it stands in a file.
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every production file of the workspace, in order.
pub fn sources() -> Vec<Source> {
    let root = repository();
    let mut found = Vec::new();
    let mut packages: Vec<_> = std::fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap()).collect();
    packages.sort_by_key(std::fs::DirEntry::file_name);
    for package in packages {
        let src = package.path().join("src");
        let name = package.file_name().into_string().unwrap();
        let siblings = children(&src).into_iter().map(|path| module_name(&path)).collect::<BTreeSet<_>>();
        walk(&src, &mut |path| {
            let inside = path.strip_prefix(&src).unwrap();
            let text = std::fs::read_to_string(path).unwrap();
            found.push(Source {
                path: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
                package: name.clone(),
                module: module_name(Path::new(inside.components().next().unwrap().as_os_str())),
                text: text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned(),
                siblings: siblings.clone(),
            });
        });
    }
    assert!(found.len() > 300, "only {} files were found", found.len());
    found
}

fn module_name(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path)) {
    for path in children(folder) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_test = name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs") || name.ends_with("_tests");
        if path.is_dir() && !is_test {
            walk(&path, visit);
        } else if name.ends_with(".rs") && !is_test {
            visit(&path);
        }
    }
}

/// The word that follows, if the line begins with one of these after its visibility.
fn item<'a>(line: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(inside) => inside.split_once(") ")?.1,
            None => after.strip_prefix(' ')?,
        };
    }
    let mut rest = rest.trim_start();
    for modifier in ["default ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(modifier).unwrap_or(rest);
    }
    let after = keywords.iter().find_map(|keyword| rest.strip_prefix(keyword)?.strip_prefix(' '))?;
    let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(after.len());
    (end > 0).then(|| &after[..end])
}

impl Source {
    /// Names of types that are defined here. Types of traits are not: they are indented aliases.
    pub fn types(&self) -> Vec<String> {
        let is_alias = |line: &str| line.starts_with(' ') && item(line, &["type"]).is_some();
        let lines = self.text.lines().filter(|line| !is_alias(line));
        let names = lines.filter_map(|line| item(line, &["struct", "enum", "trait", "type", "union"]));
        names.filter(|name| name.starts_with(char::is_uppercase)).map(str::to_owned).collect()
    }

    pub fn functions(&self) -> Vec<Function> {
        let lines: Vec<&str> = self.text.lines().collect();
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = item(line, &["fn"]) else { continue };
            let indent = line.len() - line.trim_start().len();
            let ends = |line: &&str| {
                let own = line.len() - line.trim_start().len() == indent;
                own && (line.trim() == "}" || line.ends_with("};"))
            };
            let is_short = line.ends_with('}') || line.ends_with(';');
            let length = if is_short { 1 } else { lines[at + 1..].iter().position(ends).map_or(1, |n| n + 2) };
            found.push(Function { name: name.to_owned(), line: at + 1, lines: length });
        }
        found
    }

    /// The top modules of its crate that it uses by `crate::`.
    pub fn uses(&self) -> BTreeSet<String> {
        let code: String =
            self.text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
        let mut found = BTreeSet::new();
        for after in code.split("crate::").skip(1) {
            match after.strip_prefix('{') {
                Some(group) => found.extend(top_names(group)),
                None => found.extend(first_word(after)),
            }
        }
        found.retain(|name| self.siblings.contains(name));
        found
    }
}

fn first_word(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// The first word of each part of a `use` group, up to the brace that closes it.
fn top_names(group: &str) -> Vec<String> {
    let (mut depth, mut names) = (0_usize, Vec::new());
    names.extend(first_word(group));
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.extend(first_word(&group[at + 1..])),
            _ => {}
        }
    }
    names
}

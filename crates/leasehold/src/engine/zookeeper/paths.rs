//! Where things are: the directory of a resource, and what is private to the engine.

/// Paths below the chroot of one engine.
#[derive(Clone, Debug)]
pub(super) struct NodePaths {
    /// `/a/b`, or nothing for the root.
    chroot: String,
}

/// What is ours alone. No resource has a name that begins with a dot.
const PRIVATE: &str = ".leasehold";

impl NodePaths {
    /// The chroot, with or without slashes at its ends.
    pub fn new(chroot: &str) -> Self {
        let chroot = chroot.trim_matches('/');
        Self { chroot: if chroot.is_empty() { String::new() } else { format!("/{chroot}") } }
    }

    /// The directory that holds the directories of resources.
    pub fn root(&self) -> &str {
        if self.chroot.is_empty() { "/" } else { &self.chroot }
    }

    /// The directory of a resource.
    pub fn directory(&self, name: &str) -> String {
        format!("{}/{}", self.chroot, encode_name(name, self.chroot.is_empty()))
    }

    /// The resource of a child of [`NodePaths::root`]; none if it is no resource.
    pub fn resource(&self, child: &str) -> Option<String> {
        if child.starts_with('.') || (self.chroot.is_empty() && child == "zookeeper") {
            return None;
        }
        crate::engine::url_text::decode_percent(child)
    }

    pub fn private(&self) -> String {
        format!("{}/{PRIVATE}", self.chroot)
    }

    pub fn servers(&self) -> String {
        format!("{}/{PRIVATE}/servers", self.chroot)
    }

    pub fn requests(&self) -> String {
        format!("{}/{PRIVATE}/requests", self.chroot)
    }

    pub fn request(&self, digest: &str) -> String {
        format!("{}/{PRIVATE}/requests/{digest}", self.chroot)
    }
}

/// A name as one part of a path. Ordinary names stay as they are, so that other clients find them.
fn encode_name(name: &str, at_root: bool) -> String {
    let mut text = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        let forbidden = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
        let system = at_root && at == 0 && name == "zookeeper";
        if matches!(c, '%' | '/') || (at == 0 && c == '.') || forbidden || system {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                text.push_str(&format!("%{byte:02X}"));
            }
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_names_stay_as_they_are() {
        let paths = NodePaths::new("/locks/");
        assert_eq!(paths.directory("nightly"), "/locks/nightly");
        assert_eq!(paths.directory("a/b%"), "/locks/a%2Fb%25");
        assert_eq!(paths.directory("..x"), "/locks/%2E.x");
        assert_eq!(paths.directory("zookeeper"), "/locks/zookeeper");
        assert_eq!(paths.requests(), "/locks/.leasehold/requests");
        let root = NodePaths::new("");
        assert_eq!((root.root(), root.directory("zookeeper").as_str()), ("/", "/%7Aookeeper"));
        assert_eq!((root.resource("zookeeper"), root.resource(".leasehold")), (None, None));
    }

    proptest! {
        /// Goal: every name has a path of its own, one level deep, and is found again in it.
        #[test]
        fn names_are_read_back(name in "[^\\p{Cc}]{1,40}", chroot in prop_oneof![Just(""), Just("/a/b")]) {
            let paths = NodePaths::new(chroot);
            let path = paths.directory(&name);
            let child = path.strip_prefix(chroot).and_then(|rest| rest.strip_prefix('/')).expect("below the chroot");
            prop_assert!(!child.contains('/') && !child.starts_with('.') && !child.is_empty());
            prop_assert_eq!(paths.resource(child), Some(name));
        }
    }
}

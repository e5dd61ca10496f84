//! Names of the nodes in the directory of a resource: how ours are written, how everybody's are read, and their order.
//!
//! # Laws
//!
//! 1. One list of children decides: number, mode and lease are in the name.
//! 2. Numbers are compared as serial numbers: past 2147483647 a server gives negative ones to other clients. Ours are taken
//!    from a new directory before that (`numbering`).
//! 3. A lease counts once, even if it has a node for each of two layouts.

use std::collections::HashMap;

use crate::engine::Mode;
use crate::engine::admission::is_admitted;
use crate::engine::consensus::lease_id::PublicId;

use super::options::ZookeeperLayout;

/// Digits of the public id that are in every name of a lease.
const KEY_DIGITS: usize = 30;

/// The part of the public id that is in the names of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeKey(String);

impl NodeKey {
    pub fn new(public: PublicId) -> Self {
        let mut digits = public.to_hex();
        digits.truncate(KEY_DIGITS);
        Self(digits)
    }
}

/// How far a node of ours has come. It is the last digit of the id in its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeStep {
    /// Made by the first request of an acquire. Where leases end with a session it stays this.
    First,
    /// Waits.
    Waiting,
    /// Holds, after it waited.
    Holder,
}

impl NodeStep {
    const fn digit(self) -> char {
        match self {
            Self::First => '0',
            Self::Waiting => '1',
            Self::Holder => '2',
        }
    }

    const fn from_digit(digit: u8) -> Option<Self> {
        match digit {
            b'0' => Some(Self::First),
            b'1' => Some(Self::Waiting),
            b'2' => Some(Self::Holder),
            _ => None,
        }
    }
}

/// Whose form a name has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeForm {
    /// `…lock-<number>`: Curator's mutex, and others that use it.
    Curator,
    /// `…__lock__<number>` and `…__rlock__<number>`.
    Kazoo,
    /// `…__READ__<number>` and `…__WRIT__<number>`: Curator's lock for readers and writers.
    CuratorReadWrite,
    /// `…latch-<number>`: Curator's LeaderLatch.
    Latch,
    /// Anything else that ends in a number.
    Other,
}

/// Whoever holds a resource or waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueNode {
    /// The name of its node; of two, the first.
    pub name: String,
    pub number: i32,
    pub mode: Mode,
    pub form: NodeForm,
    /// Where the name has an id such as ours have.
    pub key: Option<NodeKey>,
    pub step: Option<NodeStep>,
    /// It has a node in the other layout too.
    pub twin: bool,
}

/// The forms of our nodes for one resource.
pub(super) fn forms(layout: ZookeeperLayout) -> &'static [NodeForm] {
    match layout {
        ZookeeperLayout::Curator => &[NodeForm::Curator],
        ZookeeperLayout::Kazoo => &[NodeForm::Kazoo],
        ZookeeperLayout::Both => &[NodeForm::Curator, NodeForm::Kazoo],
    }
}

/// The name without its number.
pub(super) fn name_prefix(form: NodeForm, key: &NodeKey, step: NodeStep, mode: Mode) -> String {
    let tag = match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => ".s".into(),
        Mode::Permits { count, capacity } => format!(".p{count}of{capacity}"),
    };
    let (digits, step) = (&key.0, step.digit());
    match form {
        // Curator takes what follows the last `lock-`.
        NodeForm::Curator => {
            // A digit is left over: 36 characters with dashes are 32 digits.
            let id = format!("{digits}0{step}");
            let [a, b, c, d, e] = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
            format!("_c_{a}-{b}-{c}-{d}-{e}{tag}-lock-")
        }
        // A letter first: to Curator a name without `lock-` sorts as it is, and must come after the numbers.
        _ => format!("a{digits}{step}{tag}__lock__"),
    }
}

/// A number as the server writes it.
pub(super) fn number_text(number: i32) -> String {
    format!("{number:010}")
}

/// Reads the name of a child; none if it does not end in a number.
pub(super) fn parse_child(name: &str) -> Option<QueueNode> {
    const MARKERS: [(&str, NodeForm); 6] = [
        ("__lock__", NodeForm::Kazoo),
        ("__rlock__", NodeForm::Kazoo),
        ("__READ__", NodeForm::CuratorReadWrite),
        ("__WRIT__", NodeForm::CuratorReadWrite),
        ("lock-", NodeForm::Curator),
        ("latch-", NodeForm::Latch),
    ];
    for (marker, form) in MARKERS {
        if let Some(at) = name.rfind(marker)
            && let Some(number) = parse_number(&name[at + marker.len()..])
        {
            let head = &name[..at];
            let (key, step, tag) = match form {
                NodeForm::Curator => curator_id(head.strip_suffix('-').unwrap_or(head)),
                NodeForm::Kazoo => kazoo_id(head),
                _ => (None, None, ""),
            };
            let mode = match marker {
                "__rlock__" | "__READ__" => Mode::Shared,
                _ => parse_tag(tag),
            };
            return Some(QueueNode { name: name.to_owned(), number, mode, form, key, step, twin: false });
        }
    }
    let number = trailing_number(name)?;
    let (form, mode) = (NodeForm::Other, Mode::Exclusive);
    Some(QueueNode { name: name.to_owned(), number, mode, form, key: None, step: None, twin: false })
}

/// The whole text as Java's `%010d` writes an int.
fn parse_number(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = text.len() >= 10 && digits.len() >= 9 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// The number at the end of a name of unknown form. A dash before ten digits is a sign only where it must be one.
fn trailing_number(name: &str) -> Option<i32> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let signed = name.len() > digits && name.as_bytes()[name.len() - digits - 1] == b'-';
    match digits {
        9 if signed => name[name.len() - 10..].parse().ok(),
        10.. => {
            let value: i64 = name[name.len() - 10..].parse().ok()?;
            i32::try_from(value).ok().or_else(|| if signed { i32::try_from(-value).ok() } else { None })
        }
        _ => None,
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Key, step and tag of `_c_<uuid>[tag]`.
fn curator_id(head: &str) -> (Option<NodeKey>, Option<NodeStep>, &str) {
    let Some(rest) = head.strip_prefix("_c_") else { return (None, None, "") };
    let Some((uuid, tag)) = rest.split_at_checked(36) else { return (None, None, "") };
    let digits: String = uuid.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !is_hex(&digits) {
        return (None, None, "");
    }
    let step = NodeStep::from_digit(digits.as_bytes()[31]);
    (Some(NodeKey(digits[..KEY_DIGITS].to_owned())), step, tag)
}

/// Key, step and tag of `a<31 digits>[tag]`.
fn kazoo_id(head: &str) -> (Option<NodeKey>, Option<NodeStep>, &str) {
    let Some((id, tag)) = head.split_at_checked(32) else { return (None, None, "") };
    if !id.starts_with('a') || !is_hex(id) {
        return (None, None, "");
    }
    (Some(NodeKey(id[1..31].to_owned())), NodeStep::from_digit(id.as_bytes()[31]), tag)
}

fn parse_tag(tag: &str) -> Mode {
    if tag == ".s" {
        return Mode::Shared;
    }
    let permits = tag.strip_prefix(".p").and_then(|rest| rest.split_once("of"));
    let permits = permits.and_then(|(count, capacity)| Some((count.parse().ok()?, capacity.parse().ok()?)));
    // Whatever it means to somebody else: exclusive is the safe side.
    permits.map_or(Mode::Exclusive, |(count, capacity)| Mode::Permits { count, capacity })
}

/// Everybody in a directory, in order. Children that end in no number are left out.
pub(super) fn contenders(children: &[String]) -> Vec<QueueNode> {
    let mut all: Vec<QueueNode> = children.iter().filter_map(|name| parse_child(name)).collect();
    let Some(anchor) = all.first().map(|contender| contender.number) else { return all };
    all.sort_by_key(|contender| contender.number.wrapping_sub(anchor));
    let mut seen: HashMap<NodeKey, usize> = HashMap::new();
    let mut kept: Vec<QueueNode> = Vec::with_capacity(all.len());
    for contender in all {
        if let Some(key) = &contender.key {
            if let Some(at) = seen.get(key) {
                kept[*at].twin = true;
                continue;
            }
            seen.insert(key.clone(), kept.len());
        }
        kept.push(contender);
    }
    kept
}

pub(super) fn position(queue: &[QueueNode], key: &NodeKey) -> Option<usize> {
    queue.iter().position(|contender| contender.key.as_ref() == Some(key))
}

/// Whether the contender at this place has its turn.
pub(super) fn has_turn(queue: &[QueueNode], at: usize) -> bool {
    is_admitted(queue[..at].iter().map(|contender| contender.mode), queue[at].mode)
}

/// What a contender without its turn waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Obstacle<'a> {
    /// The end of this node, at least.
    Node(&'a str),
    /// Any change: of several permits, every one that is given back may be the one.
    AnyChild,
}

pub(super) fn obstacle(queue: &[QueueNode], at: usize) -> Obstacle<'_> {
    let blocks = |other: &&QueueNode| match queue[at].mode {
        Mode::Shared => other.mode != Mode::Shared,
        Mode::Exclusive | Mode::Permits { .. } => true,
    };
    match (queue[at].mode, queue[..at].iter().rfind(blocks)) {
        (Mode::Exclusive | Mode::Shared, Some(other)) => Obstacle::Node(&other.name),
        _ => Obstacle::AnyChild,
    }
}

/// Why a directory cannot be shared with somebody in it: they do not see our nodes. None if everybody does.
pub(super) fn blind_client(queue: &[QueueNode], layout: ZookeeperLayout) -> Option<&'static str> {
    queue.iter().find_map(|contender| match (contender.form, layout) {
        (NodeForm::CuratorReadWrite, _) => Some(
            "Curator's InterProcessReadWriteLock uses this path too, and does not see the nodes of a mutex: use another name",
        ),
        (NodeForm::Latch, _) => {
            Some("Curator's LeaderLatch uses this path too, and does not see the nodes of a mutex: use another name")
        }
        (NodeForm::Kazoo, ZookeeperLayout::Curator) if !contender.twin => Some(
            "kazoo clients use this lock too and do not see Curator's layout: open with ?layout=both",
        ),
        (NodeForm::Curator, ZookeeperLayout::Kazoo) if !contender.twin => Some(
            "Curator clients use this lock too and do not see kazoo's layout: open with ?layout=both",
        ),
        _ => None,
    })
}

/// Whether somebody in the queue counts permits of another capacity.
pub(super) fn other_capacity(queue: &[QueueNode], mode: Mode) -> Option<u32> {
    let Mode::Permits { capacity, .. } = mode else { return None };
    queue.iter().find_map(|contender| match contender.mode {
        Mode::Permits { capacity: other, .. } if other != capacity => Some(other),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NodeKey {
        NodeKey::new(PublicId([byte; 16]))
    }

    fn ours(form: NodeForm, byte: u8, step: NodeStep, mode: Mode, number: i32) -> String {
        name_prefix(form, &key(byte), step, mode) + &number_text(number)
    }

    const POOL: Mode = Mode::Permits { count: 2, capacity: 5 };

    #[test]
    fn our_names_are_those_of_curator_and_kazoo() {
        assert_eq!(
            ours(NodeForm::Curator, 0xab, NodeStep::First, Mode::Exclusive, 7),
            "_c_abababab-abab-abab-abab-ababababab00-lock-0000000007"
        );
        assert_eq!(
            ours(NodeForm::Curator, 0xab, NodeStep::Holder, POOL, -7),
            "_c_abababab-abab-abab-abab-ababababab02.p2of5-lock--000000007"
        );
        assert_eq!(
            ours(NodeForm::Kazoo, 0xab, NodeStep::Waiting, Mode::Shared, 7),
            format!("a{}1.s__lock__0000000007", "ab".repeat(15))
        );
    }

    /// Goal: what we write we read, in both layouts, and a lease has one key.
    #[test]
    fn our_names_are_read_back() {
        for form in [NodeForm::Curator, NodeForm::Kazoo] {
            for step in [NodeStep::First, NodeStep::Waiting, NodeStep::Holder] {
                for mode in [Mode::Exclusive, Mode::Shared, POOL] {
                    for number in [0, 7, i32::MAX, i32::MIN, -7] {
                        let name = ours(form, 0x5c, step, mode, number);
                        let read = parse_child(&name).expect("a number");
                        assert_eq!((read.form, read.step, read.mode), (form, Some(step), mode), "{name}");
                        assert_eq!((read.number, read.key), (number, Some(key(0x5c))), "{name}");
                    }
                }
            }
        }
    }

    /// Goal: everybody with a number counts, whatever the form; and the dash before a number is no sign.
    #[test]
    fn the_names_of_others_are_read() {
        let uuid = "0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a77";
        let table = [
            (format!("_c_{uuid}-lock-0000000012"), NodeForm::Curator, 12, Mode::Exclusive),
            (format!("_c_{uuid}-lock--2147483648"), NodeForm::Curator, i32::MIN, Mode::Exclusive),
            (format!("_c_{uuid}-__READ__0000000003"), NodeForm::CuratorReadWrite, 3, Mode::Shared),
            (format!("_c_{uuid}-__WRIT__0000000004"), NodeForm::CuratorReadWrite, 4, Mode::Exclusive),
            (format!("_c_{uuid}-latch-0000000005"), NodeForm::Latch, 5, Mode::Exclusive),
            ("4a55b0e47d8f4a559d070d9a6f0f3a77__lock__0000000006".into(), NodeForm::Kazoo, 6, Mode::Exclusive),
            ("4a55b0e47d8f4a559d070d9a6f0f3a77__rlock__0000000006".into(), NodeForm::Kazoo, 6, Mode::Shared),
            ("lock-0000000008".into(), NodeForm::Curator, 8, Mode::Exclusive),
            ("n-0000000009".into(), NodeForm::Other, 9, Mode::Exclusive),
            ("x-72057-2147483647".into(), NodeForm::Other, i32::MAX, Mode::Exclusive),
            ("x-72057--2147483648".into(), NodeForm::Other, i32::MIN, Mode::Exclusive),
            ("n--000000005".into(), NodeForm::Other, -5, Mode::Exclusive),
        ];
        for (name, form, number, mode) in table {
            let read = parse_child(&name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((read.form, read.number, read.mode), (form, number, mode), "{name}");
        }
        for name in ["leases", "lock", "config-12", "lock-12a", ""] {
            assert_eq!(parse_child(name), None, "{name}");
        }
    }

    /// Goal: the order stays when the counter of the directory wraps.
    #[test]
    fn the_order_survives_the_wrap_of_the_number() {
        let numbers = [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1];
        for rotated in 0..4 {
            let mut names: Vec<String> = numbers.iter().map(|n| format!("n-lock-{}", number_text(*n))).collect();
            names.rotate_left(rotated);
            let order: Vec<i32> = contenders(&names).iter().map(|contender| contender.number).collect();
            assert_eq!(order, numbers);
        }
    }

    /// Goal: a lease with two nodes counts once.
    #[test]
    fn twins_count_once() {
        let one = |byte, number| {
            let two = [NodeForm::Curator, NodeForm::Kazoo];
            [0, 1].map(|at| ours(two[at], byte, NodeStep::First, POOL, number + at as i32)).to_vec()
        };
        let queue = contenders(&[one(2, 5), one(1, 0)].concat());
        assert_eq!(queue.iter().map(|c| (c.number, c.twin)).collect::<Vec<_>>(), [(0, true), (5, true)]);
        assert!(has_turn(&queue, 1), "two and two of five");
        assert_eq!(position(&queue, &key(2)), Some(1));
    }

    #[test]
    fn the_nearest_that_blocks_is_awaited() {
        let exclusive = |byte, n| ours(NodeForm::Curator, byte, NodeStep::First, Mode::Exclusive, n);
        let shared = |byte, n| ours(NodeForm::Curator, byte, NodeStep::First, Mode::Shared, n);
        let names = [exclusive(1, 0), shared(2, 1), shared(3, 2), exclusive(4, 3)];
        let queue = contenders(&names);
        assert!(has_turn(&queue, 0) && !has_turn(&queue, 1));
        assert_eq!(obstacle(&queue, 2), Obstacle::Node(&names[0]));
        assert_eq!(obstacle(&queue, 3), Obstacle::Node(&names[2]));
        let pool = contenders(&[exclusive(1, 0), ours(NodeForm::Curator, 2, NodeStep::First, POOL, 1)]);
        assert_eq!(obstacle(&pool, 1), Obstacle::AnyChild);
    }

    /// Goal: whoever cannot see our nodes is found, and our own nodes in another layout are no strangers.
    #[test]
    fn clients_that_cannot_see_us_are_found() {
        let kazoo = "4a55b0e47d8f4a559d070d9a6f0f3a77__lock__0000000006".to_owned();
        let curator = "_c_0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a77-lock-0000000012".to_owned();
        let writer = "_c_0f6f5a0e-7d8f-4a55-9d07-0d9a6f0f3a77-__WRIT__0000000012".to_owned();
        let twins = [NodeForm::Curator, NodeForm::Kazoo].map(|form| ours(form, 9, NodeStep::First, Mode::Shared, 1));
        let blind = |names: &[String], layout| blind_client(&contenders(names), layout).is_some();
        use ZookeeperLayout::{Both, Curator, Kazoo};
        for (names, answers) in [
            (vec![kazoo.clone()], [true, false, false]),
            (vec![curator.clone()], [false, true, false]),
            (vec![kazoo, curator], [true, true, false]),
            (vec![writer], [true, true, true]),
            (twins.to_vec(), [false, false, false]),
        ] {
            assert_eq!([Curator, Kazoo, Both].map(|layout| blind(&names, layout)), answers, "{names:?}");
        }
    }
}

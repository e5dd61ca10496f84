//! How many leases each principal has. There are few principals: the API keys of a server, or none.

use std::collections::HashMap;

use compact_str::CompactString;

/// Every principal that has leases, by a small number that each lease keeps.
#[derive(Debug, Default)]
pub(super) struct Principals {
    known: Vec<PrincipalRow>,
    /// An operator makes these names, and they are few: any table will do.
    rows: HashMap<CompactString, u32>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct PrincipalRow {
    name: CompactString,
    leases: usize,
}

impl PrincipalRow {
    /// The empty name is checked first: comparing zero bytes at a dangling address costs 40 ns on processors that
    /// load a whole vector and then find no page.
    fn has_name(&self, name: &str) -> bool {
        if name.is_empty() { self.name.is_empty() } else { self.name == name }
    }
}

impl Principals {
    /// One more lease for this principal.
    pub fn add_lease(&mut self, name: &str) -> u32 {
        // Nearly always the one that came first.
        let row = match self.known.first() {
            Some(first) if first.has_name(name) => 0,
            _ => self.row(name),
        };
        self.known[row as usize].leases += 1;
        row
    }

    fn row(&mut self, name: &str) -> u32 {
        if let Some(row) = self.rows.get(name) {
            return *row;
        }
        let principal = PrincipalRow { name: name.into(), leases: 0 };
        let row = match self.free.pop() {
            Some(row) => {
                self.known[row as usize] = principal;
                row
            }
            None => {
                self.known.push(principal);
                self.known.len() as u32 - 1
            }
        };
        self.rows.insert(name.into(), row);
        row
    }

    /// One lease less.
    pub fn remove_lease(&mut self, row: u32) {
        let principal = &mut self.known[row as usize];
        principal.leases -= 1;
        // The first row stays: most servers know one principal, whose count touches zero all the time.
        if principal.leases == 0 && row != 0 {
            self.rows.remove(&principal.name);
            self.free.push(row);
        }
    }

    pub fn name(&self, row: u32) -> &str {
        &self.known[row as usize].name
    }

    pub fn leases(&self, name: &str) -> usize {
        if let Some(first) = self.known.first()
            && first.has_name(name)
        {
            return first.leases;
        }
        self.rows.get(name).map_or(0, |row| self.known[*row as usize].leases)
    }
}

//! How much may be asked. Checked before anything is kept.

use crate::command::{Acquire, Mode};

/// The limits of one book. The defaults are the contract; a server may be configured tighter or wider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a resource name.
    pub name_bytes: usize,
    /// Bytes of a holder label.
    pub holder_bytes: usize,
    /// Bytes of a request id (and of its scope).
    pub request_bytes: usize,
    /// Resources in one claim.
    pub resources_per_claim: usize,
    /// Longest ttl, delay and (thirty times over) max_hold, in milliseconds.
    pub ttl_ms: u64,
    /// Longest wait, in milliseconds.
    pub wait_ms: u64,
    /// Waiters on one resource.
    pub waiters_per_resource: usize,
    /// Waiters in all.
    pub waiters: usize,
    /// Leases in all.
    pub leases: usize,
    /// Recent endings remembered for retries.
    pub endings: usize,
    /// Permits of one resource.
    pub capacity: u32,
    /// Bytes of the value of a key.
    pub value_bytes: usize,
    /// Leases of one principal.
    pub leases_per_principal: usize,
    /// Waiters of one principal.
    pub waiters_per_principal: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            name_bytes: 512,
            holder_bytes: 256,
            request_bytes: 128,
            resources_per_claim: 64,
            ttl_ms: 24 * 60 * 60 * 1000,
            wait_ms: 60 * 60 * 1000,
            waiters_per_resource: 10_000,
            waiters: 100_000,
            leases: 10_000_000,
            endings: 65_536,
            capacity: 1_000_000_000,
            value_bytes: 4096,
            leases_per_principal: 10_000_000,
            waiters_per_principal: 100_000,
        }
    }
}

impl Limits {
    /// Refuses a claim whose shape or size is out of bounds, with a sentence that says what to do.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check(&self, claim: &Acquire<'_>) -> Result<(), String> {
        if claim.wants.is_empty() {
            return Err("a claim names at least one resource".into());
        }
        if claim.wants.len() > self.resources_per_claim {
            return Err(format!(
                "a claim names at most {} resources, this one has {}",
                self.resources_per_claim,
                claim.wants.len()
            ));
        }
        for (at, want) in claim.wants.iter().enumerate() {
            self.check_name(want.name)?;
            self.check_mode(want.mode)?;
            if claim.wants[..at].iter().any(|earlier| earlier.name == want.name) {
                return Err(format!("a claim names each resource once, {} comes twice", want.name));
            }
        }
        self.check_ttl(claim.ttl_ms)?;
        if claim.wait_ms > self.wait_ms {
            return Err(format!("wait is at most {}, got {}", human(self.wait_ms), human(claim.wait_ms)));
        }
        if claim.delay_ms > self.longest() {
            return Err(format!("delay is at most {}, got {}", human(self.longest()), human(claim.delay_ms)));
        }
        if let Some(cap) = claim.max_hold_ms {
            let most = self.ttl_ms.saturating_mul(30);
            if cap == 0 || cap > most {
                return Err(format!("max_hold is from 1ms to {}, got {}", human(most), human(cap)));
            }
        }
        self.check_holder(claim.holder)?;
        self.check_label("principal", claim.principal, self.request_bytes)?;
        if let Some(value) = claim.value {
            if value.len() > self.value_bytes {
                return Err(format!("a value is at most {} bytes, this one has {}", self.value_bytes, value.len()));
            }
            if claim.wait_ms > 0 || claim.wants.iter().any(|want| want.mode != Mode::Exclusive) {
                return Err("a key with a value is taken exclusively and without waiting".into());
            }
        }
        if let Some(request) = claim.request {
            if request.id.is_empty() {
                return Err("a request id is not empty".into());
            }
            self.check_label("request id", request.id, self.request_bytes)?;
            self.check_label("request scope", request.scope, self.request_bytes)?;
        }
        Ok(())
    }

    /// Refuses a name that is empty, too long or holds control characters.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check_name(&self, name: &str) -> Result<(), String> {
        if name.is_empty() {
            return Err("a resource name is not empty".into());
        }
        self.check_label("resource name", name, self.name_bytes)
    }

    /// Refuses a holder label that is too long or holds control characters.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check_holder(&self, holder: &str) -> Result<(), String> {
        self.check_label("holder", holder, self.holder_bytes)
    }

    /// Refuses a ttl out of bounds.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check_ttl(&self, ttl_ms: u64) -> Result<(), String> {
        let most = self.longest();
        if ttl_ms == 0 || ttl_ms > most {
            return Err(format!("ttl is from 1ms to {}, got {}", human(most), human(ttl_ms)));
        }
        Ok(())
    }

    /// The book keeps a ttl and a delay in 32 bits, whatever the configuration says.
    fn longest(&self) -> u64 {
        self.ttl_ms.min(u64::from(u32::MAX))
    }

    fn check_mode(&self, mode: Mode) -> Result<(), String> {
        if let Mode::Permits { count, capacity } = mode {
            // The highest number of permits means "shared" where a lease is kept.
            let most = self.capacity.min(u32::MAX - 1);
            if capacity == 0 || capacity > most {
                return Err(format!("capacity is from 1 to {most}, got {capacity}"));
            }
            if count == 0 || count > capacity {
                return Err(format!("permits are from 1 to the capacity of {capacity}, got {count}"));
            }
        }
        Ok(())
    }

    fn check_label(&self, what: &str, text: &str, most: usize) -> Result<(), String> {
        if text.len() > most {
            return Err(format!("a {what} is at most {most} bytes, this one has {}", text.len()));
        }
        // Beyond ASCII the control characters are those that begin with this byte in UTF-8, and few others do.
        let plain = |byte: u8| byte >= b' ' && byte != 0x7f && byte != 0xc2;
        if !text.bytes().all(plain) && text.chars().any(char::is_control) {
            return Err(format!("a {what} holds no control characters"));
        }
        Ok(())
    }
}

fn human(ms: u64) -> String {
    match ms {
        _ if ms != 0 && ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms != 0 && ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{RequestId, WaiterId, Want};
    use crate::token::Secret;

    fn claim<'a>(wants: &'a [Want<'a>]) -> Acquire<'a> {
        Acquire::new(WaiterId(0), wants, 1000, "ada", Secret::new([0; 16]))
    }

    #[test]
    fn what_is_at_the_limit_passes_and_what_is_one_over_is_refused() {
        let limits = Limits::default();
        let seat = [Want { name: "seat", mode: Mode::Exclusive }];
        let long = "n".repeat(512);
        let too_long = "n".repeat(513);
        let request = |id| Some(RequestId { scope: "", id });
        let ok = |c: Acquire<'_>| limits.check(&c).is_ok();
        assert!(ok(claim(&seat)));
        assert!(ok(claim(&[Want { name: &long, mode: Mode::Shared }])));
        assert!(!ok(claim(&[Want { name: &too_long, mode: Mode::Shared }])));
        assert!(!ok(claim(&[])));
        assert!(!ok(claim(&[seat[0], seat[0]])));
        for ttl in [1, 86_400_000] {
            assert!(ok(Acquire { ttl_ms: ttl, ..claim(&seat) }), "{ttl}");
        }
        for ttl in [0, 86_400_001, 1 << 30, 1 << 31, 1 << 36, 1 << 53, 1 << 63, u64::MAX] {
            assert!(!ok(Acquire { ttl_ms: ttl, ..claim(&seat) }), "{ttl}");
        }
        assert!(ok(Acquire { wait_ms: 3_600_000, ..claim(&seat) }));
        assert!(!ok(Acquire { wait_ms: 3_600_001, ..claim(&seat) }));
        assert!(!ok(Acquire { max_hold_ms: Some(0), ..claim(&seat) }));
        assert!(!ok(Acquire { request: request(""), ..claim(&seat) }));
        assert!(!ok(Acquire { request: request(&"r".repeat(129)), ..claim(&seat) }));
        assert!(!ok(Acquire { holder: "a\nb", ..claim(&seat) }));
        for (count, capacity, fine) in [(1, 1, true), (0, 1, false), (2, 1, false), (1, 0, false)] {
            let wants = [Want { name: "pool", mode: Mode::Permits { count, capacity } }];
            assert_eq!(ok(claim(&wants)), fine, "{count} of {capacity}");
        }
    }
}

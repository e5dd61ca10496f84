//! `[limits]`: limits of the engine and of each port.

use leasehold_core::Limits as CoreLimits;
use serde::Deserialize;

use super::units::{ConfigDuration, ConfigSize};

/// The limits. The defaults are the contract of `docs/reference/config.md`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "Limits", deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Bytes of a resource name.
    pub name_bytes: ConfigSize,
    /// Bytes of a holder label.
    pub holder_bytes: ConfigSize,
    /// Bytes of a request id.
    pub request_bytes: ConfigSize,
    /// Bytes of the value of a Redis key.
    pub value_bytes: ConfigSize,
    /// Resources in one claim.
    pub resources_per_claim: usize,
    /// Permits of one resource.
    pub capacity: u32,
    /// Longest ttl and delay.
    pub ttl: ConfigDuration,
    /// Longest wait.
    pub wait: ConfigDuration,
    /// Waiters on one resource.
    pub waiters_per_resource: usize,
    /// Waiters in all.
    pub waiters: usize,
    /// Waiters of one key.
    pub waiters_per_principal: usize,
    /// Leases in all.
    pub leases: usize,
    /// Leases of one key.
    pub leases_per_principal: usize,
    /// Recent endings remembered for retries.
    pub endings: usize,
    /// Connections on both ports together.
    pub connections: usize,
    /// Connections from one address (IPv6: one /64).
    pub connections_per_address: usize,
    /// Bytes of an HTTP body.
    pub body_bytes: ConfigSize,
    /// Arguments of a RESP command.
    pub arguments: usize,
    /// Bytes of one RESP argument.
    pub bulk_bytes: ConfigSize,
    /// From connect to the first byte, on both ports.
    pub first_byte: ConfigDuration,
    /// For the head of an HTTP request.
    pub header: ConfigDuration,
    /// For its body; for a RESP command.
    pub body: ConfigDuration,
    /// How long a client may read nothing of what we send.
    pub write_stall: ConfigDuration,
    /// How long an HTTP connection may stay idle.
    pub idle: ConfigDuration,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let core = CoreLimits::default();
        Self {
            name_bytes: ConfigSize(core.name_bytes),
            holder_bytes: ConfigSize(core.holder_bytes),
            request_bytes: ConfigSize(core.request_bytes),
            value_bytes: ConfigSize(core.value_bytes),
            resources_per_claim: core.resources_per_claim,
            capacity: core.capacity,
            ttl: ConfigDuration(std::time::Duration::from_millis(core.ttl_ms)),
            wait: ConfigDuration(std::time::Duration::from_millis(core.wait_ms)),
            waiters_per_resource: core.waiters_per_resource,
            waiters: core.waiters,
            waiters_per_principal: core.waiters_per_principal,
            leases: core.leases,
            leases_per_principal: core.leases_per_principal,
            endings: core.endings,
            connections: 20_000,
            connections_per_address: 15_000,
            body_bytes: ConfigSize(64 << 10),
            arguments: 1024,
            bulk_bytes: ConfigSize(64 << 10),
            first_byte: ConfigDuration::seconds(5),
            header: ConfigDuration::seconds(5),
            body: ConfigDuration::seconds(10),
            write_stall: ConfigDuration::seconds(10),
            idle: ConfigDuration::seconds(60),
        }
    }
}

impl LimitsConfig {
    /// The limits of the engine.
    pub fn core_limits(&self) -> CoreLimits {
        CoreLimits {
            name_bytes: self.name_bytes.0,
            holder_bytes: self.holder_bytes.0,
            request_bytes: self.request_bytes.0,
            resources_per_claim: self.resources_per_claim,
            ttl_ms: self.ttl.millis(),
            wait_ms: self.wait.millis(),
            waiters_per_resource: self.waiters_per_resource,
            waiters: self.waiters,
            leases: self.leases,
            endings: self.endings,
            capacity: self.capacity,
            value_bytes: self.value_bytes.0,
            leases_per_principal: self.leases_per_principal,
            waiters_per_principal: self.waiters_per_principal,
        }
    }

    /// Refuses limits of zero, and limits that memory or the journal could not bear.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            ("name_bytes", self.name_bytes.0, 1, 4096),
            ("holder_bytes", self.holder_bytes.0, 1, 4096),
            // The id of a key is kept beside a request, and must fit.
            ("request_bytes", self.request_bytes.0, 16, 4096),
            ("value_bytes", self.value_bytes.0, 16, 65_536),
            ("resources_per_claim", self.resources_per_claim, 1, 1024),
            ("capacity", self.capacity as usize, 1, 1_000_000_000),
            ("waiters_per_resource", self.waiters_per_resource, 0, 10_000_000),
            ("waiters", self.waiters, 0, 10_000_000),
            ("waiters_per_principal", self.waiters_per_principal, 0, 10_000_000),
            ("leases", self.leases, 1, 100_000_000),
            ("leases_per_principal", self.leases_per_principal, 1, 100_000_000),
            ("endings", self.endings, 65_536, 10_000_000),
            ("connections", self.connections, 1, 1_000_000),
            ("connections_per_address", self.connections_per_address, 1, 1_000_000),
            ("body_bytes", self.body_bytes.0, 1024, 16 << 20),
            ("arguments", self.arguments, 16, 65_536),
            ("bulk_bytes", self.bulk_bytes.0, 1024, 16 << 20),
        ];
        for (field, value, least, most) in counts {
            if value < least || value > most {
                return Err(format!("limits.{field} is from {least} to {most}, got {value}"));
            }
        }
        let spans = [
            ("ttl", self.ttl, 1, 30 * 24 * 3_600_000),
            ("wait", self.wait, 0, 24 * 3_600_000),
            ("first_byte", self.first_byte, 1, 3_600_000),
            ("header", self.header, 1, 3_600_000),
            ("body", self.body, 1, 3_600_000),
            ("write_stall", self.write_stall, 1, 3_600_000),
            ("idle", self.idle, 1, 24 * 3_600_000),
        ];
        for (field, value, least, most) in spans {
            if value.millis() < least || value.millis() > most {
                let [least, most] = [least, most].map(|ms| ConfigDuration(std::time::Duration::from_millis(ms)));
                return Err(format!("limits.{field} is from {least} to {most}, got {value}"));
            }
        }
        Ok(())
    }
}

//! `leasehold watch`: not without a server. It says so, because people will try.

use clap::Args;

use super::exit::Failure;

/// Follows what is granted and what ends (needs a server).
#[derive(Debug, Args)]
pub struct Watch {
    /// Only names that begin so.
    #[arg(default_value = "")]
    prefix: String,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl Watch {
    /// Refuses: an embedded directory has nobody who could tell us.
    pub fn execute(self) -> anyhow::Result<u8> {
        let Self { prefix: _, json: _ } = self;
        Err(Failure::usage(
            "watch needs a server; an embedded directory cannot tell what happens in it, so ask again with leasehold ls",
        ))
    }
}

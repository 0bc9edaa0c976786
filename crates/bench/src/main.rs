//! Measurements of the impersonation proxy against the API server itself, in one run.
//!
//! `run` starts a real control plane and the release Concierge, then this same program again as the load. What is
//! compared stands in one table, because figures of different runs or machines cannot be compared.

mod load;
mod process;

fn main() -> anyhow::Result<()> {
    Ok(())
}

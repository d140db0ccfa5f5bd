//! The planner in a simulated cluster: real certificates, a clock that jumps from event to event, and delays drawn from a seed.

#![allow(clippy::unwrap_used)]

mod agent;
mod blocked;
mod bundle_readers;
mod clients;
mod cluster;
mod config_maps;
mod consumers;
mod deadlines;
mod distributed;
mod examples;
mod foreign_sources;
mod further_certificate;
mod gone;
mod history;
mod issuer;
mod keystores;
mod lost_journal;
mod pending;
mod probe;
mod prober;
mod profiles;
mod properties;
mod readers;
mod reality;
mod refused;
mod renewal;
mod revert;
mod revocation;
mod scene;
mod several_signers;
mod shared_clients;
mod thousand_clients;
mod traffic;
mod waits;

//! `next` in a simulated cluster: real certificates, a clock that jumps from event to event, and delays drawn from a seed.

#![allow(clippy::unwrap_used)]

mod agent;
mod bundle_readers;
mod clients;
mod config_maps;
mod distributed;
mod ends;
mod examples;
mod foreign;
mod history;
mod holds;
mod issuer;
mod lookout;
mod lost;
mod many;
mod pending;
mod probe;
mod profiles;
mod properties;
mod readers;
mod renewal;
mod scene;
mod second;
#[path = "../../../../tests/bed/seed.rs"]
mod seed;
mod traffic;
mod world;

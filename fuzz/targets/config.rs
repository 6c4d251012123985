//! Any text as a configuration: it is taken or refused with a message, and what is taken is within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::{MAX_CEILING, MAX_LEASE_TTL, MAX_QUEUED, MAX_WAIT, MIN_LEASE_TTL, Settings};
use tidegate_server::config::Config;

fuzz_target!(|text: &str| {
    match Config::parse(text) {
        Ok(config) => {
            let templates = config.templates.iter().map(|template| &template.settings);
            config.bulkheads.iter().map(|(_, settings)| settings).chain(templates).for_each(check);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

fn check(settings: &Settings) {
    assert!((1..=settings.ceiling()).contains(&settings.limit()) && settings.ceiling() <= MAX_CEILING);
    assert!(settings.max_queued() <= MAX_QUEUED && settings.max_wait() <= MAX_WAIT);
    assert!((MIN_LEASE_TTL..=settings.max_lease_ttl()).contains(&settings.lease_ttl()));
    assert!(settings.max_lease_ttl() <= MAX_LEASE_TTL && settings.aging_step() <= MAX_WAIT);
}

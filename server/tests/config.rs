//! Whatever the configuration says in its ranges: what is shown of it is accepted again and means the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tidegate_server::config::Config;

/// Some of the settings of a bulkhead, each within its range and fitting the others.
fn rule(random: &mut StdRng, text: &mut String) {
    let limit: usize = random.random_range(1..2000);
    writeln!(text, "limit = {limit}").unwrap();
    let mut maybe = |text: &mut String, line: String| {
        if random.random_bool(0.4) {
            writeln!(text, "{line}").unwrap();
        }
    };
    maybe(text, format!("ceiling = {}", limit + limit / 3));
    maybe(text, format!("max_queued = 0x{limit:x}"));
    maybe(text, format!("max_wait = \"{}ms\"", limit * 7));
    maybe(text, format!("lease_ttl = '{}s'", 2 + limit % 100));
    maybe(text, format!("max_lease_ttl = \"{}s\"", 150 + limit % 100));
    maybe(text, format!("aging_step = \"{}us\"", limit * 1001));
    maybe(text, format!("displace = {}", limit.is_multiple_of(2)));
    maybe(text, format!("mode = \"{}\"", ["enforcing", "shadow", "paused", "closed"][limit % 4]));
}

fn configuration(random: &mut StdRng) -> String {
    let mut text = String::from("[server]\n");
    let keys = [
        "min_retry_hint = '3ms'",
        "max_retry_hint = '90s 5ms'",
        "max_cooldown = '2h'",
        "cooldown_grace = '0s'",
        "ramp_step = '1500ms'",
        "idle_after = '1day'",
        "max_leases = 17",
        "ops_listen = '[::1]:0'",
    ];
    for key in keys.choose_multiple(random, 3) {
        writeln!(text, "{key}").unwrap();
    }
    if random.random_bool(0.5) {
        text += "[defaults]\nmax_wait = '3s'\ndisplace = true\n";
    }
    for number in 0..random.random_range(1..4) {
        // Names may need quotes.
        let name = ["plain", "a \\\"quoted\\\" one", "größer/🦀", "back\\\\slash # no comment"][number];
        writeln!(text, "[[bulkhead]]\nname = \"{name}\"").unwrap();
        rule(random, &mut text);
    }
    for number in 0..random.random_range(0..3) {
        writeln!(text, "[[template]]\npattern = \"x{number}/*\"").unwrap();
        rule(random, &mut text);
    }
    text
}

#[test]
fn what_is_shown_is_accepted_and_means_the_same() {
    for seed in 0..500 {
        let text = configuration(&mut StdRng::seed_from_u64(seed));
        let config = Config::parse(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        let shown = config.effective().to_string();
        let again = Config::parse(&shown).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{shown}"));
        assert_eq!(config.plan, again.plan, "seed {seed}:\n{text}\n{shown}");
        assert_eq!(format!("{:?}", config.server), format!("{:?}", again.server), "seed {seed}");
    }
}

//! Any text as a lease id, from scratch or patched into a genuine one: only the genuine one opens anything.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tidegate_core::{Acquire, Draft, Release, Settings};
use tidegate_server::{Admission, Ask, Change, Waits};
use tokio::runtime::{Builder, Runtime};

#[derive(Arbitrary, Debug)]
enum Text {
    Raw(String),
    /// A part of the genuine id replaced by this.
    Patch {
        from: u8,
        to: u8,
        by: Vec<u8>,
    },
}

struct World {
    runtime: Runtime,
    admission: Admission,
    genuine: String,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (admission, genuine) = runtime.block_on(async {
        let admission = Admission::default();
        admission
            .create(&Change::default(), "db", Settings::try_from(Draft { limit: Some(1), ..Draft::default() }).unwrap())
            .unwrap();
        let received = admission.clock().now();
        let ask = Ask { received, bulkhead: "db".into(), request_id: None, waits: Waits::default(), acquire: Acquire::default() };
        let genuine = admission.acquire(ask).await.unwrap().lease_id;
        (admission, genuine)
    });
    World { runtime, admission, genuine }
});

fuzz_target!(|text: Text| {
    let World { runtime, admission, genuine } = &*WORLD;
    let _inside = runtime.enter();
    let text = match text {
        Text::Raw(text) => text,
        Text::Patch { from, to, by } => {
            let mut bytes = genuine.clone().into_bytes();
            let from = usize::from(from) % (bytes.len() + 1);
            let to = usize::from(to).clamp(from, bytes.len());
            bytes.splice(from..to, by);
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    let is_genuine = text == *genuine;
    assert_eq!(admission.renew(&text, None).is_some(), is_genuine, "{text}");
    assert_eq!(admission.partition_of(&text).is_some(), is_genuine, "{text}");
    if !is_genuine {
        assert_eq!(admission.release(&text), Release::Unknown, "{text}");
    }
});

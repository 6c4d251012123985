//! Reads the configuration again when SIGHUP comes or its file changes, and applies what it says of bulkheads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use crate::admission::Admission;
use crate::config::{Config, ConfigError, Effective, Running, Sources, needs_restart};

/// A file is read when nothing has changed beside it for this long,
const QUIET: Duration = Duration::from_millis(100);
/// but not later than this.
const LATEST: Duration = Duration::from_secs(1);

/// What may ask for a reload. From the moment it is made on no change is missed.
#[derive(Debug)]
pub struct Reloads {
    sources: Sources,
    hangup: Signal,
    changed: mpsc::Receiver<()>,
    /// Watches for as long as it is there; without it SIGHUP is left.
    watcher: Option<RecommendedWatcher>,
}

impl Reloads {
    /// Catches SIGHUP from now on and watches the folder of the file, since a file that is replaced is another file, and
    /// a `ConfigMap` swaps a link beside it. Needs a tokio runtime.
    pub fn watch(sources: Sources) -> std::io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        // One is enough: what it says is only that there is something to look at.
        let (sender, changed) = mpsc::channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| is_reading(event.kind)) {
                let _ = sender.try_send(());
            }
        });
        let folder = match sources.path().parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let started = watcher.and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let watcher = match started {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                warn!(
                    "the configuration is read again on SIGHUP only: {} cannot be watched: {error}",
                    folder.display()
                );
                None
            }
        };
        Ok(Self { sources, hangup, changed, watcher })
    }

    /// Reloads for ever. `running` is what the server was started with.
    pub(crate) async fn run(self, running: Running, admission: Arc<Admission>) {
        let Self { sources, mut hangup, mut changed, watcher } = self;
        let Running { text, effective: started } = running;
        let mut told = Told { sources, text: Some(text), started, admission, applied: 0, refused: 0 };
        // The file may have changed between being read and being watched.
        let mut asked = false;
        loop {
            // Reading may take its time, and so may many bulkheads: not where the sockets are read.
            let reloaded = tokio::task::spawn_blocking(move || {
                if asked {
                    told.reload();
                } else {
                    told.look();
                }
                told
            });
            // Only a panic ends it otherwise.
            let Ok(back) = reloaded.await else { return };
            told = back;
            asked = tokio::select! {
                _ = hangup.recv() => {
                    info!("SIGHUP: reading the configuration again");
                    true
                }
                Some(()) = changed.recv(), if watcher.is_some() => {
                    let latest = Instant::now() + LATEST;
                    while Instant::now() < latest && timeout(QUIET, changed.recv()).await.is_ok() {}
                    false
                }
            };
        }
    }
}

/// Whether somebody only looked.
fn is_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// What the server was told last.
struct Told {
    sources: Sources,
    /// What stands in the file, as far as we have looked; `None`: it cannot be read.
    text: Option<String>,
    /// What the server was started with.
    started: Effective,
    admission: Arc<Admission>,
    applied: u64,
    refused: u64,
}

impl Told {
    /// Reloads if the file says something else than before.
    fn look(&mut self) {
        if self.sources.text().ok() != self.text {
            info!(file = %self.sources.path().display(), "the configuration changed: reading it again");
            self.reload();
        }
    }

    fn reload(&mut self) {
        let text = self.sources.text();
        self.text = text.clone().ok();
        let read = text.map_err(|fault| ConfigError(vec![fault])).and_then(|text| Config::build(&self.sources, &text));
        match read {
            Ok(config) => self.apply(config),
            Err(error) => {
                error.lines().for_each(|line| error!("bad configuration: {line}"));
                self.refuse();
            }
        }
    }

    fn apply(&mut self, config: Config) {
        let Config { plan, running: Running { effective: now, .. }, .. } = config;
        let changed = match self.admission.reload(plan) {
            Ok(changed) => changed,
            Err(no_room) => {
                error!("bad configuration: {no_room}");
                return self.refuse();
            }
        };
        let differ = self.started.differs(&now);
        let waiting: Vec<_> = differ.into_iter().filter(|key| needs_restart(key)).collect();
        if !waiting.is_empty() {
            warn!("different in [server] since the start, and in force only after the next: {}", waiting.join(", "));
        }
        self.applied += 1;
        info!(changed, applied_so_far = self.applied, refused_so_far = self.refused, "configuration reloaded");
    }

    fn refuse(&mut self) {
        self.refused += 1;
        error!(
            applied_so_far = self.applied,
            refused_so_far = self.refused,
            "the configuration is not reloaded; nothing is changed"
        );
    }
}

//! The only wait of an Acquire, inside a guard that owns the receiver (R5).
//!
//! Every verdict is sent, and every guard is dropped, under the lock of the cell. So when a guard goes without having
//! heard its verdict there are three cases and no race: it was granted (the permit goes to the next one), it was refused
//! (nothing to do), or it still waits (its place goes).

use std::sync::Arc;

use tidegate_core::{Grant, Refusal, WaiterId};
use tokio::sync::oneshot;

use crate::admission::{Admission, Cell};

/// How a wait ends.
#[derive(Debug)]
pub(crate) enum Verdict {
    Granted(Grant),
    Refused(Refusal),
}

/// A call's place in a queue. Dropped before the verdict was heard, it leaves nothing behind.
pub(crate) struct Waiting<'a> {
    admission: &'a Admission,
    cell: Arc<Cell>,
    id: WaiterId,
    verdict: oneshot::Receiver<Verdict>,
    heard: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(
        admission: &'a Admission,
        cell: Arc<Cell>,
        id: WaiterId,
        verdict: oneshot::Receiver<Verdict>,
    ) -> Self {
        Self { admission, cell, id, verdict, heard: false }
    }

    /// Waits. Cancel safe: a drop at any moment is one of the three cases above.
    pub(crate) async fn verdict(mut self) -> Verdict {
        let Ok(verdict) = (&mut self.verdict).await else {
            unreachable!("a parked caller is told before its sender goes")
        };
        // From here to the end nothing awaits: the answer is on its way.
        self.heard = true;
        if let Verdict::Granted(grant) = &verdict {
            self.admission.confirm(&self.cell, grant.token);
        }
        verdict
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.heard {
            self.admission.abandon(&self.cell, self.id, &mut self.verdict);
        }
    }
}

//! As much of `parking_lot` as the server uses, on a mutex whose schedules shuttle chooses.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::missing_panics_doc,
    reason = "a poisoned lock means that the test failed already"
)]

pub use shuttle::sync::MutexGuard;

/// A mutex without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free one.
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

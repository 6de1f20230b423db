//! Which of a file's tensors were looked up, so that those that nothing reads can be named.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names of tensors that are in a file and were looked up.
#[derive(Debug, Default)]
pub(crate) struct Asked(Mutex<HashSet<String>>);

impl Asked {
    pub(super) fn note(&self, name: &str) {
        self.names().insert(name.to_owned());
    }

    pub(super) fn forget(&self) {
        self.names().clear();
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

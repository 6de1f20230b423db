//! `LoadProgress`: how much of a model's weights is in memory, while they are loaded in another thread.

use std::sync::Arc;

use pyagent_engine::weights;
use pyo3::prelude::*;

/// Bytes of weights that a load is through with, of all: never fewer than before, nor more than those. Any thread may count
/// and look.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct LoadProgress {
    inner: Arc<weights::LoadProgress>,
}

impl LoadProgress {
    pub(crate) fn shared(&self) -> Arc<weights::LoadProgress> {
        Arc::clone(&self.inner)
    }
}

#[pymethods]
impl LoadProgress {
    /// Of a load that expects nothing yet.
    #[new]
    fn new() -> Self {
        Self { inner: Arc::default() }
    }

    /// Expects more bytes.
    fn expect(&self, num_bytes: u64) {
        self.inner.expect(num_bytes);
    }

    /// Counts bytes that are done.
    fn add(&self, num_bytes: u64) {
        self.inner.add(num_bytes);
    }

    /// Counts all that is left: the load is through.
    fn finish(&self) {
        self.inner.finish();
    }

    /// Bytes that are done.
    #[getter]
    fn bytes_done(&self) -> u64 {
        self.inner.done()
    }

    /// Bytes in all; 0 before they are known.
    #[getter]
    fn bytes_total(&self) -> u64 {
        self.inner.total()
    }
}

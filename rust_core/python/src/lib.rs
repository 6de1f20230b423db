//! `pyagent._rust`: converts arguments, releases the GIL, calls the pure crates, converts back.

mod cache;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _rust {
    use super::*;

    #[pymodule_export]
    use crate::cache::{BlockPool, OutOfBlocks, PoolStats};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

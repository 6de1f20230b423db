//! `pyagent._rust`: converts arguments, releases the GIL, calls the pure crates, converts back.

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _rust {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

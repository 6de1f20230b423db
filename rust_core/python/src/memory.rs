//! `trim_memory`: what loading a model leaves behind goes back to the system.

use pyo3::prelude::*;

/// Gives the memory that was allocated and freed again back to the system, where its allocator keeps it (glibc).
///
/// Worth calling after something large and passing, such as reading a vocabulary; it looks at all that was freed.
#[pyfunction]
pub fn trim_memory(py: Python<'_>) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    py.detach(|| {
        // SAFETY: the call may come at any time from any thread; it moves nothing that is in use.
        unsafe { libc::malloc_trim(0) };
    });
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = py;
}

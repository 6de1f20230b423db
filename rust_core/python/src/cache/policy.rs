//! Eviction policies written in Python. Each call attaches to the interpreter while the pool's lock is held, so no
//! thread may wait for that lock attached, and a policy may not call the pool.

use std::cell::Cell;

use pyagent_cache::{Content, EvictionPolicy, ForeignPolicy, Supervised, make_policy};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// What `BlockPool(eviction=...)` takes: a name, or an object with the methods of `core.eviction.EvictionPolicy`.
#[derive(FromPyObject)]
pub(super) enum Eviction {
    Name(String),
    Policy(Py<PyAny>),
}

impl Eviction {
    pub(super) fn make(self, num_pages: u32) -> PyResult<Box<dyn EvictionPolicy>> {
        match self {
            Self::Name(name) => make_policy(&name, num_pages).ok_or_else(|| {
                let names = pyagent_cache::POLICY_NAMES.join(", ");
                PyValueError::new_err(format!("no eviction policy is called '{name}'; there are {names}"))
            }),
            Self::Policy(policy) => Ok(Box::new(Supervised::new(Box::new(PythonPolicy(policy)), num_pages))),
        }
    }
}

thread_local! {
    static IS_IN_POLICY: Cell<bool> = const { Cell::new(false) };
}

/// Refuses calls that a policy makes while the pool waits for it.
///
/// # Errors
/// `RuntimeError`, since waiting for the lock would never end.
pub(super) fn check_not_in_policy() -> PyResult<()> {
    if IS_IN_POLICY.get() {
        return Err(PyRuntimeError::new_err(
            "an eviction policy called the block pool that is asking it; it must only order blocks",
        ));
    }
    Ok(())
}

struct PythonPolicy(Py<PyAny>);

impl PythonPolicy {
    fn call<T: for<'a, 'py> FromPyObject<'a, 'py, Error: Into<PyErr>>>(
        &self,
        method: &str,
        arguments: impl for<'py> IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
    ) -> Result<T, String> {
        let called = Python::try_attach(|py| {
            IS_IN_POLICY.set(true);
            let result = arguments
                .into_pyobject(py)
                .map_err(Into::into)
                .and_then(|arguments| self.0.bind(py).call_method1(method, arguments));
            IS_IN_POLICY.set(false);
            let result = result.and_then(|value| value.extract().map_err(Into::into));
            result.map_err(|error: PyErr| format!("{method}() raised {error}"))
        });
        called.unwrap_or_else(|| Err("the interpreter is shutting down".to_owned()))
    }
}

/// The value of a call that returns nothing worth reading.
struct Ignored;

impl FromPyObject<'_, '_> for Ignored {
    type Error = PyErr;

    fn extract(_value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Ok(Self)
    }
}

impl ForeignPolicy for PythonPolicy {
    fn insert(&mut self, block: u32, content: Content) -> Result<(), String> {
        self.call("insert", (block, content.key, content.priority))
            .map(|Ignored| ())
    }

    fn hit(&mut self, block: u32) -> Result<(), String> {
        self.call("hit", (block,)).map(|Ignored| ())
    }

    fn release(&mut self, block: u32) -> Result<(), String> {
        self.call("release", (block,)).map(|Ignored| ())
    }

    fn hold(&mut self, block: u32) -> Result<(), String> {
        self.call("hold", (block,)).map(|Ignored| ())
    }

    fn evict(&mut self) -> Result<Option<u32>, String> {
        self.call("evict", ())
    }

    fn forget(&mut self, block: u32) -> Result<(), String> {
        self.call("forget", (block,)).map(|Ignored| ())
    }
}

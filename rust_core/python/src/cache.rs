//! `BlockPool`: the paged KV cache's bookkeeping, for the scheduler in Python and the runners in Rust.
//!
//! One mutex guards the pool. It is taken without the GIL and held for a table's length of work; a runner that
//! locks it must not wait for the GIL before letting go.

use std::sync::{Mutex, MutexGuard};

use pyagent_cache::{CacheError, Salt};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    pyagent._rust,
    OutOfBlocks,
    PyException,
    "Not enough free KV blocks; `needed` and `free` say how many. Nothing was changed: release a sequence, then retry."
);

fn to_python(py: Python<'_>, error: &CacheError) -> PyErr {
    let text = error.to_string();
    match *error {
        CacheError::OutOfBlocks { needed, free } => {
            let raised = OutOfBlocks::new_err(text);
            let value = raised.value(py);
            match value
                .setattr("needed", needed)
                .and_then(|()| value.setattr("free", free))
            {
                Ok(()) => raised,
                Err(failed) => failed,
            }
        }
        CacheError::Inconsistent(_) => PyRuntimeError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// Counts of a block pool at one moment, and since it was made.
#[pyclass(frozen, get_all, eq, module = "pyagent._rust")]
#[derive(PartialEq, Eq)]
pub struct PoolStats {
    num_blocks: usize,
    free: usize,
    cached: usize,
    active: usize,
    hits_tokens: u64,
    queried_tokens: u64,
    evictions: u64,
}

#[pymethods]
impl PoolStats {
    fn __repr__(&self) -> String {
        format!(
            "PoolStats(num_blocks={}, free={}, cached={}, active={}, hits_tokens={}, queried_tokens={}, evictions={})",
            self.num_blocks, self.free, self.cached, self.active, self.hits_tokens, self.queried_tokens, self.evictions
        )
    }
}

impl From<pyagent_cache::PoolStats> for PoolStats {
    fn from(stats: pyagent_cache::PoolStats) -> Self {
        let pyagent_cache::PoolStats {
            num_blocks,
            free,
            cached,
            active,
            hits_tokens,
            queried_tokens,
            evictions,
        } = stats;
        Self {
            num_blocks,
            free,
            cached,
            active,
            hits_tokens,
            queried_tokens,
            evictions,
        }
    }
}

/// Reference-counted KV blocks, the sequences that hold them, and the prefixes that can be used again.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct BlockPool {
    inner: Mutex<pyagent_cache::BlockPool>,
}

impl BlockPool {
    /// The pool itself, for runners that follow its tables. Do not wait for the GIL while holding it.
    ///
    /// # Errors
    /// `RuntimeError` when a thread panicked in the pool: it must not be trusted with memory any more.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, pyagent_cache::BlockPool>> {
        let poisoned = |_| PyRuntimeError::new_err("the block pool failed in another thread; make a new one");
        self.inner.lock().map_err(poisoned)
    }

    /// Calls the pool without the GIL.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&mut pyagent_cache::BlockPool) -> Result<T, CacheError> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.lock().map(|mut pool| operation(&mut pool)))?
            .map_err(|error| to_python(py, &error))
    }
}

fn salt(adapter_id: u64, media_hash: &[u8], tenant: &str) -> Salt {
    Salt {
        adapter_id,
        media_hash: media_hash.into(),
        tenant: tenant.as_bytes().into(),
    }
}

#[pymethods]
impl BlockPool {
    #[new]
    #[pyo3(signature = (num_blocks, block_tokens = 16))]
    fn new(py: Python<'_>, num_blocks: u32, block_tokens: usize) -> PyResult<Self> {
        let pool = pyagent_cache::BlockPool::new(num_blocks, block_tokens);
        Ok(Self {
            inner: Mutex::new(pool.map_err(|error| to_python(py, &error))?),
        })
    }

    /// Tokens a block.
    #[getter]
    fn block_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |pool| Ok(pool.block_tokens()))
    }

    /// Starts a sequence on the longest cached prefix of `prompt`; returns its number of tokens.
    #[pyo3(signature = (seq, prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn add(
        &self,
        py: Python<'_>,
        seq: u64,
        prompt: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        self.call(py, |pool| pool.add(seq, &prompt, &salt))
    }

    /// How many tokens of `prompt` an `add` would find cached now.
    #[pyo3(signature = (prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn num_cached_tokens(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        self.call(py, |pool| Ok(pool.num_cached_tokens(&prompt, &salt)))
    }

    /// Makes room for `num_tokens` tokens in all; raises `OutOfBlocks`, and changes nothing, when there is none.
    fn reserve(&self, py: Python<'_>, seq: u64, num_tokens: usize) -> PyResult<()> {
        self.call(py, |pool| pool.reserve(seq, num_tokens))
    }

    /// Records that the KV of these next tokens is computed. The table may change: read it again.
    fn commit(&self, py: Python<'_>, seq: u64, tokens: Vec<u32>) -> PyResult<()> {
        self.call(py, |pool| pool.commit(seq, &tokens))
    }

    /// The sequence's blocks in order.
    fn table(&self, py: Python<'_>, seq: u64) -> PyResult<Vec<u32>> {
        self.call(py, |pool| pool.table(seq).map(<[u32]>::to_vec))
    }

    /// The sequence's tokens whose KV is computed.
    fn tokens(&self, py: Python<'_>, seq: u64) -> PyResult<Vec<u32>> {
        self.call(py, |pool| pool.tokens(seq).map(<[u32]>::to_vec))
    }

    /// How many tokens of the sequence have their KV computed.
    fn num_tokens(&self, py: Python<'_>, seq: u64) -> PyResult<usize> {
        self.call(py, |pool| pool.num_tokens(seq))
    }

    /// Ends a sequence; its whole blocks stay findable until their memory is needed.
    fn release(&self, py: Python<'_>, seq: u64) -> PyResult<()> {
        self.call(py, |pool| pool.release(seq))
    }

    /// Starts `child` as a copy of `parent`; returns the (source, destination) blocks whose KV must be copied.
    fn fork(&self, py: Python<'_>, parent: u64, child: u64) -> PyResult<Vec<(u32, u32)>> {
        self.call(py, |pool| pool.fork(parent, child))
    }

    /// Makes everything computed so far unfindable; running sequences go on.
    fn clear_index(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |pool| {
            pool.clear_index();
            Ok(())
        })
    }

    /// Counts now, and since the pool was made.
    fn stats(&self, py: Python<'_>) -> PyResult<PoolStats> {
        self.call(py, |pool| Ok(pool.stats().into()))
    }

    /// Verifies every invariant; raises `RuntimeError` naming what does not add up.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |pool| pool.check())
    }
}

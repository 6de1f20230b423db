//! `BlockPool`: the paged KV cache's bookkeeping, for the scheduler in Python and the runners in Rust.
//!
//! One mutex guards the pool. It is taken without the GIL and held for a table's length of work; a runner that
//! locks it must not wait for the GIL before letting go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use pyagent_cache::{AddOptions, CacheError, Group, GroupKind, PoolOptions, Salt};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    pyagent._rust,
    OutOfBlocks,
    PyException,
    "Not enough free KV pages; `needed` and `free` say how many. Nothing was changed: release a sequence, then retry."
);

fn to_python(py: Python<'_>, error: &CacheError) -> PyErr {
    let text = error.to_string();
    match *error {
        CacheError::OutOfPages { needed, free } => {
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
    num_pages: usize,
    limit: usize,
    free: usize,
    cached: usize,
    active: usize,
    hits_tokens: u64,
    queried_tokens: u64,
    evictions: u64,
    evictions_by_cause: BTreeMap<&'static str, u64>,
}

#[pymethods]
impl PoolStats {
    fn __repr__(&self) -> String {
        format!(
            "PoolStats(num_pages={}, limit={}, free={}, cached={}, active={}, hits_tokens={}, queried_tokens={}, \
             evictions_by_cause={:?})",
            self.num_pages,
            self.limit,
            self.free,
            self.cached,
            self.active,
            self.hits_tokens,
            self.queried_tokens,
            self.evictions_by_cause
        )
    }
}

impl From<pyagent_cache::PoolStats> for PoolStats {
    fn from(stats: pyagent_cache::PoolStats) -> Self {
        let evictions = stats.evictions();
        let pyagent_cache::PoolStats {
            num_pages,
            limit,
            free,
            cached,
            active,
            hits_tokens,
            queried_tokens,
            evicted_demoted,
            evicted_policy,
        } = stats;
        Self {
            num_pages,
            limit,
            free,
            cached,
            active,
            hits_tokens,
            queried_tokens,
            evictions,
            evictions_by_cause: BTreeMap::from([("demoted", evicted_demoted), ("policy", evicted_policy)]),
        }
    }
}

/// Reference-counted KV pages, the sequences that hold them, and the prefixes that can be used again.
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

fn group((kind, size, pages_per_block): (String, usize, usize)) -> PyResult<Group> {
    let kind = match kind.as_str() {
        "full" => GroupKind::Full,
        "window" => GroupKind::Window(size),
        "chunk" => GroupKind::Chunk(size),
        other => {
            return Err(PyValueError::new_err(format!(
                "a KV group is full, window or chunk, got '{other}'"
            )));
        }
    };
    Ok(Group { kind, pages_per_block })
}

#[pymethods]
impl BlockPool {
    #[new]
    #[pyo3(signature = (num_pages, *, groups = vec![("full".to_owned(), 0, 1)], block_tokens = 16))]
    fn new(py: Python<'_>, num_pages: u32, groups: Vec<(String, usize, usize)>, block_tokens: usize) -> PyResult<Self> {
        let options = PoolOptions {
            block_tokens,
            groups: groups.into_iter().map(group).collect::<PyResult<_>>()?,
            ..PoolOptions::new(num_pages)
        };
        let pool = pyagent_cache::BlockPool::new(options);
        Ok(Self {
            inner: Mutex::new(pool.map_err(|error| to_python(py, &error))?),
        })
    }

    /// Tokens a block.
    #[getter]
    fn block_tokens(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |pool| Ok(pool.block_tokens()))
    }

    /// Pages that may be in use or cached now.
    #[getter]
    fn limit(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |pool| Ok(pool.limit()))
    }

    /// Allows so many pages; evicts what is cached beyond, and returns how many are in use beyond.
    fn set_limit(&self, py: Python<'_>, num_pages: usize) -> PyResult<usize> {
        self.call(py, |pool| pool.set_limit(num_pages))
    }

    /// Pages that became empty since the last call; their memory may be given back before they are reserved again.
    fn take_freed(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.call(py, |pool| Ok(pool.take_freed()))
    }

    /// The most pages a sequence of `num_tokens` holds at once when each step adds up to `step_tokens`.
    fn most_pages(&self, py: Python<'_>, num_tokens: usize, step_tokens: usize) -> PyResult<usize> {
        self.call(py, |pool| Ok(pool.most_pages(num_tokens, step_tokens)))
    }

    /// Starts a sequence on the longest usable prefix of `prompt`; returns its number of tokens.
    #[expect(clippy::too_many_arguments, reason = "one keyword for each part of the key")]
    #[pyo3(signature = (seq, prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = "", priority = 0,
        count = true))]
    fn add(
        &self,
        py: Python<'_>,
        seq: u64,
        prompt: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
        priority: i64,
        count: bool,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        let options = AddOptions {
            priority,
            is_resumed: !count,
        };
        self.call(py, |pool| pool.add(seq, &prompt, &salt, options))
    }

    /// Starts a sequence whose tokens were computed and whose `pages_in_use` were saved; returns how many of its
    /// tokens are cached and, for each saved page, where to put its content (0xFFFFFFFF: it is cached). Commit the
    /// tokens that are not cached once the content is there.
    #[expect(clippy::too_many_arguments, reason = "one keyword for each part of the key")]
    #[pyo3(signature = (seq, tokens, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = "", priority = 0))]
    fn restore(
        &self,
        py: Python<'_>,
        seq: u64,
        tokens: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
        priority: i64,
    ) -> PyResult<(usize, Vec<u32>)> {
        let salt = salt(adapter_id, media_hash, tenant);
        let options = AddOptions {
            priority,
            is_resumed: true,
        };
        self.call(py, |pool| pool.restore(seq, &tokens, &salt, options))
    }

    /// The pages a sequence needs to go on later: its computed blocks in sight of the next token.
    fn pages_in_use(&self, py: Python<'_>, seq: u64) -> PyResult<Vec<u32>> {
        self.call(py, |pool| pool.pages_in_use(seq))
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

    /// For each group, the pages of the sequence's blocks in order; 0xFFFFFFFF where a block slid out of sight.
    fn tables(&self, py: Python<'_>, seq: u64) -> PyResult<Vec<Vec<u32>>> {
        let copy = |tables: &[Arc<Vec<u32>>]| tables.iter().map(|table| table.to_vec()).collect();
        self.call(py, |pool| pool.tables(seq).map(copy))
    }

    /// The first group's table.
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

    /// Starts `child` as a copy of `parent`; returns the (source, destination) pages whose KV must be copied.
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

//! `BlockPool`: the paged KV cache's bookkeeping, for the scheduler in Python and the runners in Rust.
//!
//! One mutex guards the pool. It is taken without the GIL, and held for a table's length of work; an eviction policy
//! written in Python takes the GIL meanwhile.

mod policy;
mod reports;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyagent_cache::{AddOptions, CacheError, Group, GroupKind, HASHER_NAMES, PoolOptions, Salt, make_hasher};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use policy::{Eviction, check_not_in_policy};
pub use reports::{CachedPrefix, PoolStats};

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

/// Reference-counted KV pages, the sequences that hold them, and the prefixes that can be used again.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct BlockPool {
    inner: Mutex<pyagent_cache::BlockPool>,
}

impl BlockPool {
    /// The pool itself, for runners that follow its tables. Call it without the GIL.
    ///
    /// # Errors
    /// `RuntimeError` when a thread panicked in the pool: it must not be trusted with memory any more.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, pyagent_cache::BlockPool>> {
        check_not_in_policy()?;
        let poisoned = |_| PyRuntimeError::new_err("the block pool failed in an earlier call; make a new one");
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
        "recorded" => GroupKind::Recorded,
        "window" => GroupKind::Window(size),
        "chunk" => GroupKind::Chunk(size),
        "state" => GroupKind::State(size),
        other => {
            return Err(PyValueError::new_err(format!(
                "a KV group is full, recorded, window, chunk or state, got '{other}'"
            )));
        }
    };
    Ok(Group { kind, pages_per_block })
}

#[derive(FromPyObject)]
enum NameOrTokens {
    Name(String),
    Tokens(Vec<u32>),
}

#[pymethods]
impl BlockPool {
    #[new]
    #[pyo3(signature = (num_pages, *, groups = vec![("full".to_owned(), 0, 1)],
        eviction = Eviction::Name("lru".to_owned()), prefix_hash = "siphash", block_tokens = 16))]
    fn new(
        py: Python<'_>,
        num_pages: u32,
        groups: Vec<(String, usize, usize)>,
        eviction: Eviction,
        prefix_hash: &str,
        block_tokens: usize,
    ) -> PyResult<Self> {
        let hasher = make_hasher(prefix_hash).ok_or_else(|| {
            let names = HASHER_NAMES.join(", ");
            PyValueError::new_err(format!("no hash is called '{prefix_hash}'; there are {names}"))
        })?;
        let options = PoolOptions {
            block_tokens,
            groups: groups.into_iter().map(group).collect::<PyResult<_>>()?,
            policy: Some(eviction.make(num_pages)?),
            hasher,
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

    /// Starts a sequence on the longest usable prefix of `prompt` in whole blocks, of `most_cached` tokens at most;
    /// returns its number of tokens.
    #[expect(clippy::too_many_arguments, reason = "one keyword for each part of the key")]
    #[pyo3(signature = (seq, prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = "", priority = 0,
        count = true, most_cached = None))]
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
        most_cached: Option<usize>,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        let options = AddOptions {
            priority,
            is_resumed: !count,
            most_cached,
        };
        self.call(py, |pool| pool.add(seq, &prompt, &salt, options))
    }

    /// Continues a sequence just added by what a cached block has in common with `tokens`, which come next in its prompt:
    /// returns how many tokens that are and the (source, destination) pages whose KV must be copied at once.
    fn take_part(&self, py: Python<'_>, seq: u64, tokens: Vec<u32>) -> PyResult<(usize, Vec<(u32, u32)>)> {
        self.call(py, |pool| pool.take_part(seq, &tokens))
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
            most_cached: None,
        };
        self.call(py, |pool| pool.restore(seq, &tokens, &salt, options))
    }

    /// The pages a sequence needs to go on later: its computed blocks in sight of the next token.
    fn pages_in_use(&self, py: Python<'_>, seq: u64) -> PyResult<Vec<u32>> {
        self.call(py, |pool| pool.pages_in_use(seq))
    }

    /// How many tokens of `prompt` are cached now for `add` and `take_part`, and how many free pages they would take.
    /// Not a use.
    #[pyo3(signature = (prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn lookup(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<(usize, usize)> {
        let salt = salt(adapter_id, media_hash, tenant);
        self.call(py, |pool| Ok(pool.lookup(&prompt, &salt)))
            .map(|found| (found.num_tokens, found.num_pages))
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

    /// Ends a sequence; what it computed stays findable until its memory is needed.
    fn release(&self, py: Python<'_>, seq: u64) -> PyResult<()> {
        self.call(py, |pool| pool.release(seq))
    }

    /// Starts `child` as a copy of `parent`; returns the (source, destination) pages whose KV must be copied.
    fn fork(&self, py: Python<'_>, parent: u64, child: u64) -> PyResult<Vec<(u32, u32)>> {
        self.call(py, |pool| pool.fork(parent, child))
    }

    /// Keeps the cached prefix of `tokens` until it is unpinned; returns its number of tokens. A pin of this name ends.
    #[pyo3(signature = (name, tokens, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn pin(
        &self,
        py: Python<'_>,
        name: &str,
        tokens: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        self.call(py, |pool| pool.pin(name, &tokens, &salt))
    }

    /// Ends a pin; whether there was one.
    fn unpin(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.call(py, |pool| Ok(pool.unpin(name)))
    }

    /// Keeps the cached prefix of `tokens` longer than others until it is overdue; returns its number of tokens.
    #[expect(clippy::too_many_arguments, reason = "one keyword for each part of the key")]
    #[pyo3(signature = (name, tokens, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = "",
        expected_seconds = None))]
    fn retain(
        &self,
        py: Python<'_>,
        name: &str,
        tokens: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
        expected_seconds: Option<f64>,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        let expected = expected_seconds.map(Duration::try_from_secs_f64).transpose();
        let expected = expected.map_err(|error| PyValueError::new_err(format!("expected_seconds: {error}")))?;
        self.call(py, |pool| Ok(pool.retain(name, &tokens, &salt, expected)))
    }

    /// Makes what is retained under this name ordinary; whether there was any.
    fn forget(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.call(py, |pool| Ok(pool.forget(name)))
    }

    /// Lets cached blocks that nothing else goes on from go first; returns their number of tokens. `prefix` is the
    /// name of something retained, or tokens; blocks with one of the first `keep_tokens` of these stay as they are.
    #[pyo3(signature = (prefix, *, keep_tokens = 0, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn demote(
        &self,
        py: Python<'_>,
        prefix: NameOrTokens,
        keep_tokens: usize,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<usize> {
        let salt = salt(adapter_id, media_hash, tenant);
        self.call(py, |pool| {
            Ok(match &prefix {
                NameOrTokens::Name(name) => pool.demote_retained(name),
                NameOrTokens::Tokens(tokens) => pool.demote(tokens, keep_tokens, &salt),
            })
        })
    }

    /// How many tokens of `prompt` are cached, how many are known, and why not more are cached.
    #[pyo3(signature = (prompt, *, adapter_id = 0, media_hash = b"".as_slice(), tenant = ""))]
    fn explain(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        adapter_id: u64,
        media_hash: &[u8],
        tenant: &str,
    ) -> PyResult<(usize, usize, &'static str)> {
        let salt = salt(adapter_id, media_hash, tenant);
        let explained = self.call(py, |pool| Ok(pool.explain(&prompt, &salt)))?;
        Ok((
            explained.cached_tokens,
            explained.known_tokens,
            reports::reason(explained.reason),
        ))
    }

    /// The tenants' prefixes that can be found and that nothing of the same tenant goes on from, last used first.
    #[pyo3(signature = (limit = 20, *, tenants = vec![String::new()]))]
    fn prefixes(&self, py: Python<'_>, limit: usize, tenants: Vec<String>) -> PyResult<Vec<CachedPrefix>> {
        let tenants: Vec<&[u8]> = tenants.iter().map(String::as_bytes).collect();
        let prefixes = self.call(py, |pool| Ok(pool.prefixes(limit, &tenants)))?;
        Ok(prefixes.into_iter().map(CachedPrefix::from).collect())
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

//! What the pool reports, as Python sees it.

use std::collections::BTreeMap;

use pyagent_cache::Reason;
use pyo3::prelude::*;

/// Counts of a block pool at one moment, and since it was made. All but the tokens are in pages.
#[pyclass(frozen, get_all, eq, module = "pyagent._rust")]
#[derive(PartialEq, Eq)]
pub struct PoolStats {
    num_pages: usize,
    limit: usize,
    free: usize,
    cached: usize,
    active: usize,
    pinned: usize,
    retained: usize,
    demoted: usize,
    hits_tokens: u64,
    queried_tokens: u64,
    evictions: u64,
    evictions_by_cause: BTreeMap<&'static str, u64>,
    policy_error: Option<String>,
}

#[pymethods]
impl PoolStats {
    fn __repr__(&self) -> String {
        format!(
            "PoolStats(num_pages={}, limit={}, free={}, cached={}, active={}, pinned={}, retained={}, demoted={}, \
             hits_tokens={}, queried_tokens={}, evictions_by_cause={:?}, policy_error={:?})",
            self.num_pages,
            self.limit,
            self.free,
            self.cached,
            self.active,
            self.pinned,
            self.retained,
            self.demoted,
            self.hits_tokens,
            self.queried_tokens,
            self.evictions_by_cause,
            self.policy_error
        )
    }
}

impl From<pyagent_cache::PoolStats> for PoolStats {
    fn from(stats: pyagent_cache::PoolStats) -> Self {
        Self {
            evictions: stats.evictions(),
            evictions_by_cause: BTreeMap::from([
                ("demoted", stats.evicted_demoted),
                ("policy", stats.evicted_policy),
                ("retained", stats.evicted_retained),
            ]),
            num_pages: stats.num_pages,
            limit: stats.limit,
            free: stats.free,
            cached: stats.cached,
            active: stats.active,
            pinned: stats.pinned,
            retained: stats.retained,
            demoted: stats.demoted,
            hits_tokens: stats.hits_tokens,
            queried_tokens: stats.queried_tokens,
            policy_error: stats.policy_error,
        }
    }
}

/// A prefix that can be found, to its last block; `state` is used, pinned, retained, demoted or cached.
#[pyclass(frozen, get_all, module = "pyagent._rust")]
pub struct CachedPrefix {
    key: String,
    tokens: Vec<u32>,
    adapter_id: u64,
    tenant: String,
    num_pages: usize,
    state: &'static str,
    idle_seconds: f64,
    hits: u32,
}

impl From<pyagent_cache::CachedPrefix> for CachedPrefix {
    fn from(prefix: pyagent_cache::CachedPrefix) -> Self {
        let state = match () {
            () if prefix.is_pinned => "pinned",
            () if prefix.is_used => "used",
            () if prefix.is_retained => "retained",
            () if prefix.is_demoted => "demoted",
            () => "cached",
        };
        Self {
            key: prefix.key.to_le_bytes().map(|byte| format!("{byte:02x}")).concat(),
            tokens: prefix.tokens,
            adapter_id: prefix.salt.adapter_id,
            tenant: String::from_utf8_lossy(&prefix.salt.tenant).into_owned(),
            num_pages: prefix.num_pages,
            state,
            idle_seconds: prefix.idle_micros as f64 / 1e6,
            hits: prefix.hits,
        }
    }
}

pub(super) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Complete => "complete",
        Reason::Changed => "changed",
        Reason::Evicted => "evicted",
        Reason::Cold => "cold",
    }
}

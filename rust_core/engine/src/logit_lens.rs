//! What is read of a step's probed rows through the output matrix, on all threads, a few rows of logits at a time.

use std::sync::{Mutex, PoisonError};

use pyagent_kernels::sampling::Scorer;
use pyagent_kernels::thread_pool::{ThreadPool, ThreadPoolError};

use crate::forward::{LensTokens, Pass, Plan};
use crate::workspace::SCORED_ROWS;

/// Reads what each layer would have said, and what neurons promote, when all stages of a pass are over; logits go behind
/// the `first` first ones.
///
/// # Safety
/// As [`Pass::compute`]; nobody else uses the workspace, which has room for [`SCORED_ROWS`] more rows of logits.
pub(crate) unsafe fn look(
    pool: &ThreadPool,
    pass: &Pass<'_>,
    plan: &mut Plan<'_>,
    first: usize,
) -> Result<Vec<LensTokens>, ThreadPoolError> {
    // SAFETY: by contract.
    unsafe { pass.keep_residuals(plan) };
    let rows = plan.lens_rows(pass.config.num_layers);
    let scorers: Vec<Mutex<Scorer>> = (0..pool.num_threads()).map(|_| Mutex::default()).collect();
    let mut found = Vec::with_capacity(rows.len());
    for rows in rows.chunks(SCORED_ROWS) {
        plan.set_outputs(rows.iter().map(|_| 0), first);
        let results: Vec<_> = rows.iter().map(|_| Mutex::new(None)).collect();
        let plan = &*plan;
        pool.run(&pass.lens_pieces(plan), |piece| {
            // SAFETY: by contract; the plan's outputs were just set to be these.
            let tokens = unsafe { pass.look_through(plan, rows, &scorers[piece.thread], piece) };
            if tokens.is_some() {
                *results[piece.index].lock().unwrap_or_else(PoisonError::into_inner) = tokens;
            }
        })?;
        let results = results.into_iter();
        let results = results.map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
        let results = results.map(|result| result.expect("every row was looked at"));
        found.extend(rows.iter().copied().zip(results));
    }
    Ok(found)
}

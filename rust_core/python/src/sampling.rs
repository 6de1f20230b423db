//! Samples from logits that were computed elsewhere, as `CpuModel.execute` samples from its own.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, TryLockError};

use pyagent_kernels::sampling::{Sampled, SamplerState};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::engine::{StepOutput, mask_words};
use crate::logits_rows::process_rows;
use crate::sampler_state;
use crate::step::{Asked, Outcome};

/// Samples a token from each row of `logits`, [len(samplers), vocabulary] of 32-bit floats, with `samplers[i]`, as its
/// `steps[i]`-th, from the tokens that `masks[i]` allows where there is one.
///
/// `process` and `processed` are as for `CpuModel.execute`. Returns what that does of segments without drafts. Raises `ValueError` when the columns do not fit; then nothing was sampled.
#[pyfunction]
#[pyo3(signature = (logits, samplers, steps, masks = HashMap::new(), *, process = None, processed = HashSet::new()))]
pub fn sample_logits(
    py: Python<'_>,
    logits: PyBuffer<f32>,
    samplers: Vec<Bound<'_, sampler_state::SamplerState>>,
    steps: Vec<u64>,
    masks: HashMap<usize, PyBackedBytes>,
    process: Option<Py<PyAny>>,
    processed: HashSet<usize>,
) -> PyResult<StepOutput> {
    let count = logits.item_count();
    if samplers.len() != steps.len() || count.checked_rem(samplers.len()).is_some_and(|rest| rest != 0) {
        let (rows, steps) = (samplers.len(), steps.len());
        return Err(PyValueError::new_err(format!(
            "{count} logits and {steps} steps do not fit {rows} samplers"
        )));
    }
    let asked: Vec<Asked> = samplers
        .iter()
        .zip(steps)
        .enumerate()
        .map(|(row, (sampler, step))| Asked {
            sampler: sampler.get().shared(),
            mask: masks.get(&row).map(|mask| mask_words(mask)),
            step,
            num_drafts: 0,
            is_processed: process.is_some() && processed.contains(&row),
        })
        .collect();
    let mut values = logits.to_vec(py)?;
    let outcome = py.detach(|| sample_rows(&mut values, &asked, process.as_ref()))?;
    Ok((outcome.tokens, outcome.likelihoods, outcome.errors))
}

fn sample_rows(values: &mut [f32], asked: &[Asked], process: Option<&Py<PyAny>>) -> PyResult<Outcome> {
    let mut outcome = Outcome::default();
    outcome.tokens.resize(asked.len(), 0);
    let vocab = values.len() / asked.len().max(1);
    if vocab == 0 {
        return Ok(outcome);
    }
    if let Some(process) = process {
        let mut rows = Vec::with_capacity(asked.len());
        for (row, (logits, one)) in values.chunks_exact_mut(vocab).zip(asked).enumerate() {
            if one.is_processed {
                match lock(one)?.prepare(logits, one.mask.as_deref(), one.step) {
                    Ok(()) => rows.push((row, logits)),
                    Err(error) => drop(outcome.errors.insert(row, error.to_string())),
                }
            }
        }
        outcome.errors.extend(process_rows(process, rows.into_iter())?);
    }
    for (row, (logits, one)) in values.chunks_exact_mut(vocab).zip(asked).enumerate() {
        if outcome.errors.contains_key(&row) {
            continue;
        }
        match sample_row(logits, one)? {
            Ok(sampled) => {
                outcome.tokens[row] = sampled.token;
                if let Some(logprob) = sampled.logprob {
                    let likelihood = (logprob, sampled.top_logprobs, sampled.entropy);
                    outcome.likelihoods.insert(row, likelihood);
                }
            }
            Err(reason) => {
                outcome.errors.insert(row, reason);
            }
        }
    }
    Ok(outcome)
}

fn lock(asked: &Asked) -> PyResult<MutexGuard<'_, SamplerState>> {
    asked.sampler.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => PyValueError::new_err("a sampler is used twice at once"),
        TryLockError::Poisoned(_) => PyRuntimeError::new_err("this sampler failed in another thread; make a new one"),
    })
}

fn sample_row(logits: &mut [f32], asked: &Asked) -> PyResult<Result<Sampled, String>> {
    let mut state = lock(asked)?;
    let sampled = if asked.is_processed {
        state.sample_prepared(logits, asked.step)
    } else {
        state.sample(logits, asked.mask.as_deref(), asked.step)
    };
    Ok(sampled
        .inspect(|sampled| state.observe(sampled.token))
        .map_err(|error| error.to_string()))
}

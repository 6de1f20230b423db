//! Samples from logits that were computed elsewhere, as `CpuModel.execute` samples from its own.

use std::collections::HashMap;
use std::sync::TryLockError;

use pyagent_kernels::sampling::Sampled;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::engine::{SamplerState, StepOutput, mask_words};
use crate::step::{Asked, Outcome};

/// Samples a token from each row of `logits`, [len(samplers), vocabulary] of 32-bit floats, with `samplers[i]`, as its
/// `steps[i]`-th, from the tokens that `masks[i]` allows where there is one.
///
/// Returns what `CpuModel.execute` does. Raises `ValueError` when the columns do not fit; then nothing was sampled.
#[pyfunction]
#[pyo3(signature = (logits, samplers, steps, masks = HashMap::new()))]
pub fn sample_logits(
    py: Python<'_>,
    logits: PyBuffer<f32>,
    samplers: Vec<Bound<'_, SamplerState>>,
    steps: Vec<u64>,
    masks: HashMap<usize, PyBackedBytes>,
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
        })
        .collect();
    let mut values = logits.to_vec(py)?;
    let outcome = py.detach(|| sample_rows(&mut values, &asked))?;
    Ok((outcome.tokens, outcome.likelihoods, outcome.errors))
}

fn sample_rows(values: &mut [f32], asked: &[Asked]) -> PyResult<Outcome> {
    let mut outcome = Outcome::default();
    outcome.tokens.resize(asked.len(), 0);
    let vocab = values.len() / asked.len().max(1);
    if vocab == 0 {
        return Ok(outcome);
    }
    for (row, (logits, one)) in values.chunks_exact_mut(vocab).zip(asked).enumerate() {
        match sample_row(logits, one)? {
            Ok(sampled) => {
                outcome.tokens[row] = sampled.token;
                if let Some(logprob) = sampled.logprob {
                    outcome.likelihoods.insert(row, (logprob, sampled.top_logprobs));
                }
            }
            Err(reason) => {
                outcome.errors.insert(row, reason);
            }
        }
    }
    Ok(outcome)
}

fn sample_row(logits: &mut [f32], asked: &Asked) -> PyResult<Result<Sampled, String>> {
    let mut state = asked.sampler.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => PyValueError::new_err("a sampler is used twice at once"),
        TryLockError::Poisoned(_) => PyRuntimeError::new_err("this sampler failed in another thread; make a new one"),
    })?;
    let sampled = state.sample(logits, asked.mask.as_deref(), asked.step);
    Ok(sampled
        .inspect(|sampled| state.observe(sampled.token))
        .map_err(|error| error.to_string()))
}

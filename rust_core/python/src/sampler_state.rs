//! `SamplerState`: what a request is sampled by.

use std::sync::{Arc, Mutex, MutexGuard};

use pyagent_kernels::sampling;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;

/// See `SamplerState::plain_params`.
type PlainParams = (
    f32,
    usize,
    f32,
    f32,
    f32,
    f32,
    f32,
    u64,
    usize,
    Vec<(u32, f32)>,
    Option<Vec<u32>>,
    bool,
);

/// One request's sampling parameters and token counts; samples depend only on them, the step and the logits.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct SamplerState {
    /// Whether a prompt's tokens matter to it.
    #[pyo3(get)]
    reads_prompt: bool,
    inner: Arc<Mutex<sampling::SamplerState>>,
}

/// Takes sampling parameters from keywords; a `TypeError` names one that is none.
macro_rules! take_params {
    ($params:ident, $options:ident, $($name:ident)*) => {
        for (key, value) in $options.iter() {
            match key.extract::<&str>()? {
                $(stringify!($name) => $params.$name = value.extract()?,)*
                other => return Err(PyTypeError::new_err(format!("there is no sampling parameter {other:?}"))),
            }
        }
    };
}

#[pymethods]
impl SamplerState {
    /// Keywords are the fields of `SamplingParams`; those left out change nothing.
    #[new]
    #[pyo3(signature = (**options))]
    fn new(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut params = sampling::SamplingParams::default();
        if let Some(options) = options {
            take_params!(params, options,
                temperature temperature_end temperature_tokens temperature_cosine dynatemp_range dynatemp_exponent
                top_n_sigma epsilon_cutoff eta_cutoff top_k top_k_entropy top_h typical_p top_p min_p min_p_entropy
                xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta repetition_penalty frequency_penalty
                presence_penalty repeat_last_n penalty_decay penalty_warmup penalty_tokens penalty_end penalty_cosine
                no_repeat_ngram_size dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_breakers bad_words
                bad_words_penalty bad_words_tokens allowed_tokens logit_bias seed num_logprobs has_entropy);
        }
        let params = params
            .checked()
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self {
            reads_prompt: params.reads_prompt(),
            inner: Arc::new(Mutex::new(sampling::SamplerState::new(params))),
        })
    }

    /// The parameters of a sampler that is plain (`SamplingParams::is_plain`): temperature, top-k, top-p, min-p, the
    /// penalties for repetition, frequency and presence, seed, log probabilities to report, biases, allowed tokens, and
    /// whether to report the entropy.
    fn plain_params(&self, py: Python<'_>) -> PyResult<Option<PlainParams>> {
        let state = self.lock(py)?;
        let params = state.params();
        Ok(params.is_plain().then(|| {
            (
                params.temperature,
                params.top_k,
                params.top_p,
                params.min_p,
                params.repetition_penalty,
                params.frequency_penalty,
                params.presence_penalty,
                params.seed,
                params.num_logprobs,
                params.logit_bias.clone(),
                params.allowed_tokens.clone(),
                params.has_entropy,
            )
        }))
    }

    /// The tokens that penalties know, in ascending order, with how often each is in the output; 0 is the prompt's.
    fn seen_tokens(&self, py: Python<'_>) -> PyResult<Vec<(u32, u32)>> {
        Ok(self.lock(py)?.seen_tokens())
    }

    /// What a token would be sampled from at a temperature above 0: tokens with their probabilities, best first. For
    /// tests: ranks the whole row.
    #[pyo3(signature = (logits, step = 0))]
    fn distribution(&self, py: Python<'_>, mut logits: Vec<f32>, step: u64) -> PyResult<Vec<(u32, f64)>> {
        let found = self.lock(py)?.distribution(&mut logits, None, step);
        found.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Takes in a prompt's tokens.
    fn observe_prompt(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        self.lock(py)?.observe_prompt(&tokens);
        Ok(())
    }

    /// Takes in tokens sampled elsewhere, as sampling them here would have.
    fn observe(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<()> {
        let mut state = self.lock(py)?;
        for token in tokens {
            state.observe(token);
        }
        Ok(())
    }
}

impl SamplerState {
    pub(crate) fn shared(&self) -> Arc<Mutex<sampling::SamplerState>> {
        Arc::clone(&self.inner)
    }

    /// A step that has the sampler may wait for the GIL, so nobody waits for the sampler with it.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, sampling::SamplerState>> {
        self.inner
            .lock_py_attached(py)
            .map_err(|_| PyRuntimeError::new_err("this sampler failed in another thread; make a new one"))
    }
}

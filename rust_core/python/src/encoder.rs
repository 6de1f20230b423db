//! `EncoderModel` and `describe_encoder`: vectors of texts, one call a batch.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyagent_engine::encoder::{self, Encoder, EncoderConfig, EncoderError, HeadKind};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::engine::{ModelFileError, parse_isa};
use crate::load_progress::LoadProgress;
use crate::model_files::file_error;

fn encoder_error(error: &EncoderError) -> PyErr {
    match error {
        EncoderError::File(error) => ModelFileError::new_err(error.to_string()),
        EncoderError::Text { .. } | EncoderError::TooLarge { .. } => PyValueError::new_err(error.to_string()),
        EncoderError::NotFinite { .. } | EncoderError::Kernel(_) => PyRuntimeError::new_err(error.to_string()),
    }
}

fn shape<'py>(py: Python<'py>, config: &EncoderConfig) -> PyResult<Bound<'py, PyDict>> {
    let about = PyDict::new(py);
    about.set_item("architecture", config.architecture())?;
    about.set_item("vocab_size", config.vocab_size)?;
    let width = config
        .head
        .as_ref()
        .map_or(config.num_outputs(), |_| config.hidden_size);
    about.set_item("num_dimensions", width)?;
    about.set_item("num_layers", config.num_layers)?;
    about.set_item("max_tokens", config.max_tokens)?;
    about.set_item("pooling", config.pooling_name())?;
    about.set_item("closing_token", config.closing_token)?;
    about.set_item("skips_instructions", config.latents().is_some())?;
    about.set_item("labels", config.head.as_ref().map(|head| head.labels.clone()))?;
    about.set_item("num_outputs", config.num_outputs())?;
    let words = config.head.as_ref().and_then(|head| head.words);
    about.set_item("ranks_by_words", words.is_some())?;
    about.set_item("ranks_by_tokens", config.is_late)?;
    let labels_steps = config.head.as_ref().is_some_and(|head| head.kind == HeadKind::Steps);
    about.set_item("labels_steps", labels_steps)?;
    let tasks = config.tasks.iter().flat_map(|tasks| &tasks.all);
    let tasks: Vec<(&str, &str)> = tasks.map(|task| (&*task.name, &*task.instruction)).collect();
    about.set_item("tasks", tasks)?;
    Ok(about)
}

/// What a model's files, right or wrong, are for: `generate`, or of an encoder `embed`, `rank` (it has one label),
/// `classify` or `token_classify`. Reads a few bytes of them.
#[pyfunction]
pub fn model_task(py: Python<'_>, path: PathBuf) -> &'static str {
    py.detach(|| encoder::task_of(&path))
}

/// How relevant a document is to a query by late interaction, from the 32-bit floats that `compute_tokens` gave of each.
/// Raises `ValueError` for bytes that are no rows of `width` numbers.
#[pyfunction]
pub fn late_score(py: Python<'_>, query: &[u8], document: &[u8], width: usize) -> PyResult<f64> {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_ne_bytes(*bytes))
            .collect()
    };
    if width == 0 || [query, document].iter().any(|bytes| bytes.len() % (4 * width) != 0) {
        return Err(PyValueError::new_err(format!(
            "{} and {} bytes are no rows of {width} numbers",
            query.len(),
            document.len()
        )));
    }
    py.detach(|| Ok(encoder::late_score(&numbers(query), &numbers(document), width)))
}

/// What an encoder is and would take, from its header alone, in batches of so many tokens at most; None for files that are
/// none. Raises `ModelFileError` for an encoder that cannot be run, naming the tensor or field at fault.
#[pyfunction]
#[pyo3(signature = (path, *, threads = 1, most_tokens = 1024))]
pub fn describe_encoder(
    py: Python<'_>,
    path: PathBuf,
    threads: usize,
    most_tokens: usize,
) -> PyResult<Option<Bound<'_, PyDict>>> {
    let described = py.detach(|| {
        if encoder::task_of(&path) == "generate" {
            return Ok(None);
        }
        let (file, config) = encoder::open(&path)?;
        let weight_bytes = encoder::weight_bytes(&file, &config)?;
        Ok(Some((config, weight_bytes, file.file_bytes())))
    });
    let Some((config, weight_bytes, file_bytes)) = described.map_err(|error| file_error(&error))? else {
        return Ok(None);
    };
    let about = shape(py, &config)?;
    about.set_item("file_bytes", file_bytes)?;
    about.set_item("weight_bytes", weight_bytes)?;
    about.set_item(
        "workspace_bytes",
        encoder::workspace_bytes(&config, threads, config.room(most_tokens)),
    )?;
    let long = encoder::long_text_bytes(&config, threads, config.max_tokens, most_tokens);
    about.set_item(
        "long_text_bytes",
        long.filter(|_| config.max_tokens > most_tokens).unwrap_or(0),
    )?;
    Ok(Some(about))
}

/// A loaded encoder. It may be used from any thread; batches follow one another.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct EncoderModel {
    inner: Mutex<Option<Encoder>>,
    config: EncoderConfig,
    weight_bytes: usize,
    load_seconds: f64,
    most_tokens: usize,
    num_threads: usize,
}

#[pymethods]
impl EncoderModel {
    /// Loads a folder of safetensors or a GGUF file, for batches of `most_tokens`, or of one longest text where that has
    /// more and is read whole. `isa` is one of `cpu_features()["isas"]`. Raises `ModelFileError`, and `ValueError` for 0 tokens. What is loaded is counted to `progress`.
    #[staticmethod]
    #[pyo3(signature = (path, *, threads, most_tokens = 1024, isa = None, progress = None))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        threads: usize,
        most_tokens: usize,
        isa: Option<&str>,
        progress: Option<Bound<'_, LoadProgress>>,
    ) -> PyResult<Self> {
        if most_tokens == 0 {
            return Err(PyValueError::new_err("most_tokens is 0; expected 1 or more"));
        }
        let isa = isa.map(parse_isa).transpose()?;
        let progress = progress.map(|progress| progress.get().shared());
        let loaded = py.detach(|| {
            let (_, config) = encoder::open(&path)?;
            Encoder::load(&path, threads, isa, config.room(most_tokens), progress.as_ref())
        });
        let encoder = loaded.map_err(|error| encoder_error(&error))?;
        Ok(Self {
            config: encoder.config().clone(),
            weight_bytes: encoder.weight_bytes(),
            load_seconds: encoder.load_seconds(),
            most_tokens: encoder.most_tokens(),
            num_threads: encoder.num_threads(),
            inner: Mutex::new(Some(encoder)),
        })
    }

    /// What the model is.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let about = shape(py, &self.config)?;
        about.set_item("weight_bytes", self.weight_bytes)?;
        about.set_item("load_seconds", self.load_seconds)?;
        Ok(about)
    }

    /// Returns what the texts give as native 32-bit floats, one after another: vectors of length 1, or of a model with
    /// labels a number for each. A text is its tokens, special ones included; a token of a pair's second text has bit 31
    /// set, one at the text's end that no token sees bit 30; the first one of a text of a task has the task's number, from 1
    /// on, from bit 26 on. The GIL is free meanwhile. Raises `ValueError` for a text that
    /// cannot be computed.
    fn compute<'py>(&self, py: Python<'py>, texts: Vec<Vec<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        self.computed(py, |encoder| encoder.compute(&texts))
    }

    /// Returns the vectors of the texts' tokens, each of length 1, as `compute` does those of texts; of a model that labels
    /// tokens a number for each label. Raises `ModelFileError` for a model that labels texts.
    fn compute_tokens<'py>(&self, py: Python<'py>, texts: Vec<Vec<u32>>) -> PyResult<Bound<'py, PyBytes>> {
        self.computed(py, |encoder| encoder.compute_tokens(&texts))
    }

    /// Tokens of a batch at most, and of a text that `compute` takes.
    #[getter]
    fn most_tokens(&self) -> usize {
        self.most_tokens
    }

    /// Bytes that a text of so many tokens takes from `begin` on.
    fn long_text_bytes(&self, num_tokens: usize) -> usize {
        let most = self.most_tokens;
        encoder::long_text_bytes(&self.config, self.num_threads, num_tokens, most).unwrap_or(0)
    }

    /// Takes a text that is longer than a batch, of a causal decoder: what it gives, or with `gives_tokens` its tokens,
    /// comes of `advance`. Raises `ValueError` for a text that cannot be computed, `ModelFileError` for another model.
    fn begin(&self, py: Python<'_>, text: Vec<u32>, gives_tokens: bool) -> PyResult<LongText> {
        let begun = self.locked(py, |encoder| encoder.begin(&text, gives_tokens))?;
        Ok(LongText {
            inner: Mutex::new(begun),
        })
    }

    /// Computes a step of a text that this model began: some tokens in one layer. Returns what `compute` does after the last
    /// step, and None before. The GIL is free meanwhile. Raises `ModelFileError` for a text of another model, or one that has
    /// no step left.
    fn advance<'py>(&self, py: Python<'py>, text: &LongText) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let computed = self.locked(py, |encoder| {
            let mut text = text.inner.lock().unwrap_or_else(PoisonError::into_inner);
            encoder.advance(&mut text)
        })?;
        Ok(computed.map(|numbers| bytes_of(py, &numbers)))
    }

    /// Frees the model's memory, when the batch that is computed now is.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            *self.inner.lock().map_err(|_| failed())? = None;
            Ok(())
        })
    }
}

impl EncoderModel {
    fn computed<'py>(
        &self,
        py: Python<'py>,
        compute: impl FnOnce(&mut Encoder) -> Result<Vec<f32>, EncoderError> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let computed = self.locked(py, compute)?;
        Ok(bytes_of(py, &computed))
    }

    fn locked<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Encoder) -> Result<T, EncoderError> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut inner = self.inner.lock().map_err(|_| failed())?;
            let encoder = inner.as_mut().ok_or_else(closed)?;
            work(encoder).map_err(|error| encoder_error(&error))
        })
    }
}

fn bytes_of<'py>(py: Python<'py>, numbers: &[f32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|value| value.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}

/// A text on its way through a model's layers, with the memory that it takes there.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct LongText {
    inner: Mutex<encoder::LongText>,
}

fn failed() -> PyErr {
    PyRuntimeError::new_err("the model failed in another thread; load it again")
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the model is closed; load it again")
}

//! `ModelFile`: a model's description and the numbers of its tensors, for runners that compute elsewhere.
//!
//! Tensors go by the names that GGUF files give them, whatever file they are in.

use std::path::PathBuf;

use pyagent_engine::config::{self, Activation};
use pyagent_engine::model;
use pyagent_engine::weights::{self, TensorView};
use pyagent_kernels::elementwise::{RopeScaling, RopeStyle, RopeTable};
use pyagent_kernels::ggml;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::engine::ModelFileError;
use crate::model_files::file_error;

/// What a decoder looks like: all that a forward pass needs to know besides its weights.
#[pyclass(frozen, get_all, module = "pyagent._rust")]
pub struct ModelConfig {
    architecture: String,
    vocab_size: usize,
    hidden_size: usize,
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    ffn_size: usize,
    context_length: usize,
    norm_epsilon: f64,
    norm_weight_offset: f64,
    is_rope_interleaved: bool,
    rope_frequencies: Vec<f32>,
    local_rope_frequencies: Vec<f32>,
    windows: Vec<Option<usize>>,
    activation: String,
    attention_scale: f64,
    attention_softcap: Option<f64>,
    logit_softcap: Option<f64>,
    embedding_scale: f64,
    is_output_tied: bool,
}

impl ModelConfig {
    fn of(file: &weights::ModelFile, config: &config::ModelConfig) -> PyResult<Self> {
        let frequencies = |base: f64, scaling: &RopeScaling| {
            RopeTable::new(config.head_dim, base as f32, scaling, config.context_length)
                .map(|table| table.inverse_frequencies().to_vec())
                .map_err(|error| ModelFileError::new_err(error.to_string()))
        };
        Ok(Self {
            architecture: config.architecture.name().to_owned(),
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            num_layers: config.num_layers,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            ffn_size: config.ffn_size,
            context_length: config.context_length,
            norm_epsilon: f64::from(config.norm_epsilon),
            norm_weight_offset: f64::from(config.norm_weight_offset),
            is_rope_interleaved: config.rope_style == RopeStyle::Interleaved,
            rope_frequencies: frequencies(config.rope_base, &config.rope_scaling)?,
            local_rope_frequencies: frequencies(config.local_rope_base, &config.local_rope_scaling)?,
            windows: (0..config.num_layers).map(|layer| config.window(layer)).collect(),
            activation: match config.activation {
                Activation::Silu => "silu".to_owned(),
                Activation::GeluTanh => "gelu_tanh".to_owned(),
            },
            attention_scale: f64::from(config.attention_scale),
            attention_softcap: config.attention_softcap.map(f64::from),
            logit_softcap: config.logit_softcap.map(f64::from),
            embedding_scale: f64::from(config.embedding_scale),
            is_output_tied: model::is_output_tied(file, config).map_err(|error| file_error(&error))?,
        })
    }
}

/// A mapped GGUF file or folder of safetensors, checked as for the CPU.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct ModelFile {
    inner: weights::ModelFile,
    about: config::ModelConfig,
    config: Py<ModelConfig>,
}

#[pymethods]
impl ModelFile {
    /// Opens a model; its tensors are not read. Raises `ModelFileError`.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| model::open(&path));
        let (inner, about) = opened.map_err(|error| file_error(&error))?;
        let config = Py::new(py, ModelConfig::of(&inner, &about)?)?;
        Ok(Self { inner, about, config })
    }

    /// What the model looks like.
    #[getter]
    fn config(&self, py: Python<'_>) -> Py<ModelConfig> {
        self.config.clone_ref(py)
    }

    /// Dimensions (the contiguous one first) and element type of a tensor; None where there is none.
    fn find(&self, name: &str) -> PyResult<Option<(Vec<usize>, &'static str)>> {
        let found = self.view(name)?;
        Ok(found.map(|tensor| (tensor.dims.to_vec(), tensor.kind.name())))
    }

    /// Writes rows of a tensor from `first_row` on into a buffer, as 32-bit floats.
    ///
    /// Nothing else may use the buffer meanwhile: the GIL is free. Raises `KeyError` where there is no such tensor,
    /// `ValueError` where it has no such rows.
    fn read_floats(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        let tensor = self.tensor(name)?;
        let values = floats(writable(&out)?)?;
        let bytes = rows(&tensor, first_row, values.len())?;
        py.detach(|| ggml::dequantise(tensor.kind, bytes, values))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.inner.drop_pages(bytes);
        Ok(())
    }

    /// As `read_floats`, in the file's own element type, bit for bit.
    fn read_bytes(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        let tensor = self.tensor(name)?;
        let target = writable(&out)?;
        let row_bytes = tensor.bytes.len() / tensor.rows().max(1);
        let start = first_row.saturating_mul(row_bytes);
        let bytes = tensor.bytes.get(start..start.saturating_add(target.len()));
        let bytes = bytes.ok_or_else(|| no_such_rows(&tensor))?;
        py.detach(|| target.copy_from_slice(bytes));
        self.inner.drop_pages(bytes);
        Ok(())
    }
}

impl ModelFile {
    fn view(&self, name: &str) -> PyResult<Option<TensorView<'_>>> {
        let Some(name) = model::name_in_file(&self.inner, &self.about, name) else {
            return Ok(None);
        };
        self.inner.find_tensor(&name).map_err(|error| file_error(&error))
    }

    fn tensor(&self, name: &str) -> PyResult<TensorView<'_>> {
        self.view(name)?
            .ok_or_else(|| PyKeyError::new_err(format!("the model has no tensor {name:?}")))
    }
}

fn no_such_rows(tensor: &TensorView<'_>) -> PyErr {
    let (name, rows, cols) = (tensor.name, tensor.rows(), tensor.cols());
    PyValueError::new_err(format!(
        "tensor '{name}' has {rows} rows of {cols}; the buffer asks for others"
    ))
}

/// The bytes of as many whole rows as have `num_values` numbers.
fn rows<'a>(tensor: &TensorView<'a>, first_row: usize, num_values: usize) -> PyResult<&'a [u8]> {
    let row_bytes = tensor.bytes.len() / tensor.rows().max(1);
    let num_rows = num_values / tensor.cols().max(1);
    let range = first_row.saturating_mul(row_bytes)..first_row.saturating_add(num_rows).saturating_mul(row_bytes);
    let bytes = tensor
        .bytes
        .get(range)
        .filter(|_| num_values.is_multiple_of(tensor.cols().max(1)));
    bytes.ok_or_else(|| no_such_rows(tensor))
}

/// The memory of a buffer that can be written.
#[expect(
    clippy::mut_from_ref,
    reason = "the buffer is a borrowed object's memory, not the handle's"
)]
fn writable(out: &PyBuffer<u8>) -> PyResult<&mut [u8]> {
    if out.readonly() || !out.is_c_contiguous() {
        return Err(PyValueError::new_err("the buffer cannot be written from end to end"));
    }
    if out.len_bytes() == 0 {
        return Ok(&mut []); // it may have no address
    }
    // SAFETY: the buffer is contiguous, of bytes, and stays exported while it is borrowed; the caller has promised that
    // nothing else uses it meanwhile.
    Ok(unsafe { std::slice::from_raw_parts_mut(out.buf_ptr().cast::<u8>(), out.len_bytes()) })
}

fn floats(bytes: &mut [u8]) -> PyResult<&mut [f32]> {
    // SAFETY: any four bytes are an f32.
    match unsafe { bytes.align_to_mut::<f32>() } {
        ([], values, []) => Ok(values),
        _ => Err(PyValueError::new_err("the buffer is not one of aligned 32-bit floats")),
    }
}

//! `ModelFile`: a model's description and the numbers of its tensors, for runners that compute elsewhere.
//!
//! Tensors go by the names that GGUF files give them, whatever file they are in; those of a `TensorFile` by the file's.

use std::path::PathBuf;

use pyagent_engine::config::{self, Activation, Rating};
use pyagent_engine::model;
use pyagent_engine::quantised;
use pyagent_engine::weights::{self, StoredTensor, TensorView};
use pyagent_kernels::elementwise::RopeStyle;
use pyagent_kernels::ggml;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::family::FamilyDescription;
use crate::model_files::file_error;

/// The experts of a feed-forward block, and how a token's are chosen and weighed.
#[pyclass(frozen, get_all, eq, module = "pyagent._rust")]
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    num_experts: usize,
    num_used: usize,
    is_rated_by_sigmoid: bool,
    is_renormalised: bool,
    weight_scale: f64,
    weighs_inputs: bool,
    num_groups: usize,
    num_used_groups: usize,
    shared_size: usize,
    is_shared_gated: bool,
    dense_size: usize,
}

impl From<config::Experts> for ExpertsConfig {
    fn from(experts: config::Experts) -> Self {
        Self {
            num_experts: experts.num_experts,
            num_used: experts.num_used,
            is_rated_by_sigmoid: experts.rating == Rating::Sigmoid,
            is_renormalised: experts.is_renormalised,
            weight_scale: f64::from(experts.weight_scale),
            weighs_inputs: experts.weighs_inputs,
            num_groups: experts.num_groups,
            num_used_groups: experts.num_used_groups,
            shared_size: experts.shared_size,
            is_shared_gated: experts.is_shared_gated,
            dense_size: experts.dense_size,
        }
    }
}

#[pymethods]
impl ExpertsConfig {
    fn __repr__(&self) -> String {
        format!("{self:?}")
    }
}

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
    num_experts: usize,
    num_recurrent_layers: usize,
    is_cpu_only: bool,
    context_length: usize,
    norm_epsilon: f64,
    norm_weight_offset: f64,
    is_rope_interleaved: bool,
    rope_frequencies: Vec<f32>,
    rope_attention_factor: f64,
    local_rope_frequencies: Vec<f32>,
    local_rope_attention_factor: f64,
    rotary_layers: Vec<bool>,
    has_input_norms: bool,
    is_qk_norm_wide: bool,
    is_norm_after_rope: bool,
    windows: Vec<Option<usize>>,
    activation: String,
    swiglu_limits: Option<(f64, f64)>,
    has_sinks: bool,
    has_attention_gates: bool,
    attention_scale: f64,
    attention_softcap: Option<f64>,
    logit_softcap: Option<f64>,
    embedding_scale: f64,
    is_output_tied: bool,
    experts: Option<ExpertsConfig>,
    dense_layers: Vec<bool>,
    query_growth: Option<String>,
    dual_chunks: Option<String>,
    latent: Option<String>,
    gemma4: Option<String>,
    recurrent: Option<String>,
    recurrent_layers: Vec<bool>,
    blocks: Vec<String>,
    residual_scale: f64,
    logit_divisor: f64,
    has_mtp: bool,
}

impl ModelConfig {
    fn of(file: &weights::ModelFile, config: &config::ModelConfig) -> PyResult<Self> {
        let [rope, local_rope] = config.rope_tables().map_err(|error| file_error(&error))?;
        let num_recurrent_layers = (0..config.num_layers)
            .filter(|&layer| config.recurrent(layer).is_some())
            .count();
        Ok(Self {
            architecture: config.architecture.name().to_owned(),
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            num_layers: config.num_layers,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            ffn_size: config.ffn_size,
            num_experts: config.experts.map_or(0, |experts| experts.num_experts),
            num_recurrent_layers,
            is_cpu_only: config.query_growth.is_some()
                || config.dual_chunks.is_some()
                || num_recurrent_layers > 0
                || model::has_joined_experts(file, config)
                || config.architecture.is_cpu_only(),
            context_length: config.context_length,
            norm_epsilon: f64::from(config.norm_epsilon),
            norm_weight_offset: f64::from(config.norm_weight_offset),
            is_rope_interleaved: config.rope_style == RopeStyle::Interleaved,
            rope_frequencies: rope.inverse_frequencies().to_vec(),
            rope_attention_factor: f64::from(rope.attention_factor()),
            local_rope_frequencies: local_rope.inverse_frequencies().to_vec(),
            local_rope_attention_factor: f64::from(local_rope.attention_factor()),
            rotary_layers: config.rotary_layers[..config.num_layers].to_vec(),
            has_input_norms: config.architecture.has_input_norms(),
            is_qk_norm_wide: config.architecture.is_qk_norm_wide(),
            is_norm_after_rope: config.architecture.is_norm_after_rope(),
            windows: (0..config.num_layers).map(|layer| config.window(layer)).collect(),
            activation: match config.activation {
                Activation::Silu => "silu".to_owned(),
                Activation::GeluTanh => "gelu_tanh".to_owned(),
                Activation::ReluSquared => "relu_squared".to_owned(),
                Activation::BareGelu => "bare_gelu".to_owned(),
                Activation::BareGeluTanh => "bare_gelu_tanh".to_owned(),
                Activation::Xielu => "xielu".to_owned(),
                Activation::Relu => "relu".to_owned(),
                Activation::ClampedSwiglu { .. } => "clamped_swiglu".to_owned(),
            },
            swiglu_limits: match config.activation {
                Activation::ClampedSwiglu { alpha, limit } => Some((f64::from(alpha), f64::from(limit))),
                _ => None,
            },
            has_sinks: config.architecture.has_sinks(),
            has_attention_gates: config.architecture.has_gated_attention(),
            attention_scale: f64::from(config.attention_scale),
            attention_softcap: config.attention_softcap.map(f64::from),
            logit_softcap: config.logit_softcap.map(f64::from),
            embedding_scale: f64::from(config.embedding_scale),
            is_output_tied: model::is_output_tied(file, config).map_err(|error| file_error(&error))?,
            experts: config.experts.map(ExpertsConfig::from),
            dense_layers: config.dense_layers.clone(),
            query_growth: config.query_growth.map(|growth| format!("{growth:?}")),
            dual_chunks: config.dual_chunks.map(|dual| format!("{dual:?}")),
            latent: config.latent.map(|latent| format!("{latent:?}")),
            gemma4: config.gemma4.map(|gemma4| format!("{gemma4:?}")),
            recurrent: config.recurrent.map(|recurrent| format!("{:?}", recurrent.untiled())),
            recurrent_layers: config.recurrent_layers[..config.num_layers].to_vec(),
            blocks: (0..config.num_layers)
                .map(|layer| format!("{:?}", config.blocks[layer]))
                .collect(),
            residual_scale: f64::from(config.residual_scale),
            logit_divisor: f64::from(config.logit_divisor),
            has_mtp: config.has_mtp,
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
    /// Opens a model for texts of so many positions; its tensors are not read. A `family` says what a folder is. Raises
    /// `ModelFileError`.
    #[new]
    #[pyo3(signature = (path, most_positions = None, family = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        most_positions: Option<usize>,
        family: Option<Bound<'_, FamilyDescription>>,
    ) -> PyResult<Self> {
        let family = FamilyDescription::shared(family.as_ref());
        let opened = py.detach(|| model::open_stored(&path, most_positions, family.as_deref()));
        let (inner, about) = opened.map_err(|error| file_error(&error))?;
        let config = Py::new(py, ModelConfig::of(&inner, &about)?)?;
        Ok(Self { inner, about, config })
    }

    /// What the model looks like.
    #[getter]
    fn config(&self, py: Python<'_>) -> Py<ModelConfig> {
        self.config.clone_ref(py)
    }

    /// What config.json says of how the weights are quantised, as JSON; None where it says nothing, and for GGUF files.
    #[getter]
    fn quantization(&self) -> Option<String> {
        quantised::quantization(&self.inner).map(ToString::to_string)
    }

    /// What the file calls a matrix (both without `.weight`), and its first row there; None where there is none.
    fn place(&self, name: &str) -> Option<(String, usize)> {
        model::place(&self.inner, &self.about, name)
    }

    /// Dimensions (the contiguous one first) and element type of a tensor; None where there is none.
    fn find(&self, name: &str) -> PyResult<Option<(Vec<usize>, &str)>> {
        Ok(self.view(name)?.map(|tensor| StoredTensor::from(tensor).shape()))
    }

    /// As `find`, of any element type, by the file's own name.
    fn find_stored(&self, name: &str) -> PyResult<Option<(Vec<usize>, &str)>> {
        Ok(self.stored(name)?.map(StoredTensor::shape))
    }

    /// Writes rows of a tensor from `first_row` on into a buffer, as 32-bit floats.
    ///
    /// Nothing else may use the buffer meanwhile: the GIL is free. Raises `KeyError` where there is no such tensor,
    /// `ValueError` where it has no such rows.
    fn read_floats(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        read_floats(py, &self.inner, expect(self.view(name)?, name)?, first_row, &out)
    }

    /// As `read_floats`, in the file's own element type, bit for bit.
    fn read_bytes(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        read_bytes(
            py,
            &self.inner,
            &expect(self.view(name)?, name)?.into(),
            first_row,
            &out,
        )
    }

    /// As `read_bytes`, of any element type, by the file's own name.
    fn read_stored(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        read_bytes(py, &self.inner, &expect(self.stored(name)?, name)?, first_row, &out)
    }
}

impl ModelFile {
    fn stored(&self, name: &str) -> PyResult<Option<StoredTensor<'_>>> {
        self.inner.find_stored(name).map_err(|error| file_error(&error))
    }

    fn view(&self, name: &str) -> PyResult<Option<TensorView<'_>>> {
        model::find(&self.inner, &self.about, name).map_err(|error| file_error(&error))
    }
}

/// A mapped GGUF file or folder of safetensors, of whatever model: its tensors go by the names that the file gives them.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct TensorFile {
    inner: weights::ModelFile,
}

#[pymethods]
impl TensorFile {
    /// Opens a model; its tensors are not read. Raises `ModelFileError`.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| weights::ModelFile::open(&path));
        let inner = opened.map_err(|error| file_error(&error))?;
        Ok(Self { inner })
    }

    /// Fields of a `config.json` that change no number of the forward pass, of whatever architecture.
    #[staticmethod]
    fn irrelevant_fields() -> Vec<&'static str> {
        config::IRRELEVANT_FIELDS.split_whitespace().collect()
    }

    /// As `ModelFile.find`.
    fn find(&self, name: &str) -> PyResult<Option<(Vec<usize>, &str)>> {
        Ok(self.view(name)?.map(|tensor| StoredTensor::from(tensor).shape()))
    }

    /// As `ModelFile.read_floats`.
    fn read_floats(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        read_floats(py, &self.inner, expect(self.view(name)?, name)?, first_row, &out)
    }

    /// As `ModelFile.read_bytes`.
    fn read_bytes(&self, py: Python<'_>, name: &str, first_row: usize, out: PyBuffer<u8>) -> PyResult<()> {
        read_bytes(
            py,
            &self.inner,
            &expect(self.view(name)?, name)?.into(),
            first_row,
            &out,
        )
    }
}

impl TensorFile {
    fn view(&self, name: &str) -> PyResult<Option<TensorView<'_>>> {
        self.inner.find_tensor(name).map_err(|error| file_error(&error))
    }
}

fn expect<T>(tensor: Option<T>, name: &str) -> PyResult<T> {
    tensor.ok_or_else(|| PyKeyError::new_err(format!("the model has no tensor {name:?}")))
}

/// Bytes of a file that are read at a time.
const PIECE_BYTES: usize = 4 << 20;

fn read_floats(
    py: Python<'_>,
    file: &weights::ModelFile,
    tensor: TensorView<'_>,
    first_row: usize,
    out: &PyBuffer<u8>,
) -> PyResult<()> {
    let values = floats(writable(out)?)?;
    let bytes = rows(&tensor, first_row, values.len())?;
    let row_bytes = (bytes.len() / (values.len() / tensor.cols().max(1)).max(1)).max(1);
    let num_rows = (PIECE_BYTES / row_bytes).max(1);
    // Copied, not mapped: a file that becomes shorter meanwhile is an error, and not this process's end.
    let mut piece = vec![0; bytes.len().min(num_rows * row_bytes)];
    let pieces = bytes.chunks(num_rows * row_bytes);
    for (part, values) in pieces.zip(values.chunks_mut(num_rows * tensor.cols().max(1))) {
        let piece = &mut piece[..part.len()];
        py.detach(|| file.read(part, piece))
            .map_err(|error| file_error(&error))?;
        py.detach(|| ggml::dequantise(tensor.kind, piece, values))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(())
}

fn read_bytes(
    py: Python<'_>,
    file: &weights::ModelFile,
    tensor: &StoredTensor<'_>,
    first_row: usize,
    out: &PyBuffer<u8>,
) -> PyResult<()> {
    let target = writable(out)?;
    let start = first_row.saturating_mul(tensor.row_bytes());
    let bytes = tensor.bytes.get(start..start.saturating_add(target.len()));
    let bytes = bytes.ok_or_else(|| no_such_rows(tensor))?;
    py.detach(|| file.read(bytes, target))
        .map_err(|error| file_error(&error))
}

fn no_such_rows(tensor: &StoredTensor<'_>) -> PyErr {
    let (name, cols) = (tensor.name, tensor.dims.first().unwrap_or(&1));
    let rows: usize = tensor.dims.iter().skip(1).product();
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
    bytes.ok_or_else(|| no_such_rows(&StoredTensor::from(*tensor)))
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

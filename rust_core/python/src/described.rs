//! What a model file's header alone tells.

use std::path::PathBuf;

use pyagent_engine::kv::KvPages;
use pyagent_engine::runner::head_shape;
use pyagent_engine::workspace::LargestStep;
use pyagent_kernels::attention::BLOCK_TOKENS;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::{ModelFileError, kv_groups, parse_kv_type};
use crate::family::FamilyDescription;

/// What a model is and would take, from its header alone: architecture, sizes, bytes of weights and of KV a token. With the
/// folder of a `head`, pages have room for that; `ModelFileError` where it is for another model. A `family` says what a folder is.
#[pyfunction]
#[pyo3(signature = (path, kv_type = "bf16", *, mtp = true, head = None, family = None))]
pub fn describe_model<'py>(
    py: Python<'py>,
    path: PathBuf,
    kv_type: &str,
    mtp: bool,
    head: Option<PathBuf>,
    family: Option<Bound<'_, FamilyDescription>>,
) -> PyResult<Bound<'py, PyDict>> {
    let family = FamilyDescription::shared(family.as_ref());
    let kv_type = parse_kv_type(kv_type)?;
    let described = py.detach(|| {
        let (file, config) = pyagent_engine::model::open_stored(&path, None, family.as_deref())?;
        let head = head.as_deref().map(|head| head_shape(head, &config)).transpose()?;
        let fault = pyagent_engine::model::tensor_fault(&file, &config).map(|fault| fault.to_string());
        // What the CPU runner does not take, others may: its tensors as they are.
        let weight_bytes = pyagent_engine::quantised::packed_bytes(&file).unwrap_or(file.file_bytes() as usize);
        let table_bytes = family.map_or(0, |family| family.table_bytes(&config));
        Ok::<_, pyagent_engine::weights::ModelFileError>((config, weight_bytes + table_bytes, head, fault))
    });
    let (config, weight_bytes, head, fault) = described.map_err(|error| ModelFileError::new_err(error.to_string()))?;
    let about = PyDict::new(py);
    about.set_item("architecture", config.architecture.name())?;
    about.set_item("attention", config.peculiar_attention())?;
    about.set_item("fault", fault)?;
    about.set_item("vocab_size", config.vocab_size)?;
    about.set_item("context_length", config.context_length)?;
    about.set_item("num_layers", config.num_file_layers())?;
    about.set_item("layer_kinds", config.layer_kinds())?;
    about.set_item("has_mtp", config.has_mtp)?;
    about.set_item("is_encoder_decoder", config.encoder_decoder.is_some())?;
    about.set_item("weight_bytes", weight_bytes)?;
    let config = if mtp && head.is_none() {
        config
    } else {
        config.without_mtp()
    };
    let pages = KvPages::with_head(&config, head.as_ref(), kv_type);
    about.set_item("kv_bytes_per_token", pages.block_bytes() / BLOCK_TOKENS)?;
    about.set_item("kv_groups", kv_groups(&pages))?;
    about.set_item("page_bytes", pages.page_bytes())?;
    Ok(about)
}

/// As `CpuModel.step_bytes`, from a model's header alone: an upper bound.
#[pyfunction]
#[pyo3(signature = (path, num_threads, num_tokens, num_outputs, num_positions, *, mtp = true, family = None))]
#[expect(clippy::too_many_arguments, reason = "one keyword for each bound")]
pub fn most_step_bytes(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    num_tokens: usize,
    num_outputs: usize,
    num_positions: usize,
    mtp: bool,
    family: Option<Bound<'_, FamilyDescription>>,
) -> PyResult<usize> {
    let family = FamilyDescription::shared(family.as_ref());
    let step = LargestStep {
        threads: num_threads,
        tokens: num_tokens,
        outputs: num_outputs,
        positions: num_positions,
    };
    let bytes = py.detach(|| {
        let (_, config) = pyagent_engine::model::open_for(&path, None, family.as_deref())?;
        let config = if mtp { config } else { config.without_mtp() };
        Ok::<_, pyagent_engine::weights::ModelFileError>(step.most_bytes(&config))
    });
    bytes.map_err(|error| ModelFileError::new_err(error.to_string()))
}

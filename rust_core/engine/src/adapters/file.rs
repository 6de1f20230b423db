//! An adapter's file: what it says of itself, checked against the model before memory is taken for it.
//!
//! A folder of peft's (`adapter_config.json`, `adapter_model.safetensors`), or a GGUF file of llama.cpp's. Each tensor must
//! be understood: an adapter of which a part is left out is another one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use pyagent_kernels::ggml::GgmlType;

use super::settings::{Settings, gguf_settings, peft_settings};
use super::{MAX_RANK, Projection};
use crate::config::{ModelConfig, invalid};
use crate::gguf::GgufFile;
use crate::model::{RowOrder, Weights, adapted_place, row_order};
use crate::safetensors::SafetensorsFolder;
use crate::weights::{ModelFile, ModelFileError, TensorView, clipped};

/// What peft's tensors begin with.
const PEFT: &str = "base_model.model.";
/// What a decoder's names begin with then, the longest first.
const DECODERS: [&str; 3] = ["model.language_model.", "language_model.model.", "model."];

/// An adapter's file, checked against a model.
#[derive(Debug)]
pub struct AdapterFile {
    pub(super) file: ModelFile,
    pub(super) modules: Vec<Module>,
    pub(super) is_dora: bool,
}

/// What an adapter adds to one projection, by the names of its tensors.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) layer: usize,
    pub(super) projection: Projection,
    pub(super) tensors: Tensors,
    /// Rows of `B` that are the projection's.
    pub(super) rows: Range<usize>,
    pub(super) order: Option<RowOrder>,
    pub(super) scale: f32,
    /// Rows of `A`, and its columns.
    pub(super) rank: usize,
    pub(super) cols: usize,
    /// In which type `A` is kept.
    pub(super) kind: GgmlType,
    /// Numbers for each output that `DoRA` takes beside the factors.
    pub(super) num_resizing: usize,
}

/// The tensors of a module, by role.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors {
    pub(super) a: Option<String>,
    pub(super) b: Option<String>,
    pub(super) magnitude: Option<String>,
}

impl AdapterFile {
    /// Opens a folder or a GGUF file, and checks it.
    pub(crate) fn open(path: &Path, config: &ModelConfig, weights: &Weights) -> Result<Self, ModelFileError> {
        checked(path, config, weights).map_err(|error| error.in_file(path))
    }
}

fn checked(path: &Path, config: &ModelConfig, weights: &Weights) -> Result<AdapterFile, ModelFileError> {
    let (file, settings) = open(path)?;
    let is_gguf = matches!(file, ModelFile::Gguf(_));
    let mut name_to_tensors = by_module(&file, is_gguf)?;
    let (mut modules, mut used) = (Vec::new(), Vec::new());
    let layers = weights.layers.iter().take(config.num_layers).enumerate();
    for (layer, of_layer) in layers.filter(|(layer, _)| !config.is_first_half(*layer)) {
        for projection in Projection::ALL {
            let (name, rows) = adapted_place(is_gguf, layer, projection, config);
            let Some(tensors) = name_to_tensors.get(&name) else {
                continue;
            };
            let linear = projection.linear(of_layer).ok_or_else(|| unsupported(&name))?;
            let size = (linear.weight.rows(), linear.weight.cols());
            let all_rows = all_rows(is_gguf, layer, &name, config).unwrap_or(size.0);
            let found = checked_module(&file, &name, tensors, (all_rows, size.1), &settings)?;
            settings.check_rank(&name, found.rank)?;
            let has_shift = linear.bias.is_some() && projection.adds_bias_first();
            modules.push(Module {
                layer,
                projection,
                tensors: tensors.clone(),
                rows: rows.unwrap_or(0..size.0),
                order: row_order(is_gguf, projection, config),
                scale: settings.scale(&name, found.rank),
                rank: found.rank,
                cols: size.1,
                kind: found.kind,
                num_resizing: if settings.is_dora {
                    1 + usize::from(has_shift)
                } else {
                    0
                },
            });
            used.push(name);
        }
    }
    used.iter().for_each(|name| drop(name_to_tensors.remove(name)));
    if let Some(name) = name_to_tensors.keys().next() {
        return Err(unsupported(name));
    }
    if modules.is_empty() {
        return Err(invalid("it adds to nothing: it has no tensors".to_owned()));
    }
    Ok(AdapterFile {
        file,
        modules,
        is_dora: settings.is_dora,
    })
}

pub(super) fn open(path: &Path) -> Result<(ModelFile, Settings), ModelFileError> {
    // Before opening: to open a pipe would wait for its writer.
    if path.exists() && !path.is_file() && !path.is_dir() {
        let text = "not an adapter: expected a folder that peft saved, or a GGUF file, got something that is neither";
        return Err(invalid(text.to_owned()));
    }
    if path.is_dir() {
        let folder = SafetensorsFolder::open_adapter(path)?;
        let settings = peft_settings(folder.config())?;
        return Ok((ModelFile::Safetensors(folder), settings));
    }
    let file = GgufFile::open(path)?;
    let settings = gguf_settings(&file)?;
    Ok((ModelFile::Gguf(file), settings))
}

/// The tensors by the matrix that they are for.
pub(super) fn by_module(file: &ModelFile, is_gguf: bool) -> Result<BTreeMap<String, Tensors>, ModelFileError> {
    let mut found: BTreeMap<String, Tensors> = BTreeMap::new();
    for name in file.tensor_names() {
        let (module, role) =
            if is_gguf { gguf_role(name) } else { peft_role(name) }.ok_or_else(|| unsupported(name))?;
        let tensors = found.entry(module.to_owned()).or_default();
        let place = match role {
            Role::A => &mut tensors.a,
            Role::B => &mut tensors.b,
            Role::Magnitude => &mut tensors.magnitude,
        };
        if place.replace(name.to_owned()).is_some() {
            let text = format!(
                "two tensors are for {:?}; the second is {:?}",
                clipped(module),
                clipped(name)
            );
            return Err(invalid(text));
        }
    }
    Ok(found)
}

#[derive(Clone, Copy)]
enum Role {
    A,
    B,
    Magnitude,
}

fn peft_role(name: &str) -> Option<(&str, Role)> {
    let name = without_decoder(name.strip_prefix(PEFT)?);
    let ends = [
        (".lora_A.weight", Role::A),
        (".lora_B.weight", Role::B),
        (".lora_magnitude_vector", Role::Magnitude),
        (".lora_magnitude_vector.weight", Role::Magnitude),
    ];
    ends.into_iter()
        .find_map(|(end, role)| Some((name.strip_suffix(end)?, role)))
}

/// A name without what a decoder's begin with.
pub(super) fn without_decoder(name: &str) -> &str {
    let mut decoders = DECODERS.iter();
    decoders.find_map(|decoder| name.strip_prefix(decoder)).unwrap_or(name)
}

fn gguf_role(name: &str) -> Option<(&str, Role)> {
    let ends = [(".weight.lora_a", Role::A), (".weight.lora_b", Role::B)];
    ends.into_iter()
        .find_map(|(end, role)| Some((name.strip_suffix(end)?, role)))
}

/// Says why a matrix, or a tensor, of an adapter is not taken.
fn unsupported(name: &str) -> ModelFileError {
    let shown = clipped(name);
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let reason = if has(&["embed_tokens", "lm_head", "token_embd", "lora_embedding"]) || name.starts_with("output") {
        "adapters of embeddings and of output matrices are not implemented"
    } else if has(&["expert", "_exps", "block_sparse_moe"]) {
        "adapters of experts are not implemented"
    } else if has(&["linear_attn", "conv", "ssm_", "mamba"]) {
        "adapters of recurrent layers are not implemented"
    } else if has(&["lora_", "layers.", "blk."]) {
        "this model has no such matrix, or one that adapters cannot add to; is it an adapter of another model?"
    } else {
        "expected tensors of LoRA or DoRA alone; save the adapter without modules_to_save"
    };
    invalid(format!("{shown:?}: {reason}"))
}

/// Rows of a matrix in which several projections lie.
fn all_rows(is_gguf: bool, layer: usize, name: &str, config: &ModelConfig) -> Option<usize> {
    let places = Projection::ALL.map(|projection| adapted_place(is_gguf, layer, projection, config));
    let parts = places.into_iter().filter(|(other, _)| other == name);
    parts.filter_map(|(_, rows)| rows.map(|rows| rows.end)).max()
}

/// What a module's tensors are.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) rank: usize,
    /// In which type `A` is kept.
    kind: GgmlType,
}

/// Checks the tensors of one matrix of `size`, [out, in].
pub(super) fn checked_module(
    file: &ModelFile,
    name: &str,
    tensors: &Tensors,
    (rows, cols): (usize, usize),
    settings: &Settings,
) -> Result<Found, ModelFileError> {
    let shown = clipped(name);
    let missing = |what: &str| invalid(format!("{shown:?} has no {what}; the file is incomplete"));
    let a = file.tensor(tensors.a.as_deref().ok_or_else(|| missing("lora_A"))?)?;
    let b = file.tensor(tensors.b.as_deref().ok_or_else(|| missing("lora_B"))?)?;
    let rank = a.rows();
    expect_shape(&a, &[cols, rank])?;
    if !(1..=MAX_RANK).contains(&rank) {
        return Err(invalid(format!("{shown:?} has rank {rank}; expected 1 to {MAX_RANK}")));
    }
    expect_shape(&b, &[rank, rows])?;
    match &tensors.magnitude {
        Some(magnitude) => expect_shape(&file.tensor(magnitude)?, &[rows])?,
        None if settings.is_dora => return Err(missing("lora_magnitude_vector, which use_dora asks for")),
        None => {}
    }
    if tensors.magnitude.is_some() && !settings.is_dora {
        let text = format!("{shown:?} has a lora_magnitude_vector, but use_dora is false in adapter_config.json");
        return Err(invalid(text));
    }
    Ok(Found {
        rank,
        kind: super::load::kept_kind(&a),
    })
}

fn expect_shape(tensor: &TensorView<'_>, dims: &[usize]) -> Result<(), ModelFileError> {
    if tensor.dims == dims {
        return Ok(());
    }
    let shape = |dims: &[usize]| {
        let shape: Vec<_> = dims.iter().rev().map(ToString::to_string).collect();
        shape.join(" x ")
    };
    Err(invalid(format!(
        "tensor {:?} is {}; the model's matrix needs {}: is it an adapter of another model?",
        clipped(tensor.name),
        shape(tensor.dims),
        shape(dims)
    )))
}

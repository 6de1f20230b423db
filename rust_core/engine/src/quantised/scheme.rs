//! What config.json says of how a folder's weights are quantised: all that the tensors do not say themselves.
//!
//! Pure. Which matrices are quantised, the tensors tell: lists of modules that are not need not be followed. How inputs
//! would be quantised is not followed: they stay as they are, or as the kernels have them. What is not implemented is
//! refused by name, before anything is read.

use serde_json::Value;

use super::fields::Fields;
use crate::weights::ModelFileError;

/// Formats of compressed-tensors whose numbers are where they are looked for.
const FORMATS: &[&str] = &[
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "dense",
];
/// What compressed-tensors calls columns that are in groups by a tensor of the file.
const ORDERED: &[&str] = &["group", "dynamic"];

/// How tensors of a quantised matrix are named and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    Gptq,
    Awq,
    /// compressed-tensors' names, also those of FP8: numbers in the matrix's own place, or packed, scales beside them.
    Compressed,
}

/// One kind of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) bits: usize,
    pub(super) is_float: bool,
    /// Columns that share a scale; 0 where a whole row does, or all rows.
    pub(super) group: usize,
    /// Rows that share scales, where there are blocks; 0 where there are none.
    pub(super) block_rows: usize,
    pub(super) is_symmetric: bool,
    /// Whether the file must say which group a column is in.
    pub(super) has_order: bool,
}

impl Kind {
    /// Whether its numbers are e4m3, as those of 8 bits that are no integers are.
    pub(super) fn is_e4m3(self) -> bool {
        self.is_float && self.bits == 8
    }
}

/// How a folder's weights are quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) naming: Naming,
    /// One of each number of bits and type: which a matrix has, its tensors say.
    kinds: Vec<Kind>,
    /// GPTQ's first format has zero points less one.
    pub(super) is_zero_one_less: bool,
}

impl Scheme {
    /// Reads a `quantization_config`. An error names what is not implemented, or out of range.
    pub(super) fn read(value: &Value) -> Result<Self, ModelFileError> {
        let fields = Fields::of(Some(value), "quantization_config")?;
        match fields.text("quant_method") {
            "gptq" => gptq(&fields),
            "awq" => awq(&fields),
            "fp8" => fp8(&fields),
            "compressed-tensors" => compressed(&fields),
            "modelopt" => {
                fields.only("quant_algo", &["FP8", "NVFP4"])?;
                compressed(&fields)
            }
            "" if fields.has("config_groups") => compressed(&fields),
            _ => Err(fields.refused("quant_method", "gptq, awq, fp8, compressed-tensors, modelopt")),
        }
    }

    /// The kind of weights of a format that has one.
    pub(super) fn first(&self) -> Option<Kind> {
        self.kinds.first().copied()
    }

    /// The kind of weights of so many bits, if the configuration has one.
    pub(super) fn of(&self, bits: usize, is_float: bool) -> Option<Kind> {
        let mut kinds = self.kinds.iter();
        kinds
            .find(|kind| (kind.bits, kind.is_float) == (bits, is_float))
            .copied()
    }
}

fn gptq(fields: &Fields<'_>) -> Result<Scheme, ModelFileError> {
    fields.only("checkpoint_format", &["gptq", "gptq_v2"])?;
    if fields.has("dynamic") && fields.inner("dynamic")?.keys().any(|key| !key.starts_with("-:")) {
        return Err(fields.refused("dynamic", "modules that are left out (-:)")); // bits by module
    }
    let kind = Kind {
        bits: fields.one_of("bits", &[4, 8])?,
        is_float: false,
        group: fields.size("group_size")?,
        block_rows: 0,
        is_symmetric: fields.truth("sym", true)?,
        has_order: fields.truth("desc_act", false)?,
    };
    Ok(Scheme {
        naming: Naming::Gptq,
        kinds: vec![kind],
        is_zero_one_less: fields.text("checkpoint_format") != "gptq_v2",
    })
}

fn awq(fields: &Fields<'_>) -> Result<Scheme, ModelFileError> {
    fields.only("version", &["gemm", "GEMM"])?;
    if !fields.truth("zero_point", true)? {
        return Err(fields.refused("zero_point", "true"));
    }
    let kind = Kind {
        bits: fields.one_of("bits", &[4])?,
        is_float: false,
        group: fields.size("group_size")?,
        block_rows: 0,
        is_symmetric: false,
        has_order: false,
    };
    Ok(Scheme {
        naming: Naming::Awq,
        kinds: vec![kind],
        is_zero_one_less: false,
    })
}

/// `scale_fmt` is how inputs' scales are rounded, which is not followed.
fn fp8(fields: &Fields<'_>) -> Result<Scheme, ModelFileError> {
    fields.only("fmt", &["e4m3", "float8_e4m3fn"])?;
    let (block_rows, group) = match fields.has("weight_block_size") {
        true => fields.block("weight_block_size")?,
        false => (0, 0),
    };
    let kind = Kind {
        bits: 8,
        is_float: true,
        group,
        block_rows,
        is_symmetric: true,
        has_order: false,
    };
    Ok(Scheme {
        naming: Naming::Compressed,
        kinds: vec![kind],
        is_zero_one_less: false,
    })
}

fn compressed(fields: &Fields<'_>) -> Result<Scheme, ModelFileError> {
    fields.only("format", FORMATS)?;
    fields.only("quantization_status", &["compressed", "frozen"])?;
    if fields.has("sparsity_config") {
        fields.inner("sparsity_config")?.only("format", &["dense"])?;
    }
    if fields.has("transform_config") && fields.inner("transform_config")?.has("config_groups") {
        let transforms = fields.inner("transform_config")?;
        if transforms.inner("config_groups")?.keys().next().is_some() {
            return Err(transforms.refused("config_groups", "none"));
        }
    }
    let mut kinds: Vec<Kind> = Vec::new();
    for group in fields.inner("config_groups")?.all() {
        let group = group?;
        group.only("format", FORMATS)?;
        let kind = kind(&group.inner("weights")?)?;
        let other = kinds
            .iter()
            .find(|other| (other.bits, other.is_float) == (kind.bits, kind.is_float));
        match other {
            Some(other) if *other != kind => {
                return Err(fields.error(
                    "has two groups of equal bits with other scales, which is not implemented; take the model as a GGUF file",
                ));
            }
            Some(_) => {}
            None => kinds.push(kind),
        }
    }
    if kinds.is_empty() {
        return Err(fields.error("has no 'config_groups'"));
    }
    Ok(Scheme {
        naming: Naming::Compressed,
        kinds,
        is_zero_one_less: false,
    })
}

fn kind(weights: &Fields<'_>) -> Result<Kind, ModelFileError> {
    weights.only("type", &["int", "float"])?;
    weights.only("actorder", &["weight", "static", "group", "dynamic"])?;
    if weights.truth("dynamic", false)? {
        return Err(weights.refused("dynamic", "false"));
    }
    let is_float = weights.text("type") == "float";
    let bits = weights.one_of("num_bits", &[4, 8])?;
    if is_float && bits == 4 {
        return nvfp4(weights);
    }
    weights.only("strategy", &["tensor", "channel", "group", "block"])?;
    let strategy = match weights.text("strategy") {
        "" if weights.has("group_size") => "group",
        strategy => strategy,
    };
    let (block_rows, columns) = match strategy {
        "block" => weights.block("block_structure")?,
        _ => (0, 0),
    };
    Ok(Kind {
        bits,
        is_float,
        group: if strategy == "group" {
            weights.size("group_size")?
        } else {
            columns
        },
        block_rows,
        is_symmetric: weights.truth("symmetric", true)?,
        has_order: ORDERED.contains(&weights.text("actorder")),
    })
}

/// Floats of 4 bits with a scale per 16 columns; MXFP4, which has one per 32, is of other checkpoints.
fn nvfp4(weights: &Fields<'_>) -> Result<Kind, ModelFileError> {
    weights.only("strategy", &["tensor_group", "group"])?;
    Ok(Kind {
        bits: 4,
        is_float: true,
        group: weights.one_of("group_size", &[16])?,
        block_rows: 0,
        is_symmetric: true,
        has_order: false,
    })
}

//! What BERT's families say of their layers in a GGUF file.

use super::bert_config::{BertConfig, Biases, EncoderActivation, EncoderArchitecture, Positions};
use super::config::{EncoderConfig, Layers, MOST_TEXT_TOKENS, unsupported};
use super::experts::EncoderExperts;
use super::gguf::{HEAD_DENSE, Keys};
use crate::config::invalid;
use crate::gguf::{GgufFile, MetadataArray, MetadataValue};
use crate::weights::{ModelFile, ModelFileError, clipped};

/// Of ModernBERT's layers each third sees everything, from the first on, where a file does not say.
const MODERN_PERIOD: usize = 3;

/// Reads a file.
pub(super) fn bert_of_gguf(file: &GgufFile) -> Result<EncoderConfig, ModelFileError> {
    let keys = Keys::of(file)?;
    let architecture = EncoderArchitecture::from_gguf(keys.name).ok_or_else(|| unsupported(keys.name))?;
    let architecture = match architecture {
        EncoderArchitecture::JinaBert if keys.has_tensor("blk.0.attn_norm_2.weight") => {
            EncoderArchitecture::JinaCodeBert
        }
        other => other,
    };
    if architecture.name() == "jina-bert-v2" && keys.has_tensor(&format!("{HEAD_DENSE}.weight")) {
        return Err(invalid(format!(
            "the file has labels ('{HEAD_DENSE}.weight') without the layer before them: llama.cpp's converter leaves out \
             the pooler, and the numbers would be others; take the model's folder"
        )));
    }
    let scaling = keys.key("rope.scaling.type");
    if file.find(&scaling).is_some() && file.metadata_str(&scaling)? != "none" {
        return Err(invalid(format!(
            "'{scaling}' is not implemented for encoders; expected none"
        )));
    }
    let num_layers = keys.size("block_count")?;
    let layers = layers_of(&keys, architecture, num_layers)?;
    let most = keys.size("context_length")?;
    let is_computed = !matches!(layers.positions, Positions::Table { .. });
    let embedding = file.find_tensor("token_embd.weight");
    Ok(EncoderConfig {
        vocab_size: embedding.map_or(0, |tensor| tensor.rows()),
        hidden_size: keys.size("embedding_length")?,
        num_layers,
        layers: Layers::Bert(layers),
        pooling: vec![keys.pooling()?],
        dense: Vec::new(),
        is_late: false,
        attention: None,
        closing_token: None,
        tasks: None,
        max_tokens: if is_computed { most.min(MOST_TEXT_TOKENS) } else { most },
        head: keys.head(architecture)?,
    })
}

/// Refuses a GGUF file's tensors of layers, and of its head, that were not read when all that are known were, and a folder's of
/// layers that its configuration does not count: a model without them gives other numbers, which would not show it.
pub(super) fn refuse_unread(file: &ModelFile, num_layers: usize, has_head: bool) -> Result<(), ModelFileError> {
    if matches!(file, ModelFile::Safetensors(_)) {
        return match file.unasked().filter_map(layer_of).find(|&layer| layer >= num_layers) {
            None => Ok(()),
            Some(layer) => Err(invalid(format!(
                "there are tensors of layer {layer}; config.json counts {num_layers} layers"
            ))),
        };
    }
    let is_of_model = |name: &&str| name.starts_with("blk.") || (has_head && name.starts_with("cls."));
    match file.unasked().find(is_of_model) {
        None => Ok(()),
        Some(name) => Err(invalid(format!(
            "there is a tensor '{}', which is not implemented for this encoder, and leaving it out would change its \
             numbers; use another model or another engine",
            clipped(name)
        ))),
    }
}

/// The layer that a folder's tensor is of, by its name.
fn layer_of(name: &str) -> Option<usize> {
    let mut parts = name.split('.').skip_while(|part| !matches!(*part, "layer" | "layers"));
    parts.nth(1)?.parse().ok()
}

fn layers_of(
    keys: &Keys<'_>,
    architecture: EncoderArchitecture,
    num_layers: usize,
) -> Result<BertConfig, ModelFileError> {
    let types = keys.file.find_tensor("token_types.weight");
    // RoBERTa's files are BERT's: their tables of positions begin with the first one used.
    let bert = BertConfig {
        architecture,
        num_heads: keys.size("attention.head_count")?,
        ffn_size: keys.size("feed_forward_length")?,
        positions: Positions::Table {
            num_rows: keys.size("context_length")?,
            first: 0,
        },
        pad_id: 0,
        num_types: types.map_or(0, |tensor| tensor.rows()),
        norm_epsilon: keys.number("attention.layer_norm_epsilon")? as f32,
        activation: EncoderActivation::Gelu,
        is_gated: false,
        is_pre_norm: false,
        reach: Vec::new(),
        biases: Biases::ALL,
        has_query_key_norms: keys.has_tensor("blk.0.attn_q_norm.weight"),
        experts: None,
    };
    match architecture {
        EncoderArchitecture::JinaBert | EncoderArchitecture::JinaCodeBert => Ok(BertConfig {
            positions: Positions::Alibi,
            is_gated: true,
            biases: Biases {
                up: false,
                ..Biases::ALL
            },
            ..bert
        }),
        EncoderArchitecture::JinaBertV3 => {
            let base = keys.number_or("rope.freq_base", 10_000.0)?;
            let positions = Positions::Rotary { base, local_base: base };
            Ok(BertConfig { positions, ..bert })
        }
        EncoderArchitecture::NomicBertMoe => {
            let base = keys.number_or("rope.freq_base", 10_000.0)?;
            Ok(BertConfig {
                positions: Positions::Rotary { base, local_base: base },
                experts: Some(EncoderExperts {
                    count: keys.size("expert_count")?,
                    used: keys.size("expert_used_count")?,
                    period: keys.size("moe_every_n_layers")?,
                }),
                ..bert
            })
        }
        EncoderArchitecture::NomicBert => {
            let base = keys.number_or("rope.freq_base", 1_000.0)?;
            Ok(BertConfig {
                positions: Positions::Rotary { base, local_base: base },
                activation: EncoderActivation::Silu,
                is_gated: true,
                biases: Biases::OF_NORMS,
                ..bert
            })
        }
        EncoderArchitecture::ModernBert => Ok(BertConfig {
            positions: Positions::Rotary {
                base: keys.number("rope.freq_base")?,
                local_base: keys.number_or("rope.freq_base_swa", 10_000.0)?,
            },
            activation: keys.activation()?,
            is_gated: true,
            is_pre_norm: true,
            reach: keys.reach(num_layers)?,
            biases: Biases {
                attention: keys.has_tensor("blk.0.attn_qkv.bias"),
                up: keys.has_tensor("blk.0.ffn_up.bias"),
                down: keys.has_tensor("blk.0.ffn_down.bias"),
                norms: keys.has_tensor("output_norm.bias"),
            },
            ..bert
        }),
        _ => Ok(bert),
    }
}

impl Keys<'_> {
    /// The activation of ModernBERT's gates; files of before it was told have GELU.
    fn activation(&self) -> Result<EncoderActivation, ModelFileError> {
        if !self.has("hidden_activation") {
            return Ok(EncoderActivation::Gelu);
        }
        EncoderActivation::from_name(self.file.metadata_str(&self.key("hidden_activation"))?)
    }

    /// Which layers see their neighbours alone, and how many: half of the window on each side.
    fn reach(&self, num_layers: usize) -> Result<Vec<Option<usize>>, ModelFileError> {
        let Some(window) = self
            .optional_size("attention.sliding_window")?
            .filter(|window| *window > 0)
        else {
            return Ok(Vec::new());
        };
        let key = self.key("attention.sliding_window_pattern");
        let near: Vec<bool> = match self.file.find(&key) {
            Some(MetadataValue::Array(MetadataArray::Bool(near))) => near.clone(),
            found => {
                let period = found.map(|_| self.size("attention.sliding_window_pattern"));
                let period = period.transpose()?.unwrap_or(MODERN_PERIOD).max(1);
                (0..num_layers.min(1_000))
                    .map(|layer| !layer.is_multiple_of(period))
                    .collect()
            }
        };
        if near.len() < num_layers.min(1_000) {
            return Err(invalid(format!(
                "'{key}' has {} entries; expected {num_layers}",
                near.len()
            )));
        }
        Ok(near.into_iter().map(|is_near| is_near.then_some(window / 2)).collect())
    }
}

//! Tensors of a decoder's file that nothing reads. A model without them is another one, and its answers would not show it:
//! they are refused by name, but for those that are known to be for something else.

use std::collections::HashSet;

use super::names::Names;
use crate::config::{ModelConfig, invalid};
use crate::quantised::quantization;
use crate::weights::{ModelFile, ModelFileError, clipped};

/// Parts of names before the layers of what lies beside a decoder: towers of pictures and sound and what brings them to it
/// (in GGUF files `v`, `a` and `mm`), what speaks, heads that judge or classify, what pools and what follows that.
const BESIDE: &str = "visual vit vision_tower vision_model vision_encoder vision_adapter vision_language_adapter patch_merger \
    pre_mm_projector_norm multi_modal_projector mm_projector image_newline embed_vision vision_embedder embed_audio audio_tower audio_model \
    audio_projector talker token2wav code2wav v a mm score classifier cls v_head value_head dense_2 dense_3 mha_pma \
    latent_attention_model";
/// What the names of heads that draft tokens begin with.
const DRAFTING: [&str; 4] = ["mtp", "nextn", "medusa", "eagle"];
/// What a layer that drafts tokens has, and no other.
const OF_DRAFTING: [&str; 4] = [".eh_proj.", ".enorm.", ".hnorm.", ".shared_head."];
/// Matrices that give logits, of models whose embedding does; and what the configuration is read with.
const WHOLE: &str = "lm_head.weight plm_model.lm_head.weight language_model.lm_head.weight output.weight embed_out.weight rope_freqs.weight \
    rope_factors_long.weight rope_factors_short.weight";
/// What change no number: rotary frequencies, masks and scales of quantised caches that older versions stored; the matrices
/// of latent attention in the form that is not read, of files that have both;
/// what transformers makes of lightning attention's slopes.
const ENDS: [&str; 18] = [
    ".rotary_emb.inv_freq",
    ".rotary_emb.original_inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.causal_mask",
    ".attn_rot_embd",
    ".attn_rot_embd.weight",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".attn_k_b.weight",
    ".attn_v_b.weight",
    ".attn_kv_b.weight",
    ".self_attn.query_decay",
    ".self_attn.key_decay",
    ".self_attn.diagonal_decay",
];
/// What a layer that reads another's keys and values has of its own all the same.
const OF_KEYS_AND_VALUES: &str = "k_proj v_proj k_norm v_norm attn_k attn_v attn_k_norm attn_v_norm";

/// Refuses layers of a folder that `config.json` does not count, but those that predict further tokens. GGUF files are
/// refused where their metadata is read.
pub(super) fn refuse_uncounted(file: &ModelFile, names: &Names, config: &ModelConfig) -> Result<(), ModelFileError> {
    let ModelFile::Safetensors(folder) = file else {
        return Ok(());
    };
    let count = config.num_file_layers();
    let later = || {
        let layers = folder
            .tensor_names()
            .filter_map(|name| Some((names.layer_of(name)?, name)));
        layers.filter(|(layer, _)| *layer >= count)
    };
    let drafting: HashSet<usize> = later()
        .filter(|(_, name)| OF_DRAFTING.iter().any(|part| name.contains(part)))
        .map(|(layer, _)| layer)
        .collect();
    match later().find(|(layer, _)| !drafting.contains(layer)) {
        None => Ok(()),
        Some((_, name)) => Err(invalid(format!(
            "config.json: 'num_hidden_layers' is {count}, but there is a tensor '{}' of a later layer",
            clipped(name)
        ))),
    }
}

/// Refuses tensors that were not read, when all that are known were.
pub(super) fn refuse_unread(file: &ModelFile, names: &Names, config: &ModelConfig) -> Result<(), ModelFileError> {
    refuse_others(file, config.architecture.name(), |name| is_left(name, names, config))
}

/// The same for heads of another model, called so: all of the tensors are their own.
pub(super) fn refuse_unread_of_head(file: &ModelFile, what: &str) -> Result<(), ModelFileError> {
    refuse_others(file, what, changes_nothing)
}

/// Refuses tensors that were not read, but those that are left on purpose.
pub(super) fn refuse_others(
    file: &ModelFile,
    what: &str,
    is_left: impl Fn(&str) -> bool,
) -> Result<(), ModelFileError> {
    let is_quantised = quantization(file).is_some();
    let is_known = |name: &str| is_left(name) || (is_quantised && is_companion(name));
    match file.unasked().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(invalid(format!(
            "there is a tensor '{}', which is not implemented for {what}, and leaving it out would change the model's \
             answers; use another model or another engine",
            clipped(name),
        ))),
    }
}

/// Whether a tensor changes no number, whatever it is of.
fn changes_nothing(name: &str) -> bool {
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a tensor is for something else than answers, or changes no number of them.
fn is_left(name: &str, names: &Names, config: &ModelConfig) -> bool {
    let is_among = |all: &str, part: &str| all.split_whitespace().any(|other| other == part);
    let mut parts = name.split('.');
    let before = parts
        .by_ref()
        .take_while(|part| !matches!(*part, "layers" | "blk" | "h" | "blocks"));
    let is_beside = before
        .into_iter()
        .any(|part| is_among(BESIDE, part) || DRAFTING.iter().any(|head| part.starts_with(head)));
    let layer = names.layer_of(name);
    let shares_keys = layer.is_some_and(|layer| layer < config.num_file_layers() && !config.makes_kv(layer));
    let is_left_norm = name.ends_with(".post_mlp_layernorm.weight")
        && layer.is_some_and(|layer| layer < config.num_layers && config.leaves_ffn_output(layer));
    let is_drafting = layer.is_some_and(|layer| layer >= config.num_file_layers());
    is_beside
        || is_drafting
        || is_left_norm
        || is_among(WHOLE, name)
        || changes_nothing(name)
        || (shares_keys && parts.any(|part| is_among(OF_KEYS_AND_VALUES, part)))
}

/// Whether a tensor belongs to a quantised matrix, which is read or refused as a whole.
fn is_companion(name: &str) -> bool {
    let end = name.rsplit('.').next().unwrap_or_default();
    !matches!(end, "weight" | "qweight" | "weight_packed" | "bias")
}

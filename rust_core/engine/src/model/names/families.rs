//! What families that are descriptions over shared layers call their tensors outside GGUF files, where Llama's names are
//! others.

use super::{Names, Part, hugging_face_part};
use crate::config::{Architecture, ModelConfig};

impl Names {
    /// Whether each head's query, key and value lie together in the file.
    pub(in crate::model) fn are_heads_in_turn(&self, config: &ModelConfig) -> bool {
        matches!(self, Self::HuggingFace(..)) && config.architecture == Architecture::GptNeoX
    }
}

/// A family's name of a part.
pub(super) fn family_part(part: Part, architecture: Architecture) -> &'static str {
    match (architecture, part) {
        (Architecture::Glm4, Part::PostAttentionNorm) => "post_self_attn_layernorm.weight",
        (Architecture::Glm4, Part::PostFfnNorm) => "post_mlp_layernorm.weight",
        (Architecture::Afmoe, Part::FfnNorm) => "pre_mlp_layernorm.weight",
        (Architecture::Afmoe, Part::PostFfnNorm) => "post_mlp_layernorm.weight",
        (Architecture::Apertus, Part::AttentionNorm) => "attention_layernorm.weight",
        (Architecture::Apertus, Part::FfnNorm) => "feedforward_layernorm.weight",
        (Architecture::HyperClovaX, Part::PostAttentionNorm) => "post_norm1.weight",
        (Architecture::HyperClovaX, Part::FfnNorm) => "post_attention_layernorm.weight",
        (Architecture::HyperClovaX, Part::PostFfnNorm) => "post_norm2.weight",
        (Architecture::AxK1, Part::PostFfnNorm) => "post_mlp_layernorm.weight",
        (Architecture::NanoChat, Part::Up) => "mlp.fc1",
        (Architecture::NanoChat, Part::Down) => "mlp.fc2",
        (Architecture::StarCoder2, Part::Up) => "mlp.c_fc",
        (Architecture::StarCoder2, Part::Down) => "mlp.c_proj",
        (Architecture::Phi2, Part::AttentionOutput) => "self_attn.dense",
        (Architecture::Phi2, Part::Up) => "mlp.fc1",
        (Architecture::Phi2, Part::Down) => "mlp.fc2",
        (Architecture::GptNeoX, Part::Query | Part::Key | Part::Value) => "attention.query_key_value",
        (Architecture::GptNeoX, Part::AttentionOutput) => "attention.dense",
        (Architecture::GptNeoX, Part::Up) => "mlp.dense_h_to_4h",
        (Architecture::GptNeoX, Part::Down) => "mlp.dense_4h_to_h",
        (Architecture::Mpt, Part::AttentionNorm) => "norm_1.weight",
        (Architecture::Mpt, Part::AttentionOutput) => "attn.out_proj",
        (Architecture::Mpt, Part::FfnNorm) => "norm_2.weight",
        (Architecture::Mpt, Part::Up) => "ffn.up_proj",
        (Architecture::Mpt, Part::Down) => "ffn.down_proj",
        _ => hugging_face_part(part, architecture),
    }
}

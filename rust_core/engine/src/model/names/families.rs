//! What families that are descriptions over shared layers call their tensors outside GGUF files, where Llama's names are
//! others.

use super::{Names, Part, hugging_face_part};
use crate::config::{Architecture, ModelConfig};

impl Names {
    /// Whether each head's query, key and value lie together in the file.
    pub(in crate::model) fn are_heads_in_turn(&self, config: &ModelConfig) -> bool {
        matches!(self, Self::HuggingFace(..))
            && matches!(
                config.architecture,
                Architecture::GptNeoX
                    | Architecture::Falcon
                    | Architecture::Bloom
                    | Architecture::StarCoder
                    | Architecture::CodeGen
                    | Architecture::InternLm2
            )
    }

    /// Whether the file has a part's columns as rows: folders of GPT-2 have.
    pub(super) fn is_transposed(&self, part: Part, architecture: Architecture) -> bool {
        let is_norm = matches!(part, Part::AttentionNorm | Part::FfnNorm);
        matches!(self, Self::HuggingFace(..)) && architecture == Architecture::Gpt2 && !is_norm
    }
}

/// A family's name of a part.
pub(super) fn family_part(part: Part, config: &ModelConfig) -> &'static str {
    let architecture = config.architecture;
    match (architecture, part) {
        (Architecture::Falcon, Part::AttentionNorm) if config.has_two_norms => "ln_attn.weight",
        (Architecture::Falcon, Part::FfnNorm) if config.has_two_norms => "ln_mlp.weight",
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
        (Architecture::Falcon | Architecture::Bloom, part) => classic_part(part, BLOOM),
        (Architecture::Gpt2 | Architecture::StarCoder, part) => classic_part(part, GPT2),
        (Architecture::GptJ, part) => classic_part(part, GPT_J),
        (Architecture::CodeGen, part) => classic_part(part, CODE_GEN),
        (Architecture::GptNeo, part) => classic_part(part, GPT_NEO),
        (Architecture::Opt, part) => classic_part(part, OPT),
        (Architecture::InternLm2, part) => classic_part(part, INTERNLM2),
        _ => hugging_face_part(part, architecture),
    }
}

/// Names of norms, of queries, keys, values and attention's output, and of the feed-forward block: gate, up and down.
type Classic = [&'static str; 9];

const BLOOM: Classic = [
    "input_layernorm.weight",
    "self_attention.query_key_value",
    "self_attention.query_key_value",
    "self_attention.query_key_value",
    "self_attention.dense",
    "post_attention_layernorm.weight",
    "(none)",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
];
const GPT2: Classic = [
    "ln_1.weight",
    "attn.c_attn",
    "attn.c_attn",
    "attn.c_attn",
    "attn.c_proj",
    "ln_2.weight",
    "(none)",
    "mlp.c_fc",
    "mlp.c_proj",
];
const GPT_J: Classic = [
    "ln_1.weight",
    "attn.q_proj",
    "attn.k_proj",
    "attn.v_proj",
    "attn.out_proj",
    "(none)",
    "(none)",
    "mlp.fc_in",
    "mlp.fc_out",
];
const CODE_GEN: Classic = [
    "ln_1.weight",
    "attn.qkv_proj",
    "attn.qkv_proj",
    "attn.qkv_proj",
    "attn.out_proj",
    "(none)",
    "(none)",
    "mlp.fc_in",
    "mlp.fc_out",
];
const GPT_NEO: Classic = [
    "ln_1.weight",
    "attn.attention.q_proj",
    "attn.attention.k_proj",
    "attn.attention.v_proj",
    "attn.attention.out_proj",
    "ln_2.weight",
    "(none)",
    "mlp.c_fc",
    "mlp.c_proj",
];
const OPT: Classic = [
    "self_attn_layer_norm.weight",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
    "final_layer_norm.weight",
    "(none)",
    "fc1",
    "fc2",
];
const INTERNLM2: Classic = [
    "attention_norm.weight",
    "attention.wqkv",
    "attention.wqkv",
    "attention.wqkv",
    "attention.wo",
    "ffn_norm.weight",
    "feed_forward.w1",
    "feed_forward.w3",
    "feed_forward.w2",
];

fn classic_part(part: Part, names: Classic) -> &'static str {
    let place = match part {
        Part::AttentionNorm => 0,
        Part::Query => 1,
        Part::Key => 2,
        Part::Value => 3,
        Part::AttentionOutput => 4,
        Part::FfnNorm => 5,
        Part::Gate => 6,
        Part::Up => 7,
        Part::Down => 8,
        _ => return "(none)",
    };
    names[place]
}

/// What GGUF files call the norms of a Falcon that has two a layer.
pub(super) fn falcon_norm(part: Part, config: &ModelConfig) -> Option<&'static str> {
    match part {
        _ if config.architecture != Architecture::Falcon || !config.has_two_norms => None,
        Part::AttentionNorm => Some("attn_norm_2.weight"),
        Part::FfnNorm => Some("attn_norm.weight"),
        _ => None,
    }
}

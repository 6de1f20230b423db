//! What files call the tensors of hybrids: LFM2's, Qwen 3.5's and Granite 4's, beside those of all decoders; and experts
//! of which all of a layer's lie in one tensor.

use std::ops::Range;

use super::{Names, Part, Place, gguf_part, hugging_face_part};
use crate::config::{Architecture, ModelConfig, Recurrent};

impl Names {
    /// Where an expert's matrix is in files that have all of a layer's in one tensor, gates and then ups of an expert
    /// in one matrix; and that tensor's dimensions.
    pub(in crate::model) fn stacked_expert(
        &self,
        layer: usize,
        part: Part,
        expert: usize,
        config: &ModelConfig,
    ) -> Option<(Place, [usize; 3])> {
        let [gate_up, down] = match config.architecture {
            Architecture::Gemma4 | Architecture::Mistral4 | Architecture::GraniteSwa if matches!(self, Self::Gguf) => {
                ["ffn_gate_up_exps.weight", "ffn_down_exps.weight"]
            }
            _ if matches!(self, Self::Gguf) => return None,
            Architecture::Gemma4 => ["experts.gate_up_proj", "experts.down_proj"],
            Architecture::GraniteSwa => [
                "block_sparse_moe.experts.gate_up_proj",
                "block_sparse_moe.experts.down_proj",
            ],
            Architecture::Qwen3Next
            | Architecture::Qwen3Moe
            | Architecture::Qwen35Moe
            | Architecture::Mistral4
            | Architecture::HyV3 => ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            Architecture::GraniteHybrid | Architecture::GraniteMoe => [
                "block_sparse_moe.input_linear.weight",
                "block_sparse_moe.output_linear.weight",
            ],
            _ => return None,
        };
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let (name, first, rows, of_expert, cols) = match part {
            Part::Gate => (gate_up, 0, ffn, 2 * ffn, hidden),
            Part::Up => (gate_up, ffn, ffn, 2 * ffn, hidden),
            _ => (down, 0, hidden, hidden, ffn),
        };
        let first = expert * of_expert + first;
        let mut place = self.whole(layer, name, name);
        place.rows = Some(first..first + rows);
        place.is_bare = true;
        Some((place, [cols, of_expert, num_experts]))
    }

    /// Where the tensor is in which each key head's rows of a delta net's projections lie together, in Qwen3-Next's files.
    pub(in crate::model) fn of_key_heads(&self, layer: usize, part: Part, architecture: Architecture) -> Option<Place> {
        let (gguf, hugging_face) = match part {
            _ if architecture != Architecture::Qwen3Next => return None,
            Part::MixerInput | Part::MixerGate => ("ssm_in", "linear_attn.in_proj_qkvz"),
            _ => ("ssm_ba", "linear_attn.in_proj_ba"),
        };
        Some(self.whole(layer, gguf, hugging_face))
    }
}

/// A gated block's part of a matrix that has its gate, then its up; of each so many rows.
pub(super) fn gate_up_rows(part: Part, size: usize) -> Option<Range<usize>> {
    match part {
        Part::Gate => Some(0..size),
        Part::Up => Some(size..2 * size),
        _ => None,
    }
}

/// A part of the matrix of a layer's input: Mamba-2's has its gate, then what is convolved, then its steps; Mamba's what is
/// convolved, then its gate.
pub(super) fn mamba_rows(part: Part, config: &ModelConfig) -> Option<Range<usize>> {
    let space = match &config.recurrent {
        Some(Recurrent::Mamba2(space)) => space,
        Some(Recurrent::Mamba1(shape)) => {
            return match part {
                Part::MixerInput => Some(0..shape.inner_size),
                Part::MixerGate => Some(shape.inner_size..2 * shape.inner_size),
                _ => None,
            };
        }
        _ => return None,
    };
    let (inner, channels) = (space.inner_size(), space.num_channels());
    match part {
        Part::MixerGate => Some(0..inner),
        Part::MixerInput => Some(inner..inner + channels),
        Part::MixerDecay => Some(inner + channels..inner + channels + space.num_heads),
        _ => None,
    }
}

/// What a family's GGUF files call a part, where LFM2's, Kimi Linear's and MiniMax-01's recurrent layers differ from others'.
pub(super) fn gguf_part_of(part: Part, architecture: Architecture) -> &'static str {
    match part {
        Part::MixerDecay if architecture == Architecture::KimiLinear => "ssm_f_a",
        Part::MixerGate if architecture == Architecture::KimiLinear => "ssm_g_a",
        Part::MixerInput if architecture == Architecture::MiniMax01 => "attn_qkv",
        Part::MixerNorm if architecture == Architecture::MiniMax01 => "attn_norm_2.weight",
        Part::MixerOutput if matches!(architecture, Architecture::KimiLinear | Architecture::MiniMax01) => {
            "attn_output"
        }
        _ if !architecture.has_short_convolutions() => gguf_part(part, architecture),
        Part::MixerInput => "shortconv.in_proj",
        Part::MixerConvolution => "shortconv.conv",
        Part::MixerOutput => "shortconv.out_proj",
        _ => gguf_part(part, architecture),
    }
}

/// LFM2's names elsewhere.
pub(super) fn lfm2_part(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm => "operator_norm.weight",
        Part::QueryNorm => "self_attn.q_layernorm.weight",
        Part::KeyNorm => "self_attn.k_layernorm.weight",
        Part::AttentionOutput => "self_attn.out_proj",
        Part::FfnNorm => "ffn_norm.weight",
        Part::Gate => "feed_forward.w1",
        Part::Up => "feed_forward.w3",
        Part::Down => "feed_forward.w2",
        Part::MixerInput => "conv.in_proj",
        Part::MixerConvolution => "conv.conv",
        Part::MixerOutput => "conv.out_proj",
        part => hugging_face_part(part, Architecture::Lfm2),
    }
}

/// Kimi Linear's names.
pub(super) fn kimi_part(part: Part) -> &'static str {
    match part {
        Part::MixerDecay => "self_attn.f_a_proj",
        Part::MixerGate => "self_attn.g_a_proj",
        Part::MixerRate => "self_attn.b_proj",
        Part::MixerDecayBase => "self_attn.A_log",
        Part::MixerDecayBias => "self_attn.dt_bias",
        Part::MixerNorm => "self_attn.o_norm.weight",
        Part::MixerOutput => "self_attn.o_proj",
        part => hugging_face_part(part, Architecture::KimiLinear),
    }
}

/// MiniMax-01's names.
pub(super) fn minimax_part(part: Part) -> &'static str {
    match part {
        Part::MixerInput => "self_attn.qkv_proj",
        Part::MixerGate => "self_attn.output_gate",
        Part::MixerNorm => "self_attn.norm.weight",
        Part::MixerOutput => "self_attn.out_proj",
        part => hugging_face_part(part, Architecture::MiniMax01),
    }
}

/// LFM3's names.
pub(super) fn lfm3_part(part: Part) -> &'static str {
    match part {
        Part::PostAttentionNorm => "post_operator_norm.weight",
        Part::PostFfnNorm => "post_ffn_norm.weight",
        Part::QueryNorm | Part::KeyNorm | Part::AttentionOutput => hugging_face_part(part, Architecture::Lfm3),
        part => lfm2_part(part),
    }
}

/// Nemotron-H's and Mamba's names elsewhere: a layer has one norm, and one block.
pub(super) fn nemotron_part(part: Part) -> &'static str {
    match part {
        Part::AttentionNorm | Part::FfnNorm => "norm.weight",
        Part::Query => "mixer.q_proj",
        Part::Key => "mixer.k_proj",
        Part::Value => "mixer.v_proj",
        Part::AttentionOutput => "mixer.o_proj",
        Part::Up => "mixer.up_proj",
        Part::Down => "mixer.down_proj",
        Part::MixerConvolution => "mixer.conv1d",
        Part::MixerDecayBase => "mixer.A_log",
        Part::MixerDecayBias => "mixer.dt_bias",
        Part::MixerNorm => "mixer.norm.weight",
        Part::MixerOutput => "mixer.out_proj",
        Part::MixerSkip => "mixer.D",
        _ => "(none)",
    }
}

/// Bamba's, Falcon-H1's and Jamba's names.
pub(super) fn bamba_part(part: Part) -> &'static str {
    match part {
        Part::FfnNorm => "pre_ff_layernorm.weight",
        Part::Gate => "feed_forward.gate_proj",
        Part::Up => "feed_forward.up_proj",
        Part::Down => "feed_forward.down_proj",
        part => granite_part(part),
    }
}

/// Granite 4's names elsewhere.
pub(super) fn granite_part(part: Part) -> &'static str {
    match part {
        Part::Gate | Part::Up => "shared_mlp.input_linear",
        Part::Down => "shared_mlp.output_linear",
        Part::MixerConvolution => "mamba.conv1d",
        Part::MixerDecayBase => "mamba.A_log",
        Part::MixerDecayBias => "mamba.dt_bias",
        Part::MixerNorm => "mamba.norm.weight",
        Part::MixerOutput => "mamba.out_proj",
        Part::MixerSkip => "mamba.D",
        part => hugging_face_part(part, Architecture::GraniteHybrid),
    }
}

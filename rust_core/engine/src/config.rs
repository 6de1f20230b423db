//! What a decoder looks like, read from a model file's own description and checked at the door.
//!
//! One structure describes every family here: Llama, SmolLM, Mistral, Qwen2 and Qwen3 differ in biases, norms and the
//! layout of rotary pairs, the text halves of Qwen-VL in names alone, Phi-3 in matrices that lie together and heads of
//! which a part is rotated, SmolLM3 in layers without rotary positions, OLMo 2 in where its norms are, Gemma 2 and 3 in
//! their extra norms, their scaled embedding and their sliding-window layers, Gemma 2 in the caps of its scores and
//! logits, Gemma 4 in heads of two shapes and layers that share keys and values. LFM2, Qwen3-Next and Qwen 3.5 have recurrent layers beside attention.
//! Mixtral, Qwen3-MoE and OLMoE have several feed-forward blocks for one (experts), gpt-oss also sinks in its
//! attention, Qwen2-MoE, GLM-4.5, ERNIE 4.5 and Hunyuan an expert beside them that all tokens share. Hunyuan normalises
//! queries and keys after they are rotated, EXAONE 4 blocks' outputs. DeepSeek-V2 and V3 and GLM-4.7-Flash have latent
//! attention.
//!
//! A field that is not known is refused by name: it may change every number, and an answer would not show it.

pub(crate) mod experts;
mod families;
mod gemma4;
pub(crate) mod gguf;
pub(crate) mod hugging_face;
pub(crate) mod latent;
mod layers;
mod recurrent;

pub use self::experts::{Experts, Rating};
pub use self::gemma4::Gemma4;
pub use self::hugging_face::IRRELEVANT as IRRELEVANT_FIELDS;
pub use self::latent::Latent;
pub use self::layers::Blocks;
pub use self::recurrent::{DeltaNet, Mamba2, Recurrent};
use pyagent_kernels::attention::{KvLayout, KvType};
use pyagent_kernels::elementwise::{RopeScaling, RopeStyle, RopeTable};
use pyagent_kernels::pack::ROWS_PER_GROUP;

use crate::weights::ModelFileError;

/// A model's architecture, as its file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM and Mistral, Ministral 3, whose queries grow, and Mixtral, which has experts.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v; the text half of Qwen2-VL and Qwen2.5-VL.
    Qwen2,
    /// Qwen3: norms on each head of q and k; the text half of Qwen3-VL.
    Qwen3,
    /// Gemma: its embedding is scaled.
    Gemma,
    /// Gemma 2: scores and logits have a cap.
    Gemma2,
    /// Gemma 3, text only.
    Gemma3,
    /// Gemma 4, text only.
    Gemma4,
    /// Phi-3, Phi-3.5 and Phi-4: query, key and value are one matrix, and so are gate and up.
    Phi3,
    /// OLMo 2: norms after each block, none before; queries and keys are normalised over all heads.
    Olmo2,
    /// SmolLM3: every fourth layer has no rotary positions.
    SmolLm3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// OLMoE: experts, and norms as OLMo 2's of queries and keys, but before blocks.
    OlMoe,
    /// LFM2: short convolutions, and attention with norms on each head.
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    /// Qwen 3.5: gated delta nets, and attention with norms on each head whose output has a gate.
    Qwen35,
    /// Qwen 3.5 with experts, and one that all tokens share.
    Qwen35Moe,
    /// Qwen3-Next: as Qwen 3.5 with experts; a key head's projections lie together.
    Qwen3Next,
    /// Granite 3, and Granite 4 of attention alone: factors on embeddings, scores, blocks and logits.
    Granite,
    /// Granite 4: Mamba-2 beside attention, with experts and one that all tokens share, or without.
    GraniteHybrid,
    /// Bamba: Mamba-2 beside attention whose heads are rotated in half.
    Bamba,
    /// Nemotron-H and Nemotron 3: layers of one block each, Mamba-2, attention, a feed-forward block or experts.
    NemotronH,
    /// Llama 4: attention in chunks, layers without rotary positions whose queries grow, experts whose inputs are weighed.
    Llama4,
    /// gpt-oss: experts with biases and a clamped gate, and sinks in every other layer's window.
    GptOss,
    /// Qwen2 with experts, and one that all tokens share.
    Qwen2Moe,
    /// GLM-4.5 to 4.7: experts by corrected sigmoids, half of each head is rotated.
    Glm4Moe,
    /// ERNIE 4.5.
    Ernie45,
    /// ERNIE 4.5 with experts.
    Ernie45Moe,
    /// Hunyuan: queries and keys are normalised after they are rotated.
    HunyuanDense,
    /// Hunyuan with experts.
    HunyuanMoe,
    /// Seed-OSS.
    SeedOss,
    /// EXAONE 4: norms after each block, none before; layers without windows have no rotary positions.
    Exaone4,
    /// DeepSeek-V2 and V3, GLM-4.7-Flash: latent attention, experts beside one that all tokens share.
    Deepseek2,
    /// GLM-4 of 0414: norms before and after each block, half of each head is rotated by neighbours.
    Glm4,
    /// Arcee's AFM: insides without a gate.
    Arcee,
    /// Granite 3 with experts, and one that all tokens share, or without that.
    GraniteMoe,
    /// dots.llm1: experts by corrected sigmoids, attention with norms on each head.
    Dots1,
    /// MiniMax-M2: experts by corrected sigmoids, queries and keys normalised over all heads, a part of each head rotated.
    MiniMaxM2,
    /// Command R, Aya: attention and feed-forward block beside each other on one norm.
    Cohere,
    /// Command R7B and A: as Command R, with windows; layers without windows have no rotary positions.
    Cohere2,
    /// StarCoder2: `LayerNorm`, insides without a gate.
    StarCoder2,
    /// Phi-1 to 2: attention and feed-forward block beside each other on one norm, a part of each head rotated.
    Phi2,
    /// `StableLM`: `LayerNorm`, a part of each head rotated.
    StableLm,
    /// Nemotron and Minitron: `LayerNorm`, insides without a gate, a part of each head rotated.
    Nemotron,
    /// OLMo: norms without weights.
    Olmo,
    /// GPT-NeoX, Pythia: attention and feed-forward block beside each other, each with a norm of its own.
    GptNeoX,
}

/// Relatives of DeepSeek-V3 with an indexer (sparse attention), by their names in both kinds of files.
const SPARSE_ATTENTION: [&str; 4] = ["deepseek_v32", "deepseek32", "glm_moe_dsa", "glm-dsa"];

/// Decoder layers at most.
const MOST_LAYERS: usize = 1_000;

/// SmolLM3's layers without rotary positions, where nothing is said.
const SMOLLM3_NO_ROPE_PERIOD: usize = 4;

/// The names of every architecture that can be run, for messages.
pub const SUPPORTED_ARCHITECTURES: &str = "llama (Llama, SmolLM, Mistral, Ministral 3, Mixtral), qwen2, qwen3, gemma2, gemma3, gemma4, phi3 (Phi-3, Phi-4), olmo2, smollm3, \
    gemma, glm4 (GLM-4 of 0414), arcee, command-r and cohere2 (Command R, R7B, A), starcoder2, phi2, stablelm, nemotron, olmo, gptneox (Pythia), seed_oss, exaone4, ernie4_5, hunyuan-dense, granite, lfm2, qwen35 (Qwen 3.5), the mixtures of experts qwen3moe, olmoe, llama4, gpt-oss, qwen2moe, glm4moe, ernie4_5-moe, hunyuan-moe, granitemoe, dots1, minimax-m2, deepseek2 (DeepSeek-V2 and V3, GLM-4.7-Flash), lfm2moe, qwen3next, qwen35moe, granitehybrid (Granite 4), bamba (safetensors), nemotron_h and nemotron_h_moe (Nemotron-H, Nemotron 3), and the text half of qwen2_vl, qwen2_5_vl, qwen3_vl; the torch runner has others too, from safetensors";

impl Architecture {
    /// The architecture of a GGUF's `general.architecture` or of a `config.json`'s `model_type`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "llama" | "mistral" | "mixtral" | "ministral3" | "mistral3" | "internlm3" => Some(Self::Llama),
            "qwen2" | "qwen2vl" => Some(Self::Qwen2),
            "qwen3" | "qwen3vl" => Some(Self::Qwen3),
            "gemma" => Some(Self::Gemma),
            "gemma2" => Some(Self::Gemma2),
            "gemma3" | "gemma3_text" => Some(Self::Gemma3),
            "gemma4" | "gemma4_text" => Some(Self::Gemma4),
            "phi3" => Some(Self::Phi3),
            "olmo2" | "olmo3" => Some(Self::Olmo2),
            "smollm3" => Some(Self::SmolLm3),
            "qwen3moe" | "qwen3_moe" => Some(Self::Qwen3Moe),
            "olmoe" => Some(Self::OlMoe),
            "lfm2" => Some(Self::Lfm2),
            "lfm2moe" | "lfm2_moe" => Some(Self::Lfm2Moe),
            "qwen35" | "qwen3_5_text" => Some(Self::Qwen35),
            "qwen35moe" | "qwen3_5_moe_text" => Some(Self::Qwen35Moe),
            "qwen3next" | "qwen3_next" => Some(Self::Qwen3Next),
            "granite" => Some(Self::Granite),
            "granitehybrid" | "granitemoehybrid" => Some(Self::GraniteHybrid),
            "bamba" => Some(Self::Bamba),
            "nemotron_h" | "nemotron_h_moe" => Some(Self::NemotronH),
            "llama4" | "llama4_text" => Some(Self::Llama4),
            "gpt-oss" | "gpt_oss" => Some(Self::GptOss),
            "qwen2moe" | "qwen2_moe" => Some(Self::Qwen2Moe),
            "glm4moe" | "glm4_moe" => Some(Self::Glm4Moe),
            "ernie4_5" => Some(Self::Ernie45),
            "ernie4_5-moe" | "ernie4_5_moe" => Some(Self::Ernie45Moe),
            "hunyuan-dense" | "hunyuan_v1_dense" => Some(Self::HunyuanDense),
            "hunyuan-moe" | "hunyuan_v1_moe" => Some(Self::HunyuanMoe),
            "seed_oss" => Some(Self::SeedOss),
            "exaone4" => Some(Self::Exaone4),
            "deepseek2" | "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" => Some(Self::Deepseek2),
            "glm4" => Some(Self::Glm4),
            "arcee" => Some(Self::Arcee),
            "granitemoe" | "granitemoeshared" => Some(Self::GraniteMoe),
            "dots1" => Some(Self::Dots1),
            "minimax_m2" | "minimax-m2" => Some(Self::MiniMaxM2),
            "cohere" | "command-r" => Some(Self::Cohere),
            "cohere2" => Some(Self::Cohere2),
            "starcoder2" => Some(Self::StarCoder2),
            "phi" | "phi2" => Some(Self::Phi2),
            "stablelm" => Some(Self::StableLm),
            "nemotron" => Some(Self::Nemotron),
            "olmo" => Some(Self::Olmo),
            "gpt_neox" | "gptneox" => Some(Self::GptNeoX),
            _ => None,
        }
    }

    /// The name used in messages and by `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Gemma4 => "gemma4",
            Self::Phi3 => "phi3",
            Self::Olmo2 => "olmo2",
            Self::SmolLm3 => "smollm3",
            Self::Qwen3Moe => "qwen3moe",
            Self::OlMoe => "olmoe",
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe => "lfm2moe",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Next => "qwen3next",
            Self::Granite => "granite",
            Self::GraniteHybrid => "granitehybrid",
            Self::Bamba => "bamba",
            Self::NemotronH => "nemotron_h",
            Self::Llama4 => "llama4",
            Self::GptOss => "gpt-oss",
            Self::Qwen2Moe => "qwen2moe",
            Self::Glm4Moe => "glm4moe",
            Self::Ernie45 => "ernie4_5",
            Self::Ernie45Moe => "ernie4_5-moe",
            Self::HunyuanDense => "hunyuan-dense",
            Self::HunyuanMoe => "hunyuan-moe",
            Self::SeedOss => "seed_oss",
            Self::Exaone4 => "exaone4",
            Self::Deepseek2 => "deepseek2",
            Self::Glm4 => "glm4",
            Self::Arcee => "arcee",
            Self::GraniteMoe => "granitemoe",
            Self::Dots1 => "dots1",
            Self::MiniMaxM2 => "minimax-m2",
            Self::Cohere => "command-r",
            Self::Cohere2 => "cohere2",
            Self::StarCoder2 => "starcoder2",
            Self::Phi2 => "phi2",
            Self::StableLm => "stablelm",
            Self::Nemotron => "nemotron",
            Self::Olmo => "olmo",
            Self::GptNeoX => "gptneox",
        }
    }

    /// Whether it is one of Gemma's: a scaled embedding, and `GeGLU`.
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma | Self::Gemma2 | Self::Gemma3 | Self::Gemma4)
    }

    /// Whether it is one of Granite's: factors on embeddings, scores, blocks and logits.
    pub(crate) fn is_granite(self) -> bool {
        matches!(self, Self::Granite | Self::GraniteHybrid | Self::GraniteMoe)
    }

    /// Whether blocks read the stream as it is: norms are of their outputs alone.
    pub fn has_input_norms(self) -> bool {
        !matches!(self, Self::Olmo2 | Self::Exaone4)
    }

    /// Whether queries and keys are normalised after they are rotated, not before.
    pub fn is_norm_after_rope(self) -> bool {
        matches!(self, Self::HunyuanDense | Self::HunyuanMoe | Self::Llama4)
    }

    /// Whether safetensors have a layer's experts in one tensor each of gates and ups, and of downs, transposed.
    pub(crate) fn has_packed_experts(self) -> bool {
        matches!(self, Self::GptOss | Self::Llama4)
    }

    /// Whether heads have sinks.
    pub fn has_sinks(self) -> bool {
        self == Self::GptOss
    }

    /// Whether the norm of queries, and that of keys, is over all heads together.
    pub fn is_qk_norm_wide(self) -> bool {
        matches!(self, Self::Olmo2 | Self::OlMoe | Self::MiniMaxM2)
    }

    /// Whether what heads attended to is multiplied by a gate of its own.
    pub fn has_gated_attention(self) -> bool {
        self.has_delta_nets()
    }

    /// Whether a part of each head may be rotated alone.
    pub(crate) fn is_partly_rotary(self) -> bool {
        matches!(self, Self::Phi3 | Self::Glm4Moe | Self::Bamba)
            || self.has_delta_nets()
            || self.rotary_share().is_some()
    }

    /// Which layers have rotary positions, where the file does not say.
    fn rotary_layers(self, num_layers: usize) -> Vec<bool> {
        periodic(
            num_layers,
            if self == Self::SmolLm3 {
                SMOLLM3_NO_ROPE_PERIOD
            } else {
                0
            },
        )
    }
}

/// The gate's activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
    /// The square of what is above 0, without a gate.
    ReluSquared,
    /// GELU without a gate, with the error function.
    BareGelu,
    /// GELU without a gate, in its tanh form.
    BareGeluTanh,
    /// gpt-oss: what the gate lets through is one more than `up`, and both have limits.
    ClampedSwiglu {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// The largest magnitude of `up`, and the largest gate.
        limit: f32,
    },
}

impl Activation {
    /// Whether a second matrix gives what it is multiplied by.
    pub(crate) fn has_gate(self) -> bool {
        !matches!(self, Self::ReluSquared | Self::BareGelu | Self::BareGeluTanh)
    }
}

/// Queries at position `p` are `1 + beta ln(1 + floor((p + offset) / original))` times as large, lest long contexts blur them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// How quickly they grow.
    pub beta: f32,
    /// Positions of the first training, within which they do not.
    pub original: usize,
    /// What is added to positions.
    pub offset: usize,
    /// Whether they grow in layers without rotary positions alone.
    pub is_of_unrotated: bool,
}

impl QueryGrowth {
    /// The factor at a position.
    pub fn at(&self, position: usize) -> f32 {
        (1.0 + f64::from(self.beta) * ((1 + (position + self.offset) / self.original.max(1)) as f64).ln()) as f32
    }
}

/// Everything the forward pass needs to know about a model besides its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Tokens in the vocabulary: rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a head; in latent attention that of its one cached head.
    pub head_dim: usize,
    /// Latent attention's sizes, where the family has it.
    pub latent: Option<Latent>,
    /// What Gemma 4's layers have of their own.
    pub gemma4: Option<Gemma4>,
    /// Width inside the feed-forward block; inside one expert, where it has experts.
    pub ffn_size: usize,
    /// The feed-forward block's experts, of a mixture of them.
    pub experts: Option<Experts>,
    /// Of each layer, whether it has one feed-forward block and no experts, in a mixture of them.
    pub dense_layers: Vec<bool>,
    /// Of each layer, which blocks it has.
    pub blocks: Vec<Blocks>,
    /// Whether a layer's feed-forward block reads what its attention reads, and both are added to that.
    pub is_parallel: bool,
    /// Whether the file has queries, keys and values of a layer in one matrix, one after the other.
    pub is_qkv_joined: bool,
    /// Positions the model was made for.
    pub context_length: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// What a norm's stored weight lacks: 1 in Gemma's and Nemotron's safetensors, 0 elsewhere.
    pub norm_weight_offset: f32,
    /// Layout of rotary pairs.
    pub rope_style: RopeStyle,
    /// Numbers at the start of a head that are rotated.
    pub rotary_dims: usize,
    /// Of each layer, whether it has rotary positions.
    pub rotary_layers: Vec<bool>,
    /// Rotary base of layers that see everything.
    pub rope_base: f64,
    /// Rotary scaling of layers that see everything.
    pub rope_scaling: RopeScaling,
    /// Rotary base of sliding-window layers.
    pub local_rope_base: f64,
    /// Rotary scaling of sliding-window layers.
    pub local_rope_scaling: RopeScaling,
    /// Positions a sliding-window layer sees, its own included.
    pub sliding_window: Option<usize>,
    /// Whether windows are chunks: a token sees those of its own, up to itself.
    pub are_windows_chunks: bool,
    /// Of each layer, whether it is a sliding-window layer.
    pub sliding_layers: Vec<bool>,
    /// What the layers without attention are, where there are any.
    pub recurrent: Option<Recurrent>,
    /// Of each layer, whether it is one of them.
    pub recurrent_layers: Vec<bool>,
    /// The gate's activation.
    pub activation: Activation,
    /// Factor on query-key products.
    pub attention_scale: f32,
    /// Llama 4: queries and keys of layers with rotary positions are normalised, without a factor for each number.
    pub has_bare_qk_norms: bool,
    /// Ministral 3, Llama 4: how queries grow with their positions.
    pub query_growth: Option<QueryGrowth>,
    /// Gemma 2: scores `s` become `cap tanh(s / cap)`.
    pub attention_softcap: Option<f32>,
    /// Gemma 2: logits likewise.
    pub logit_softcap: Option<f32>,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Granite: factor on what a block adds to the stream.
    pub residual_scale: f32,
    /// Granite, Command R: what logits are divided by.
    pub logit_divisor: f32,
    /// Whether the embedding is the output matrix too; `None` when the file's tensors say.
    pub is_output_tied: Option<bool>,
}

impl ModelConfig {
    /// How many positions layer `layer` sees, its own included; `None` means all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers[layer])
    }

    /// What layer `layer` is, if it has no attention.
    pub fn recurrent(&self, layer: usize) -> Option<&Recurrent> {
        self.recurrent.as_ref().filter(|_| self.recurrent_layers[layer])
    }

    /// Width inside the feed-forward block of layers whose block is of another width than `ffn_size`: without experts in a
    /// mixture, or wide.
    pub fn dense_size(&self) -> usize {
        match (&self.experts, &self.gemma4) {
            (Some(experts), _) => experts.dense_size,
            (None, Some(gemma4)) if gemma4.wide_size > 0 => gemma4.wide_size,
            _ => self.ffn_size,
        }
    }

    /// Whether a layer without experts is one of those.
    pub fn has_dense_size(&self, layer: usize) -> bool {
        self.experts.is_some() || self.is_wide(layer)
    }

    /// Width inside the feed-forward block of a layer without experts.
    pub fn dense_size_of(&self, layer: usize) -> usize {
        if self.has_dense_size(layer) {
            self.dense_size()
        } else {
            self.ffn_size
        }
    }

    /// Rotary tables of layers that see everything and of sliding-window layers, no position computed yet.
    pub fn rope_tables(&self) -> Result<[RopeTable; 2], ModelFileError> {
        let table = |rotary_dims, base: f64, scaling| {
            RopeTable::new(rotary_dims, base as f32, scaling, self.context_length)
                .map_err(|error| invalid(error.to_string()))
        };
        Ok([
            table(self.global_rotary_dims(), self.rope_base, &self.rope_scaling)?,
            table(self.rotary_dims, self.local_rope_base, &self.local_rope_scaling)?,
        ])
    }

    /// Values in one token's queries, at most.
    pub fn query_size(&self) -> usize {
        let of_global = self.gemma4.map_or(0, |gemma4| gemma4.global_head_dim);
        self.num_heads * self.head_dim.max(of_global)
    }

    /// Numbers of what a head of a layer attends to.
    pub fn value_dim_of(&self, layer: usize) -> usize {
        self.latent.map_or(self.head_dim_of(layer), |latent| latent.rank)
    }

    /// Numbers of what a head attends to, at most.
    pub fn value_dim(&self) -> usize {
        self.latent
            .map_or(self.query_size() / self.num_heads, |latent| latent.rank)
    }

    /// Values that attention hands to its output matrix; of layers with heads of each shape.
    pub fn heads_sizes(&self) -> [usize; 2] {
        let of_head = self.latent.map_or(self.head_dim, |latent| latent.value_dims);
        let of_global = self.gemma4.map_or(0, |gemma4| gemma4.global_head_dim);
        [of_head, of_global].map(|size| self.num_heads * size)
    }

    /// Values in one token's keys, or values, at most.
    pub fn kv_size(&self) -> usize {
        let of_global = self
            .gemma4
            .map_or(0, |gemma4| gemma4.global_kv_heads * gemma4.global_head_dim);
        (self.num_kv_heads * self.head_dim).max(of_global)
    }

    /// Values that a norm of a layer's queries covers, and one of its keys.
    pub fn qk_norm_sizes(&self, layer: usize) -> (usize, usize) {
        if self.architecture.is_qk_norm_wide() {
            (self.query_size(), self.kv_size())
        } else {
            (self.head_dim_of(layer), self.head_dim_of(layer))
        }
    }

    /// How keys and values of a layer lie in memory.
    pub fn kv_layout(&self, layer: usize, dtype: KvType) -> KvLayout {
        KvLayout {
            num_kv_heads: self.kv_heads_of(layer),
            head_dim: self.head_dim_of(layer),
            values_in_keys: self.latent.map(|latent| latent.rank),
            dtype,
        }
    }

    fn check_recurrent(&self) -> Result<(), ModelFileError> {
        let num_recurrent = self
            .recurrent_layers
            .iter()
            .filter(|is_recurrent| **is_recurrent)
            .count();
        for count in [self.recurrent_layers.len(), self.blocks.len()] {
            if count != self.num_layers {
                let of = self.num_layers;
                return Err(invalid(format!("the kinds of {count} layers are told, of {of}")));
            }
        }
        let count = self.num_layers;
        let has_attention = (0..count).any(|layer| self.has_attention(layer));
        match &self.recurrent {
            None if num_recurrent == 0 && has_attention => Ok(()),
            Some(recurrent) if has_attention => recurrent.check(self.hidden_size),
            _ => Err(invalid(format!(
                "{num_recurrent} of {count} layers are recurrent; expected at least one with attention"
            ))),
        }
    }

    /// Refuses shapes no real model has, before anything is multiplied or allocated.
    fn check(self) -> Result<Self, ModelFileError> {
        let limits = [
            ("layers", self.num_layers, 1, MOST_LAYERS),
            ("hidden size", self.hidden_size, 1, 1 << 20),
            ("attention heads", self.num_heads, 1, 4_096),
            ("key/value heads", self.num_kv_heads, 1, 4_096),
            ("head size", self.head_dim, 2, 4_096),
            ("feed-forward size", self.ffn_size, 1, 1 << 22),
            ("context length", self.context_length, 1, 1 << 28),
        ];
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what} is {value}; expected {low} to {high}")));
            }
        }
        self.experts.as_ref().map_or(Ok(()), Experts::check)?;
        self.check_recurrent()?;
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(invalid(format!(
                "{} query heads cannot share {} key/value heads evenly",
                self.num_heads, self.num_kv_heads
            )));
        }
        if !self.head_dim.is_multiple_of(ROWS_PER_GROUP) {
            return Err(invalid(format!(
                "head size {} is not supported; expected a multiple of {ROWS_PER_GROUP}",
                self.head_dim
            )));
        }
        if self.rotary_dims > self.head_dim || self.rotary_dims < 2 || !self.rotary_dims.is_multiple_of(2) {
            return Err(invalid(format!(
                "{} of a head's {} numbers are rotated; expected an even number of them",
                self.rotary_dims, self.head_dim
            )));
        }
        for kinds in [&self.sliding_layers, &self.rotary_layers, &self.dense_layers].map(Vec::len) {
            if kinds != self.num_layers {
                let of = self.num_layers;
                return Err(invalid(format!("the kinds of {kinds} layers are told, of {of}")));
            }
        }
        self.check_gemma4()?;
        // Without one a row of zeros would be divided by 0.
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon.is_finite()) {
            return Err(invalid(format!(
                "norm epsilon is {}; expected a number above 0",
                self.norm_epsilon
            )));
        }
        if !(self.rope_base.is_finite() && self.rope_base > 0.0) {
            return Err(invalid("rotary base is not a number above 0".to_owned()));
        }
        if !(self.attention_scale.is_finite() && self.attention_scale > 0.0) {
            return Err(invalid("the factor on scores is not a number above 0".to_owned()));
        }
        let caps = [self.attention_softcap, self.logit_softcap];
        if caps.into_iter().flatten().any(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err(invalid("a cap of scores or logits is not a number above 0".to_owned()));
        }
        if self.query_growth.is_some_and(|growth| !growth.beta.is_finite()) {
            return Err(invalid("the growth of queries is not a number".to_owned()));
        }
        let factors = [
            self.embedding_scale,
            self.attention_scale,
            self.residual_scale,
            self.logit_divisor,
        ];
        if factors.into_iter().any(|factor| !(factor.is_finite() && factor > 0.0)) {
            return Err(invalid(
                "a factor on embeddings, scores, blocks or logits is not a number above 0".to_owned(),
            ));
        }
        if self.sliding_window == Some(0) {
            return Err(invalid("the window of some layers is 0 positions wide".to_owned()));
        }
        Ok(self)
    }
}

/// All layers but every `every`-th; all when that is 0.
fn periodic(num_layers: usize, every: usize) -> Vec<bool> {
    (1..=num_layers.min(MOST_LAYERS))
        .map(|layer| every == 0 || !layer.is_multiple_of(every))
        .collect()
}

fn unsupported(name: &str) -> ModelFileError {
    if SPARSE_ATTENTION.contains(&name) {
        return invalid(format!(
            "architecture '{name}' is not supported: its attention sees the tokens that an indexer chooses; the nearest that is \
             supported is DeepSeek-V3 (deepseek_v3, in GGUF files deepseek2)"
        ));
    }
    let nearest = families::nearest(name).map_or_else(String::new, |nearest| {
        format!("the nearest that is supported is {nearest}; ")
    });
    invalid(format!(
        "architecture '{name}' is not supported; {nearest}supported are {SUPPORTED_ARCHITECTURES}"
    ))
}

pub(crate) fn invalid(reason: String) -> ModelFileError {
    ModelFileError::Config { reason }
}

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

mod alibi;
mod architecture;
pub(crate) mod assistant;
mod dual;
pub(crate) mod eagle;
mod encoder_decoder;
pub(crate) mod experts;
mod falcon_h1;
mod families;
mod gemma4;
pub(crate) mod gguf;
pub(crate) mod hugging_face;
pub(crate) mod latent;
mod layers;
pub(crate) mod medusa;
pub(crate) mod minicpm;
mod minimax;
mod mtp;
mod recurrent;

use self::architecture::unsupported;
pub use self::architecture::{Architecture, SUPPORTED_ARCHITECTURES};
pub use self::assistant::{AssistantConfig, Clusters};
pub use self::dual::DualChunks;
pub use self::eagle::{EagleConfig, FeatureNorm};
pub use self::encoder_decoder::EncoderDecoder;
pub use self::experts::{Experts, Rating};
pub use self::falcon_h1::Multipliers;
pub use self::gemma4::Gemma4;
pub use self::hugging_face::IRRELEVANT as IRRELEVANT_FIELDS;
pub use self::latent::{Indexer, Latent};
pub use self::layers::Blocks;
pub use self::medusa::MedusaConfig;
pub use self::minimax::NormedStream;
pub use self::recurrent::{DeltaNet, KimiDelta, Lightning, Mamba1, Mamba2, Recurrent};
use pyagent_kernels::attention::{KvLayout, KvType};
use pyagent_kernels::elementwise::{RopeScaling, RopeStyle, RopeTable};
use pyagent_kernels::pack::ROWS_PER_GROUP;

use crate::weights::ModelFileError;

/// Decoder layers at most.
const MOST_LAYERS: usize = 1_000;

/// The gate's activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
    /// What is above 0, without a gate.
    Relu,
    /// The square of what is above 0, without a gate.
    ReluSquared,
    /// GELU without a gate, with the error function.
    BareGelu,
    /// GELU without a gate, in its tanh form.
    BareGeluTanh,
    /// Apertus: xIELU without a gate, whose curve each layer has among its weights.
    Xielu,
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
        !matches!(
            self,
            Self::Relu | Self::ReluSquared | Self::BareGelu | Self::BareGeluTanh | Self::Xielu
        )
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
    /// Of each layer, whether it has an indexer: one without attends to what the layer before picked. None where no layer
    /// has one.
    pub indexed_layers: Vec<bool>,
    /// What Gemma 4's layers have of their own.
    pub gemma4: Option<Gemma4>,
    /// What an encoder-decoder has besides its decoder, which this is.
    pub encoder_decoder: Option<EncoderDecoder>,
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
    /// Whether each of blocks that lie beside each other has a norm of its own.
    pub has_two_norms: bool,
    /// Whether the file has queries, keys and values of a layer in one matrix, one after the other.
    pub is_qkv_joined: bool,
    /// Positions the model was made for.
    pub context_length: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Whether norms of the stream are by mean and variance (`LayerNorm`), not by the root mean square.
    pub has_layer_norms: bool,
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
    /// Qwen2.5-1M: how long texts are cut.
    pub dual_chunks: Option<DualChunks>,
    /// The greatest exponent of `ALiBi`'s slopes, where there are any.
    pub alibi_max_bias: Option<f32>,
    /// Gemma 2: scores `s` become `cap tanh(s / cap)`.
    pub attention_softcap: Option<f32>,
    /// Gemma 2: logits likewise.
    pub logit_softcap: Option<f32>,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
    /// Granite: factor on what a block adds to the stream.
    pub residual_scale: f32,
    /// Falcon-H1: factors on parts of a layer.
    pub multipliers: Option<Multipliers>,
    /// MiniMax-01: factors on what blocks read and on what they give, where both are added in place of the stream.
    pub normed_stream: Option<NormedStream>,
    /// Granite, Command R: what logits are divided by.
    pub logit_divisor: f32,
    /// Whether the embedding is the output matrix too; `None` when the file's tensors say.
    pub is_output_tied: Option<bool>,
    /// Whether there is a head that drafts further tokens: a layer behind those of the decoder, which every list of layers
    /// has too.
    pub has_mtp: bool,
    /// Whether the head's attention reads a token beside the output before it; otherwise a matrix makes one of both.
    pub reads_both: bool,
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

    /// What attention is, for who reads of the model, where it is not to keys and values of all tokens before, or of a
    /// window's.
    pub fn peculiar_attention(&self) -> Option<String> {
        let count = (0..self.num_layers).filter(|layer| self.has_attention(*layer)).count();
        if count == 0 {
            return Some("none: states alone".to_owned());
        }
        let of = self.num_layers;
        let layers = (count < of).then(|| format!(" in {count} of {of} layers"));
        let latent = self.latent.map(|_| format!("latent{}", layers.unwrap_or_default()));
        let picked = self
            .num_picked()
            .map(|picked| format!("sparse: a token picks {} earlier ones", grouped(picked)));
        let dual = self
            .dual_chunks
            .map(|dual| format!("in dual chunks of {} tokens", grouped(dual.chunk_len)));
        let parts: Vec<String> = [latent, picked, dual].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
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

    /// The indexer of a layer that has one.
    pub fn indexer(&self, layer: usize) -> Option<Indexer> {
        let has_one = self.indexed_layers.get(layer).is_some_and(|has_one| *has_one);
        self.latent?.indexer.filter(|_| has_one)
    }

    /// How many positions a token attends to at most, where an indexer picks them.
    pub fn num_picked(&self) -> Option<usize> {
        Some(self.latent?.indexer?.num_picked)
    }

    fn check_indexed_layers(&self) -> Result<(), ModelFileError> {
        let (count, layers) = (self.indexed_layers.len(), self.num_layers);
        match self.num_picked() {
            None => Ok(()),
            Some(_) if count != layers => Err(invalid(format!("the indexers of {count} layers are told, of {layers}"))),
            Some(_) if self.indexed_layers.first() == Some(&false) => Err(invalid(
                "the first layer has no indexer, and no layer before it has picked what it attends to".to_owned(),
            )),
            Some(_) => Ok(()),
        }
    }

    /// How keys and values of a layer lie in memory.
    pub fn kv_layout(&self, layer: usize, dtype: KvType) -> KvLayout {
        KvLayout {
            num_kv_heads: self.kv_heads_of(layer),
            head_dim: self.head_dim_of(layer),
            values_in_keys: self.latent.map(|latent| latent.rank),
            index_dim: self.indexer(layer).map_or(0, |indexer| indexer.key_dims),
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
            Some(recurrent) if has_attention || self.architecture.is_recurrent_alone() => {
                recurrent.check(self.hidden_size)
            }
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
        self.check_indexed_layers()?;
        self.check_dual_chunks()?;
        self.check_alibi()?;
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
        let of_parts = self.multipliers.iter().flat_map(Multipliers::all);
        let of_parts = of_parts.chain(self.normed_stream.iter().flat_map(NormedStream::all));
        let factors = [
            self.embedding_scale,
            self.attention_scale,
            self.residual_scale,
            self.logit_divisor,
        ];
        let mut factors = of_parts.chain(factors);
        if factors.any(|factor| !(factor.is_finite() && factor > 0.0)) {
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

/// A number as it is written for people.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1_000), number % 1_000),
    }
}

/// All layers but every `every`-th; all when that is 0.
fn periodic(num_layers: usize, every: usize) -> Vec<bool> {
    (1..=num_layers.min(MOST_LAYERS))
        .map(|layer| every == 0 || !layer.is_multiple_of(every))
        .collect()
}

pub(crate) fn invalid(reason: String) -> ModelFileError {
    ModelFileError::Config { reason }
}

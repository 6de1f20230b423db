//! Encoder-decoders of T5's family (Raffel et al. 2019, arXiv 1910.10683): T5, Flan-T5, MADLAD-400, mT5, UMT5.
//!
//! A decoder's layer has three blocks: attention to the answer so far, attention to the prompt, and the feed-forward block.
//! Here it is two layers: the first attends to the answer, the second to the prompt and has the feed-forward block. A
//! sequence is the prompt's tokens, which the encoder reads, then the answer's. Both layers have one place for keys and
//! values: at the prompt's positions lie those that the second reads, behind them those that the first makes and reads.

use pyagent_kernels::elementwise::{RopeScaling, RopeStyle};
use serde_json::{Map, Value};

use super::gguf::Keys;
use super::hugging_face::{IRRELEVANT, JsonConfig, STORED, refuse_unknown};
use super::layers::halves;
use super::{Activation, Architecture, Blocks, MOST_LAYERS, ModelConfig, invalid};
use crate::gguf::GgufFile;
use crate::weights::{ModelFileError, clipped};

/// UMT5 (Chung et al. 2023, arXiv 2304.09151): mT5 whose layers have a table of distances each.
const UMT5: &str = "umt5";
const MT5: &str = "mt5";

/// What is read of a `config.json`, and what belongs to training.
const FIELDS: &str = "model_type vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads \
    relative_attention_num_buckets relative_attention_max_distance layer_norm_epsilon feed_forward_proj dense_act_fn \
    is_gated_act is_encoder_decoder tie_word_embeddings n_positions dropout_rate classifier_dropout initializer_factor \
    output_past scalable_attention scale_decoder_outputs max_position_embeddings";

/// What is read of a GGUF file's keys.
const KEYS: [&str; 13] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.relative_buckets_count",
    "attention.value_length",
    "block_count",
    "context_length",
    "decoder_block_count",
    "decoder_start_token_id",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
];

/// T5's defaults, where files do not say.
const BUCKETS: usize = 32;
const FARTHEST: usize = 128;
const EPSILON: f64 = 1e-6;
/// Tokens of a prompt in training, where a file does not say.
const TRAINED_TOKENS: usize = 512;
/// Of tokens in training, how many a prompt and its answer may have together. Positions are relative, so that longer texts
/// are read too; memory is reserved for a prompt of so many.
const TIMES_TRAINED: usize = 4;
const MOST_TRAINED: usize = 1 << 14;
const MOST_BUCKETS: usize = 1_024;
const MOST_DISTANCE: usize = 1 << 16;
/// Numbers by distance that all layers add to scores, at most: twenty times those of UMT5's largest model.
const MOST_NUMBERS: usize = 1 << 27;

/// What an encoder-decoder has besides its decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderDecoder {
    /// Layers of the encoder.
    pub num_encoder_layers: usize,
    /// Rows of a table of distances.
    pub num_buckets: usize,
    /// From this distance on, all are one bucket.
    pub farthest: usize,
    /// Whether each layer has a table of its own, not the first for all.
    pub has_own_distances: bool,
    /// The token after which an answer begins; `None` where it is the padding's.
    pub decoder_start: Option<u32>,
    /// The padding token.
    pub pad: u32,
}

/// What files of both kinds say.
struct Shape {
    hidden_size: usize,
    head_dim: usize,
    num_heads: usize,
    ffn_size: usize,
    num_layers: usize,
    trained_tokens: usize,
    norm_epsilon: f64,
    activation: Activation,
    /// Whether logits are of the stream divided by the root of its width; `None` where the tensors say.
    is_scaled: Option<bool>,
    own: EncoderDecoder,
}

impl ModelConfig {
    /// Reads the `config.json` of an encoder-decoder; `None` of another model.
    pub(super) fn encoder_decoder_of_folder(config: &Map<String, Value>) -> Option<Result<Self, ModelFileError>> {
        let json = JsonConfig(config, None);
        let name = json.text("model_type")?;
        let is_meant = Architecture::from_name(name) == Some(Architecture::T5);
        is_meant.then(|| shape_of_folder(&json, name).and_then(Shape::config))
    }

    /// Reads the metadata of a GGUF file of an encoder-decoder; `None` of another model.
    pub(super) fn encoder_decoder_of_gguf(file: &GgufFile, name: &str) -> Option<Result<Self, ModelFileError>> {
        let is_meant = name == Architecture::T5.name();
        is_meant.then(|| shape_of_gguf(&Keys { file, name }).and_then(Shape::config))
    }

    /// Whether a layer attends to the prompt.
    pub fn is_cross(&self, layer: usize) -> bool {
        self.encoder_decoder.is_some() && layer % 2 == 1
    }

    /// The layers that read an encoder-decoder's prompts.
    pub(crate) fn of_encoder(&self, own: &EncoderDecoder) -> Self {
        let count = own.num_encoder_layers;
        Self {
            num_layers: count,
            dense_layers: vec![true; count],
            blocks: vec![Blocks::Both; count],
            rotary_layers: vec![false; count],
            sliding_layers: vec![false; count],
            recurrent_layers: vec![false; count],
            encoder_decoder: None,
            ..self.clone()
        }
    }
}

fn shape_of_folder(json: &JsonConfig<'_>, name: &str) -> Result<Shape, ModelFileError> {
    if json.0.get("is_encoder_decoder") == Some(&Value::Bool(false)) {
        return Err(invalid(
            "config.json: 'is_encoder_decoder' is false; a T5 without its decoder is not implemented".to_owned(),
        ));
    }
    refuse_unknown(json.0, &[FIELDS, STORED, IRRELEVANT], "")?;
    let activation = match json.text("feed_forward_proj").unwrap_or("relu") {
        "relu" => Activation::Relu,
        "gated-gelu" => Activation::GeluTanh,
        "gated-silu" => Activation::Silu,
        other => {
            return Err(invalid(format!(
                "config.json: 'feed_forward_proj' is '{}'; expected relu, gated-gelu or gated-silu",
                clipped(other)
            )));
        }
    };
    let (num_layers, pad) = (
        json.size("num_layers")?,
        json.optional_size("pad_token_id")?.unwrap_or(0),
    );
    let token = |id: usize| u32::try_from(id).map_err(|_| invalid(format!("config.json: {id} is no token")));
    Ok(Shape {
        hidden_size: json.size("d_model")?,
        head_dim: json.size("d_kv")?,
        num_heads: json.size("num_heads")?,
        ffn_size: json.size("d_ff")?,
        num_layers: json.optional_size("num_decoder_layers")?.unwrap_or(num_layers),
        trained_tokens: json.optional_size("n_positions")?.unwrap_or(TRAINED_TOKENS),
        norm_epsilon: json.number("layer_norm_epsilon").unwrap_or(EPSILON),
        activation,
        is_scaled: Some(is_scaled(json, name)),
        own: EncoderDecoder {
            num_encoder_layers: num_layers,
            num_buckets: json.optional_size("relative_attention_num_buckets")?.unwrap_or(BUCKETS),
            farthest: json
                .optional_size("relative_attention_max_distance")?
                .unwrap_or(FARTHEST),
            has_own_distances: name == UMT5,
            decoder_start: json.optional_size("decoder_start_token_id")?.map(token).transpose()?,
            pad: token(pad)?,
        },
    })
}

/// T5's first checkpoints scale logits, whose matrix is the embedding; so says the field that ties the two, as the files of
/// later ones were saved with it, whatever became of the matrix. mT5 never scales.
fn is_scaled(json: &JsonConfig<'_>, name: &str) -> bool {
    let said = |key: &str| json.0.get(key).and_then(Value::as_bool);
    let is_tied = said("tie_word_embeddings").unwrap_or(true);
    name != MT5 && said("scale_decoder_outputs").unwrap_or(is_tied)
}

fn shape_of_gguf(keys: &Keys<'_>) -> Result<Shape, ModelFileError> {
    keys.refuse_unknown(false, &[], &KEYS)?;
    let (hidden_size, num_heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    keys.expect_size("attention.head_count_kv", num_heads)?;
    let num_layers = keys.size("block_count")?;
    let is_there = |name: &str| keys.file.find_tensor(name).is_some();
    let activation = match is_there("dec.blk.0.ffn_gate.weight") {
        true => Activation::GeluTanh,
        false => Activation::Relu,
    };
    let token = |size: Option<usize>| size.and_then(|id| u32::try_from(id).ok());
    Ok(Shape {
        hidden_size,
        head_dim: keys.head_dim(hidden_size, num_heads)?,
        num_heads,
        ffn_size: keys.size("feed_forward_length")?,
        num_layers: keys.optional_size("decoder_block_count")?.unwrap_or(num_layers),
        trained_tokens: keys.size("context_length")?,
        norm_epsilon: keys.number_or("attention.layer_norm_rms_epsilon", EPSILON)?,
        activation,
        is_scaled: None,
        own: EncoderDecoder {
            num_encoder_layers: num_layers,
            num_buckets: keys.size("attention.relative_buckets_count")?,
            farthest: FARTHEST,
            has_own_distances: is_there("dec.blk.1.attn_rel_b.weight"),
            decoder_start: token(keys.optional_size("decoder_start_token_id")?),
            pad: 0,
        },
    })
}

impl Shape {
    /// Numbers that are made of the tables of distances, which may be far more than a file has: of the encoder's both ways as
    /// far as a prompt may reach, of the decoder's up to the farthest.
    fn numbers_by_distance(&self) -> usize {
        let (encoder, decoder) = match self.own.has_own_distances {
            true => (self.own.num_encoder_layers, self.num_layers),
            false => (1, 1),
        };
        let of_head = encoder * 2 * TIMES_TRAINED * self.trained_tokens + decoder * self.own.farthest;
        of_head.saturating_mul(self.num_heads)
    }

    /// Refuses what no real model has before anything is multiplied or allocated.
    fn config(self) -> Result<ModelConfig, ModelFileError> {
        let limits = [
            ("layers of the decoder", self.num_layers, 1, MOST_LAYERS / 2),
            ("layers of the encoder", self.own.num_encoder_layers, 1, MOST_LAYERS),
            ("buckets of distances", self.own.num_buckets, 4, MOST_BUCKETS),
            (
                "the farthest distance",
                self.own.farthest,
                self.own.num_buckets,
                MOST_DISTANCE,
            ),
            ("positions of training", self.trained_tokens, 16, MOST_TRAINED),
        ];
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what}: {value}; expected {low} to {high}")));
            }
        }
        let numbers = self.numbers_by_distance();
        if numbers > MOST_NUMBERS {
            return Err(invalid(format!(
                "{numbers} numbers are added to scores by distance; expected {MOST_NUMBERS} at most"
            )));
        }
        let count = 2 * self.num_layers;
        let config = ModelConfig {
            architecture: Architecture::T5,
            vocab_size: 0,
            hidden_size: self.hidden_size,
            num_layers: count,
            num_heads: self.num_heads,
            num_kv_heads: self.num_heads,
            head_dim: self.head_dim,
            latent: None,
            indexed_layers: Vec::new(),
            gemma4: None,
            encoder_decoder: Some(self.own),
            ffn_size: self.ffn_size,
            experts: None,
            dense_layers: vec![true; count],
            blocks: halves(count),
            is_parallel: false,
            has_two_norms: false,
            is_qkv_joined: false,
            context_length: TIMES_TRAINED * self.trained_tokens,
            norm_epsilon: self.norm_epsilon as f32,
            norm_weight_offset: 0.0,
            rope_style: RopeStyle::Neox,
            rotary_dims: self.head_dim,
            rotary_layers: vec![false; count],
            rope_base: 10_000.0,
            rope_scaling: RopeScaling::None,
            local_rope_base: 10_000.0,
            local_rope_scaling: RopeScaling::None,
            sliding_window: None,
            are_windows_chunks: false,
            sliding_layers: vec![false; count],
            recurrent: None,
            recurrent_layers: vec![false; count],
            activation: self.activation,
            attention_scale: 1.0,
            has_bare_qk_norms: false,
            query_growth: None,
            dual_chunks: None,
            normed_stream: None,
            alibi_max_bias: None,
            attention_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            multipliers: None,
            logit_divisor: match self.is_scaled {
                Some(true) => (self.hidden_size as f32).sqrt(),
                _ => 1.0,
            },
            is_output_tied: None,
            has_mtp: false,
            reads_both: false,
            has_layer_norms: false,
        };
        config.check()
    }
}

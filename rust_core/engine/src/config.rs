//! What a decoder looks like, read from a model file's own description and checked at the door.
//!
//! One structure describes every family here: Llama, SmolLM, Mistral, Qwen2 and Qwen3 differ in biases, norms and the
//! layout of rotary pairs, Gemma 3 in its extra norms, its scaled embedding and its sliding-window layers.

use pyagent_kernels::attention::{KvLayout, KvType};
use pyagent_kernels::elementwise::{RopeScaling, RopeStyle};
use pyagent_kernels::pack::ROWS_PER_GROUP;

use crate::gguf::GgufFile;
use crate::weights::ModelFileError;

/// A model's architecture, as its file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM and Mistral.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on each head of q and k.
    Qwen3,
    /// Gemma 3, text only.
    Gemma3,
}

/// The names of every architecture that can be run, for messages.
pub const SUPPORTED_ARCHITECTURES: &str = "llama (Llama, SmolLM, Mistral), qwen2, qwen3, gemma3";

impl Architecture {
    /// The architecture of a GGUF's `general.architecture` or of a `config.json`'s `model_type`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "llama" | "mistral" => Some(Self::Llama),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            "gemma3" | "gemma3_text" => Some(Self::Gemma3),
            _ => None,
        }
    }

    /// The name used in messages and by `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma3 => "gemma3",
        }
    }
}

/// The gate's activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
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
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the feed-forward block.
    pub ffn_size: usize,
    /// Positions the model was made for.
    pub context_length: usize,
    /// Epsilon of every RMS norm.
    pub norm_epsilon: f32,
    /// What a norm's stored weight lacks: 1 in Gemma's safetensors, 0 elsewhere.
    pub norm_weight_offset: f32,
    /// Layout of rotary pairs.
    pub rope_style: RopeStyle,
    /// Rotary base of layers that see everything.
    pub rope_base: f64,
    /// Rotary scaling of layers that see everything.
    pub rope_scaling: RopeScaling,
    /// Rotary base of sliding-window layers.
    pub local_rope_base: f64,
    /// Positions a sliding-window layer sees, its own included.
    pub sliding_window: Option<usize>,
    /// Every n-th layer sees everything; 0 when all layers are alike.
    pub global_every: usize,
    /// The gate's activation.
    pub activation: Activation,
    /// Factor on query-key products.
    pub attention_scale: f32,
    /// Factor on embedding rows.
    pub embedding_scale: f32,
}

impl ModelConfig {
    /// How many positions layer `layer` sees, its own included; `None` means all.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let window = self.sliding_window?;
        let is_global = self.global_every > 0 && (layer + 1).is_multiple_of(self.global_every);
        (!is_global).then_some(window)
    }

    /// Values in one token's queries.
    pub fn query_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values in one token's keys, or values.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// How keys and values of one layer lie in memory.
    pub fn kv_layout(&self, dtype: KvType) -> KvLayout {
        KvLayout {
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            dtype,
        }
    }

    /// Reads a GGUF's metadata.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        let name = file.metadata_str("general.architecture")?;
        let architecture = Architecture::from_name(name).ok_or_else(|| unsupported(name))?;
        let key = |suffix: &str| format!("{name}.{suffix}");
        let size = |suffix: &str| file.metadata_u64(&key(suffix)).map(|value| value as usize);
        let optional = |suffix: &str| file.find(&key(suffix)).is_some();
        let hidden_size = size("embedding_length")?;
        let num_heads = size("attention.head_count")?;
        let num_layers = size("block_count")?;
        let head_dim = if optional("attention.key_length") {
            size("attention.key_length")?
        } else {
            hidden_size / num_heads.max(1)
        };
        let rope_base = if optional("rope.freq_base") {
            f64::from(file.metadata_f32(&key("rope.freq_base"))?)
        } else {
            10_000.0
        };
        let is_gemma = architecture == Architecture::Gemma3;
        let scaling_type = file
            .metadata_str(&key("rope.scaling.type"))
            .unwrap_or("none")
            .to_owned();
        let rope_scaling = match scaling_type.as_str() {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear {
                factor: file.metadata_f32(&key("rope.scaling.factor"))?,
            },
            other => {
                return Err(invalid(format!(
                    "rope scaling '{other}' is not supported; expected none or linear"
                )));
            }
        };
        let config = Self {
            architecture,
            vocab_size: 0,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads: if optional("attention.head_count_kv") {
                size("attention.head_count_kv")?
            } else {
                num_heads
            },
            head_dim,
            ffn_size: size("feed_forward_length")?,
            context_length: size("context_length")?,
            norm_epsilon: file.metadata_f32(&key("attention.layer_norm_rms_epsilon"))?,
            norm_weight_offset: 0.0,
            rope_style: if architecture == Architecture::Llama {
                RopeStyle::Interleaved
            } else {
                RopeStyle::Neox
            },
            rope_base,
            rope_scaling,
            local_rope_base: if is_gemma { 10_000.0 } else { rope_base },
            sliding_window: optional("attention.sliding_window")
                .then(|| size("attention.sliding_window"))
                .transpose()?,
            global_every: if is_gemma { 6 } else { 0 },
            activation: if is_gemma {
                Activation::GeluTanh
            } else {
                Activation::Silu
            },
            // The 27B model scales by its mean head width, all others by the head's.
            attention_scale: if is_gemma && num_layers == 62 {
                ((hidden_size / num_heads.max(1)) as f32).powf(-0.5)
            } else {
                (head_dim as f32).powf(-0.5)
            },
            embedding_scale: if is_gemma { (hidden_size as f32).sqrt() } else { 1.0 },
        };
        config.check()
    }

    /// Reads a Hugging Face `config.json`.
    pub fn from_hugging_face(config: &serde_json::Map<String, serde_json::Value>) -> Result<Self, ModelFileError> {
        let name = config
            .get("model_type")
            .and_then(|value| value.as_str())
            .unwrap_or("(no model_type)");
        let architecture = Architecture::from_name(name).ok_or_else(|| unsupported(name))?;
        let json = JsonConfig(config);
        let is_gemma = architecture == Architecture::Gemma3;
        let hidden_size = json.size("hidden_size")?;
        let num_heads = json.size("num_attention_heads")?;
        let head_dim = json
            .optional_size("head_dim")?
            .unwrap_or(hidden_size / num_heads.max(1));
        let query_scalar = json
            .number("query_pre_attn_scalar")
            .filter(|_| is_gemma)
            .unwrap_or(head_dim as f64);
        let rope = json.rope(if is_gemma { "full_attention" } else { "" })?;
        let local = json.rope(if is_gemma { "sliding_attention" } else { "" })?;
        let uses_window = is_gemma
            || json
                .0
                .get("use_sliding_window")
                .is_none_or(|value| value.as_bool() == Some(true));
        let activation = match json
            .0
            .get("hidden_activation")
            .or_else(|| json.0.get("hidden_act"))
            .and_then(|value| value.as_str())
        {
            Some("silu") => Activation::Silu,
            Some("gelu_pytorch_tanh") => Activation::GeluTanh,
            other => {
                return Err(invalid(format!(
                    "activation {other:?} is not supported; expected silu or gelu_pytorch_tanh"
                )));
            }
        };
        let config = Self {
            architecture,
            vocab_size: json.size("vocab_size")?,
            hidden_size,
            num_layers: json.size("num_hidden_layers")?,
            num_heads,
            num_kv_heads: json.optional_size("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim,
            ffn_size: json.size("intermediate_size")?,
            context_length: json.size("max_position_embeddings")?,
            norm_epsilon: json.number("rms_norm_eps").unwrap_or(1e-6) as f32,
            norm_weight_offset: if is_gemma { 1.0 } else { 0.0 },
            rope_style: RopeStyle::Neox,
            rope_base: rope.0,
            rope_scaling: rope.1,
            local_rope_base: if is_gemma {
                json.number("rope_local_base_freq").unwrap_or(local.0)
            } else {
                local.0
            },
            sliding_window: if uses_window {
                json.optional_size("sliding_window")?
            } else {
                None
            },
            global_every: if is_gemma { json.global_every()? } else { 0 },
            activation,
            attention_scale: (query_scalar as f32).powf(-0.5),
            embedding_scale: if is_gemma { (hidden_size as f32).sqrt() } else { 1.0 },
        };
        config.check()
    }

    /// Refuses shapes no real model has, before anything is multiplied or allocated.
    fn check(self) -> Result<Self, ModelFileError> {
        let limits = [
            ("layers", self.num_layers, 1, 1_000),
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
        if !(self.norm_epsilon.is_finite() && self.rope_base.is_finite() && self.rope_base > 0.0) {
            return Err(invalid("norm epsilon or rotary base is not a number".to_owned()));
        }
        if self.sliding_window == Some(0) {
            return Err(invalid("the sliding window is 0 positions wide".to_owned()));
        }
        Ok(self)
    }
}

fn unsupported(name: &str) -> ModelFileError {
    invalid(format!(
        "architecture '{name}' is not supported; supported are {SUPPORTED_ARCHITECTURES}"
    ))
}

pub(crate) fn invalid(reason: String) -> ModelFileError {
    ModelFileError::Config { reason }
}

/// A `config.json` with typed, checked access.
struct JsonConfig<'a>(&'a serde_json::Map<String, serde_json::Value>);

impl JsonConfig<'_> {
    fn size(&self, key: &str) -> Result<usize, ModelFileError> {
        self.optional_size(key)?
            .ok_or_else(|| invalid(format!("config.json lacks '{key}'")))
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelFileError> {
        match self.0.get(key) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|value| usize::try_from(value).ok())
                .map(Some)
                .ok_or_else(|| invalid(format!("config.json: '{key}' must be a whole number, got {value}"))),
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(serde_json::Value::as_f64)
    }

    /// Base and scaling, from `rope_parameters` (transformers 5, there also per layer type) or the older keys.
    fn rope(&self, layer_type: &str) -> Result<(f64, RopeScaling), ModelFileError> {
        let parameters = self.0.get("rope_parameters").and_then(|value| value.as_object());
        let parameters =
            parameters.and_then(|all| all.get(layer_type).and_then(|value| value.as_object()).or(Some(all)));
        let scaling = parameters.or_else(|| self.0.get("rope_scaling").and_then(|value| value.as_object()));
        let field = |key: &str| scaling.and_then(|map| map.get(key)).and_then(serde_json::Value::as_f64);
        let base = field("rope_theta")
            .or_else(|| self.number("rope_theta"))
            .unwrap_or(10_000.0);
        let kind = scaling
            .and_then(|map| map.get("rope_type").or_else(|| map.get("type")))
            .and_then(|value| value.as_str());
        let need = |key: &str| {
            field(key)
                .map(|value| value as f32)
                .ok_or_else(|| invalid(format!("rope scaling lacks '{key}'")))
        };
        let scaling = match kind {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear {
                factor: need("factor")?,
            },
            Some("llama3") => RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_position: need("original_max_position_embeddings")? as usize,
            },
            Some(other) => {
                return Err(invalid(format!(
                    "rope scaling '{other}' is not supported; expected default, linear or llama3"
                )));
            }
        };
        Ok((base, scaling))
    }

    /// The period of Gemma's full-attention layers, from `layer_types` or `sliding_window_pattern`.
    fn global_every(&self) -> Result<usize, ModelFileError> {
        let Some(types) = self.0.get("layer_types").and_then(|value| value.as_array()) else {
            return Ok(self.optional_size("sliding_window_pattern")?.unwrap_or(6));
        };
        let is_full = |value: &serde_json::Value| value.as_str() == Some("full_attention");
        let Some(first) = types.iter().position(is_full) else {
            return Ok(0);
        };
        let every = first + 1;
        let is_periodic = types
            .iter()
            .enumerate()
            .all(|(layer, kind)| is_full(kind) == (layer + 1).is_multiple_of(every));
        if is_periodic {
            Ok(every)
        } else {
            Err(invalid("config.json: 'layer_types' is not periodic".to_owned()))
        }
    }
}

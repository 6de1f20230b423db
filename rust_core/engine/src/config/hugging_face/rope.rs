//! Rotary positions in a `config.json`: `rope_parameters` (transformers 5, in Gemma by layer type) or the older keys.

use pyagent_kernels::elementwise::RopeScaling;
use serde_json::{Map, Value};

use super::{JsonConfig, refuse_unknown};
use crate::config::{Architecture, invalid};
use crate::weights::{ModelFileError, clipped};

/// What is read of every table of rotary parameters.
const ROPE: &str = "rope_theta rope_type type factor original_max_position_embeddings full_attention sliding_attention";
const LLAMA3: &str = "low_freq_factor high_freq_factor";
const YARN: &str = "beta_fast beta_slow attention_factor mscale mscale_all_dim truncate";
const LONGROPE: &str = "short_factor long_factor attention_factor";

/// YaRN's turns in the trained context, where nothing is said.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

const BASE: f64 = 10_000.0;
const GEMMA3_BASE: f64 = 1_000_000.0;
const SMOLLM3_BASE: f64 = 2_000_000.0;
const APERTUS_BASE: f64 = 12_000_000.0;
const LFM2_BASE: f64 = 1_000_000.0;
const MIXTRAL_BASE: f64 = 1_000_000.0;
const SOLAR_BASE: f64 = 1_000_000.0;
const GPT_OSS_BASE: f64 = 150_000.0;
const HELIUM_BASE: f64 = 100_000.0;
/// OLMo 3's, ERNIE 4.5's and Mellum's.
const OLMO3_BASE: f64 = 500_000.0;
const HY_V3_BASE: f64 = 11_158_840.0;
/// The share of GLM-4.5's and Bamba's heads that is rotated.
const HALF: f64 = 0.5;

impl JsonConfig<'_> {
    /// Base and scaling of layers that see everything.
    pub(super) fn global_rope(&self, architecture: Architecture) -> Result<(f64, RopeScaling), ModelFileError> {
        let of_layers = self.object("rope_parameters").and_then(|all| all.get("full_attention"));
        let parameters = of_layers.and_then(Value::as_object).or_else(|| self.rope_table());
        // Their defaults are stretched.
        let is_stretched = matches!(architecture, Architecture::GptOss | Architecture::Mistral4)
            || [super::MINISTRAL3, "cwm"].contains(&self.text("model_type").unwrap_or_default());
        if is_stretched && parameters.is_none() {
            return Err(invalid("config.json lacks 'rope_parameters'".to_owned()));
        }
        let default = match architecture {
            Architecture::Gemma3 => GEMMA3_BASE,
            Architecture::SmolLm3 => SMOLLM3_BASE,
            Architecture::Apertus => APERTUS_BASE,
            _ if architecture.has_short_convolutions() => LFM2_BASE,
            Architecture::GptOss => GPT_OSS_BASE,
            Architecture::Helium => HELIUM_BASE,
            Architecture::PhiMoe => MIXTRAL_BASE,
            Architecture::Ernie45 | Architecture::Ernie45Moe | Architecture::Mellum => OLMO3_BASE,
            _ if matches!(self.text("model_type"), Some("mixtral" | "cwm")) => MIXTRAL_BASE,
            Architecture::MiniMax01 => MIXTRAL_BASE,
            Architecture::GptNeoX => self.number("rotary_emb_base").unwrap_or(BASE),
            Architecture::HyV3 => HY_V3_BASE,
            _ if matches!(self.text("model_type"), Some("olmo3" | "flex_olmo")) => OLMO3_BASE,
            _ if self.text("model_type") == Some("solar_open") => SOLAR_BASE,
            _ => BASE,
        };
        let default = self.number("rope_theta").unwrap_or(default);
        let (base, scaling) = self.rope(parameters, default, architecture)?;
        let of_both = self.object("rope_parameters").and_then(|_| self.object("rope_scaling"));
        if of_both.is_some() && self.rope(of_both, default, architecture)?.1 != scaling {
            // transformers takes the older table, and a base only where that one or 'rope_theta' says it.
            return Err(invalid(
                "config.json: 'rope_parameters' and 'rope_scaling' say different rotary scalings; keep one of the two, \
                 with its 'rope_theta'"
                    .to_owned(),
            ));
        }
        Ok((base, scaling))
    }

    /// nanochat's base: its heads turn the other way, and no context of it is stretched.
    pub(super) fn nanochat_rope(&self) -> Result<(f64, RopeScaling), ModelFileError> {
        match self.global_rope(Architecture::NanoChat)? {
            (base, RopeScaling::None) => Ok((base, RopeScaling::Backwards)),
            _ => Err(invalid(
                "config.json: a rope scaling is not implemented for nanochat; expected default".to_owned(),
            )),
        }
    }

    /// Base and scaling of Gemma 3's and OLMo 3's sliding-window layers.
    pub(super) fn local_rope(&self, name: &str) -> Result<(f64, RopeScaling), ModelFileError> {
        let of_layers = self
            .object("rope_parameters")
            .and_then(|all| all.get("sliding_attention"));
        let of_olmo = || self.number("rope_theta").unwrap_or(OLMO3_BASE);
        let default = match name {
            "olmo3" => of_olmo(),
            _ => self.number("rope_local_base_freq").unwrap_or(BASE),
        };
        self.rope(of_layers.and_then(Value::as_object), default, Architecture::Gemma3)
    }

    /// Numbers at the start of a head that are rotated.
    pub(super) fn rotary_dims(&self, architecture: Architecture, head_dim: usize) -> usize {
        let said = ["rotary_dim", "rotary_pct"].map(|key| self.number(key));
        match (architecture, said) {
            (Architecture::MiniMaxM2 | Architecture::GptJ | Architecture::CodeGen, [Some(dims), _]) => {
                return dims as usize;
            }
            (Architecture::GptNeoX, [_, Some(share)]) => return (head_dim as f64 * share) as usize,
            _ => {}
        }
        let share = super::rotary_share(self.0).or(match architecture {
            _ if architecture.has_delta_nets() => Some(super::QWEN35_ROTARY_SHARE),
            Architecture::Glm4Moe if self.text("model_type") == Some("solar_open") => None,
            Architecture::Glm4Moe | Architecture::Bamba => Some(HALF),
            architecture => architecture.rotary_share(),
        });
        match share {
            Some(share) if architecture.is_partly_rotary() => (head_dim as f64 * share) as usize,
            _ => head_dim,
        }
    }

    /// Width of a head, where the family has no default of its own.
    fn shared_head_dim(&self) -> Result<usize, ModelFileError> {
        let share = || Ok(self.size("hidden_size")? / self.size("num_attention_heads")?.max(1));
        self.optional_size("head_dim")?.map_or_else(share, Ok)
    }

    pub(super) fn rope_table(&self) -> Option<&Map<String, Value>> {
        self.object("rope_parameters").or_else(|| self.object("rope_scaling"))
    }

    /// Base and scaling by a table of parameters.
    fn rope(
        &self,
        parameters: Option<&Map<String, Value>>,
        default_base: f64,
        architecture: Architecture,
    ) -> Result<(f64, RopeScaling), ModelFileError> {
        let Some(parameters) = parameters else {
            return Ok((default_base, RopeScaling::None));
        };
        let kind = parameters.get("rope_type").or_else(|| parameters.get("type"));
        let kind = kind.and_then(Value::as_str).unwrap_or("default");
        let of_kind = match kind {
            "llama3" => LLAMA3,
            "yarn" => YARN,
            "longrope" | "su" => LONGROPE,
            _ => "",
        };
        let partly = match architecture {
            Architecture::Llama if self.text("model_type") == Some(super::MINISTRAL3) => {
                "llama_4_scaling_beta max_position_embeddings"
            }
            Architecture::Mistral4 => "llama_4_scaling_beta max_position_embeddings partial_rotary_factor",
            _ if architecture.is_partly_rotary() => super::PARTLY_ROTARY,
            Architecture::PhiMoe => "short_mscale long_mscale",
            Architecture::HunyuanDense | Architecture::HunyuanMoe => "alpha beta_fast beta_slow mscale mscale_all_dim",
            _ => "",
        };
        refuse_unknown(parameters, &[ROPE, of_kind, partly], "rope_parameters.")?;
        let table = Table {
            parameters,
            trained: self.size("max_position_embeddings")?,
            most_positions: self.1,
            original: self.optional_size("original_max_position_embeddings")?,
        };
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear {
                factor: table.need("factor")?,
            },
            // Hunyuan's, whatever the text's length: another base.
            "dynamic" if table.number("alpha").is_some_and(|alpha| alpha != 0.0) => {
                return Ok((
                    table.stretched_base(default_base, self.shared_head_dim()?),
                    RopeScaling::None,
                ));
            }
            "dynamic" => RopeScaling::DynamicNtk {
                factor: table.need("factor")?,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: table.need("factor")?,
                low_freq_factor: table.need("low_freq_factor")?,
                high_freq_factor: table.need("high_freq_factor")?,
                original_max_position: table.need("original_max_position_embeddings")? as usize,
            },
            "yarn" => table.yarn(),
            "longrope" | "su" => table.longrope()?,
            other => {
                return Err(invalid(format!(
                    "rope scaling '{}' is not supported; expected default, linear, dynamic, llama3, yarn or longrope",
                    clipped(other)
                )));
            }
        };
        Ok((table.number("rope_theta").unwrap_or(default_base), scaling))
    }
}

/// Rotary parameters, with what other fields say of the model's context.
struct Table<'a> {
    parameters: &'a Map<String, Value>,
    /// `max_position_embeddings`.
    trained: usize,
    /// The longest text that there will be, where that is told.
    most_positions: Option<usize>,
    /// `original_max_position_embeddings` beside the table, which goes before that in it.
    original: Option<usize>,
}

impl Table<'_> {
    fn number(&self, key: &str) -> Option<f64> {
        self.parameters.get(key).and_then(Value::as_f64)
    }

    fn need(&self, key: &str) -> Result<f32, ModelFileError> {
        let value = self.number(key).map(|value| value as f32);
        value.ok_or_else(|| invalid(format!("rope scaling lacks '{key}'")))
    }

    /// The context length of the first training.
    fn original(&self) -> usize {
        let own = || {
            self.number("original_max_position_embeddings")
                .map(|value| value as usize)
        };
        self.original.or_else(own).unwrap_or(self.trained)
    }

    /// The context is so many times the original.
    fn factor(&self) -> f64 {
        let ratio = self.trained as f64 / self.original() as f64;
        self.number("factor").unwrap_or(ratio)
    }

    /// The base for a context that is `alpha` times as long, by neural tangent kernels.
    fn stretched_base(&self, default: f64, head_dim: usize) -> f64 {
        let (base, dims) = (self.number("rope_theta").unwrap_or(default), head_dim as f64);
        base * self.number("alpha").unwrap_or(1.0).powf(dims / (dims - 2.0))
    }

    fn yarn(&self) -> RopeScaling {
        let factor = self.factor();
        let sharpness = |scale: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * scale * factor.ln() + 1.0
            }
        };
        let scales = self.number("mscale").zip(self.number("mscale_all_dim"));
        let by_factor = match scales {
            Some((all, some)) if all != 0.0 && some != 0.0 => sharpness(all) / sharpness(some),
            _ => sharpness(1.0),
        };
        let turns = |key, default| self.number(key).filter(|turns| *turns != 0.0).unwrap_or(default) as f32;
        RopeScaling::Yarn {
            factor: factor as f32,
            beta_fast: turns("beta_fast", BETA_FAST),
            beta_slow: turns("beta_slow", BETA_SLOW),
            original_max_position: self.original(),
            is_truncated: self.parameters.get("truncate").and_then(Value::as_bool).unwrap_or(true),
            attention_factor: self.number("attention_factor").unwrap_or(by_factor) as f32,
        }
    }

    /// A model whose texts may be longer than the original context has the factors for long ones, whatever a text's
    /// length.
    fn longrope(&self) -> Result<RopeScaling, ModelFileError> {
        let (factor, original) = (self.factor(), self.original());
        let by_factor = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + factor.ln() / (original as f64).ln()).sqrt()
        };
        let longest = self.most_positions.map_or(self.trained, |most| most.min(self.trained));
        let key = if longest > original {
            "long_factor"
        } else {
            "short_factor"
        };
        // Phi-3.5-MoE's files have a factor on cosines and sines for each length.
        let scale = key.replace("factor", "mscale");
        let divisors = self.parameters.get(key).and_then(Value::as_array);
        let divisors = divisors.and_then(|all| all.iter().map(|one| Some(one.as_f64()? as f32)).collect());
        Ok(RopeScaling::Factors {
            divisors: divisors.ok_or_else(|| invalid(format!("rope scaling lacks '{key}', a list of numbers")))?,
            attention_factor: self
                .number(&scale)
                .or(self.number("attention_factor"))
                .unwrap_or(by_factor) as f32,
        })
    }
}

//! Which layers of a family see a window of positions, and how wide it is.

use serde_json::Value;

use super::{
    JsonConfig, MINISTRAL3, classic, cohere2_moe, families, gemma4, granite_swa, is_recurrent, jamba, latent, lfm3,
    llama4, minimax,
};
use crate::config::{invalid, periodic};
use crate::weights::ModelFileError;

/// Families without windows, besides those that a description makes and those with latent attention.
const WITHOUT_WINDOWS: [&str; 14] = [
    "llama",
    "xverse",
    "olmo2",
    "olmoe",
    "glm4_moe",
    "ernie4_5",
    "ernie4_5_moe",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "seed_oss",
    "granite",
    jamba::NAME,
    minimax::NAME,
    "solar_open",
];
const DEFAULT_WINDOW: usize = 4096;
const QWEN_MAX_WINDOW_LAYERS: usize = 28;
const GEMMA2_PERIOD: usize = 2;
const GEMMA3_PERIOD: usize = 6;
const GPT_OSS_PERIOD: usize = 2;
const GPT_OSS_WINDOW: usize = 128;
const MELLUM_WINDOW: usize = 1024;
const CWM_WINDOW: usize = 8192;
/// The periods of EXAONE 4's and OLMo 3's layers that see everything.
const EXAONE4_PERIOD: usize = 4;

impl JsonConfig<'_> {
    /// The window of those layers that have one.
    pub(super) fn sliding_window(&self, name: &str) -> Result<Option<usize>, ModelFileError> {
        let window = self.optional_size("sliding_window")?;
        let is_said = self.0.contains_key("sliding_window");
        match name {
            _ if has_none(name) => match window {
                None => Ok(None),
                Some(_) => Err(invalid(format!(
                    "config.json: 'sliding_window' is not implemented for {name}; expected null"
                ))),
            },
            "dots1" => self.dots_window(),
            "afmoe" => self.afmoe_window(),
            lfm3::NAME => self.lfm3_window(),
            "mellum" if !is_said => Ok(Some(MELLUM_WINDOW)),
            "cwm" if !is_said => Ok(Some(CWM_WINDOW)),
            _ if granite_swa::NAMES.contains(&name) && !is_said => Ok(Some(granite_swa::WINDOW)),
            "qwen3_moe" | "qwen2_moe" if self.truth("use_sliding_window") == Some(true) => Err(invalid(format!(
                "config.json: 'use_sliding_window' is not implemented for {name}"
            ))),
            "qwen3_moe" | "qwen2_moe" => Ok(None),
            llama4::NAME => self.chunk_size(),
            _ if is_recurrent(name) => Ok(None),
            "qwen2" | "qwen3" | "smollm3" if self.truth("use_sliding_window") != Some(true) => Ok(None),
            "gpt_oss" if !is_said => Ok(Some(GPT_OSS_WINDOW)),
            "starcoder2" | MINISTRAL3 | "mixtral" | "phi3" | "smollm3" | "gpt_oss" | "phimoe" => Ok(window),
            classic::GPT_NEO => Ok(window),
            gemma4::NAME => self.gemma4_window(),
            _ => Ok(if is_said { window } else { Some(DEFAULT_WINDOW) }),
        }
    }

    /// Which layers have the window: what `layer_types` says, else what the family has.
    pub(super) fn sliding_layers(&self, name: &str, rotary_layers: &[bool]) -> Result<Vec<bool>, ModelFileError> {
        let num_layers = rotary_layers.len();
        let by_family = match name {
            _ if is_recurrent(name) || families::WITHOUT_WINDOWS.contains(&name) => return Ok(vec![false; num_layers]),
            "starcoder2" => periodic(num_layers, 0),
            "cohere2" => periodic(num_layers, self.cohere_period()?),
            llama4::NAME => return self.chunked_layers(rotary_layers),
            lfm3::NAME => return self.lfm3_windows(num_layers),
            "qwen3_moe" | "qwen2_moe" | "mellum" => vec![false; num_layers],
            _ if has_none(name) => vec![false; num_layers],
            "gpt_oss" => periodic(num_layers, GPT_OSS_PERIOD),
            "olmo3" => periodic(num_layers, EXAONE4_PERIOD),
            "afmoe" => periodic(num_layers, self.afmoe_period()?),
            "exaone4" | "exaone_moe" if self.sliding_window(name)?.is_none() => vec![false; num_layers],
            "exaone4" | "exaone_moe" => periodic(num_layers, self.exaone4_period()?),
            "mistral" | "mixtral" | "phi3" | "phimoe" | "ministral" | MINISTRAL3 => periodic(num_layers, 0),
            "cwm" => granite_swa::after_the_first(num_layers),
            _ if granite_swa::NAMES.contains(&name) => granite_swa::after_the_first(num_layers),
            cohere2_moe::NAME => self.cohere2_moe_windows(num_layers)?,
            "smollm3" => rotary_layers.iter().map(|has_rotary| !has_rotary).collect(),
            "qwen2" | "qwen3" | "dots1" => {
                let first = self
                    .optional_size("max_window_layers")?
                    .unwrap_or(QWEN_MAX_WINDOW_LAYERS);
                (0..num_layers).map(|layer| layer >= first).collect()
            }
            _ => {
                let period = self.optional_size("sliding_window_pattern")?;
                let period = period.or(self.optional_size("_sliding_window_pattern")?);
                let by_family = if ["gemma2", "vaultgemma"].contains(&name) {
                    GEMMA2_PERIOD
                } else {
                    GEMMA3_PERIOD
                };
                periodic(num_layers, period.unwrap_or(by_family))
            }
        };
        let Some(types) = self.0.get("layer_types").filter(|value| !value.is_null()) else {
            return Ok(by_family);
        };
        let kind = |value: &Value| match value.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            Some("indexed_attention") if latent::has_indexer(name) => Some(false),
            _ => None,
        };
        let layers: Option<Vec<bool>> = types.as_array().and_then(|types| types.iter().map(kind).collect());
        let is_free = matches!(
            name,
            "qwen2"
                | "qwen3"
                | "smollm3"
                | "gemma2"
                | "gemma3"
                | "gemma3_text"
                | gemma4::NAME
                | "gpt_oss"
                | "olmo3"
                | "exaone4"
                | "exaone_moe"
                | "afmoe"
                | "cohere2"
                | "dots1"
                | "mellum"
                | classic::GPT_NEO
                | "ministral"
                | "cwm"
                | "vaultgemma"
                | cohere2_moe::NAME
        ) || granite_swa::NAMES.contains(&name);
        match layers {
            Some(layers) if is_free || layers == by_family || self.sliding_window(name)?.is_none() => Ok(layers),
            _ => Err(invalid(format!(
                "config.json: 'layer_types' is not implemented as it is for {name}; expected full_attention and \
                 sliding_attention as the family has them"
            ))),
        }
    }

    /// Of how many layers EXAONE 4's last one sees everything: a number, or one letter for each, as in `LLLG`.
    fn exaone4_period(&self) -> Result<usize, ModelFileError> {
        match self.text("sliding_window_pattern") {
            None => Ok(self.optional_size("sliding_window_pattern")?.unwrap_or(EXAONE4_PERIOD)),
            Some(letters) if letters.find('G') == letters.len().checked_sub(1) && letters.trim_matches('L') == "G" => {
                Ok(letters.len())
            }
            Some(_) => Err(invalid(
                "config.json: 'sliding_window_pattern' must be a number, or as LLLG, with one G at its end".to_owned(),
            )),
        }
    }
}

/// Whether no layer of a family has a window.
fn has_none(name: &str) -> bool {
    let lists = [&WITHOUT_WINDOWS[..], &families::WITHOUT_WINDOWS, &latent::FAMILIES];
    lists.iter().any(|list| list.contains(&name))
}

//! Gemma 4's `config.json`: the text part of a model of pictures and sound, or text alone.

use pyagent_kernels::elementwise::RopeScaling;
use serde_json::{Map, Value};

use super::{JsonConfig, refuse_unknown};
use crate::config::{Architecture, Gemma4, invalid};
use crate::weights::{ModelFileError, clipped};

/// The text part's own name.
pub(super) const NAME: &str = "gemma4_text";

/// What is read of it besides; a row of per-layer embeddings for each token of the vocabulary is what their table must have.
pub(super) const FIELDS: &str = "global_head_dim num_global_key_value_heads per_layer_config attention_k_eq_v \
    num_kv_shared_layers use_double_wide_mlp hidden_size_per_layer_input vocab_size_per_layer_input enable_moe_block \
    final_logit_softcapping use_bidirectional_attention";

/// What tells of pictures and sound.
pub(in crate::config) const OF_PICTURES: &str = "vision_config audio_config boi_token_id eoi_token_id image_token_id video_token_id boa_token_id \
    eoa_token_id eoa_token_index audio_token_id vision_soft_tokens_per_image";

/// What a layer may have of its own.
const OF_LAYER: &str = "head_dim num_key_value_heads";

const GLOBAL_HEAD_DIM: usize = 512;
const MOST_HEAD_DIM: usize = 4_096;
const PER_LAYER_SIZE: usize = 256;
const WINDOW: usize = 512;
const GLOBAL_BASE: f64 = 1_000_000.0;
const GLOBAL_SHARE: f64 = 0.25;
/// What divides a frequency that is not to turn, as in GGUF files.
const STANDING: f32 = 1e30;

/// Gemma 4 12B, whose pictures and sound have no towers: its name, and its text part's. Its defaults are others.
const UNIFIED: &str = "gemma4_unified";
const UNIFIED_TEXT: &str = "gemma4_unified_text";
const UNIFIED_WINDOW: usize = 1024;

/// The configuration of the text part of a model of pictures and sound; `None` for other models.
pub(super) fn text_part(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    let name = config.get("model_type").and_then(Value::as_str);
    if name == Some(UNIFIED_TEXT) {
        return Ok(Some(of_unified(config.clone())));
    }
    if name != Some(UNIFIED) && name != Some(Architecture::Gemma4.name()) {
        return Ok(None);
    }
    let Some(text) = config.get("text_config").and_then(Value::as_object) else {
        return Err(invalid("config.json lacks 'text_config'".to_owned()));
    };
    let is_of_text = |name: &str| name != "text_config" && OF_PICTURES.split_whitespace().all(|other| other != name);
    let mut all = config.clone();
    all.retain(|name, _| is_of_text(name));
    all.extend(text.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.insert("model_type".to_owned(), NAME.into());
    Ok(Some(if name == Some(UNIFIED) { of_unified(all) } else { all }))
}

/// What Gemma 4 12B leaves out.
fn of_unified(mut text: Map<String, Value>) -> Map<String, Value> {
    text.insert("model_type".to_owned(), NAME.into());
    for (key, value) in [("sliding_window", UNIFIED_WINDOW), ("hidden_size_per_layer_input", 0)] {
        text.entry(key).or_insert_with(|| value.into());
    }
    text
}

impl JsonConfig<'_> {
    /// What the family's layers have of their own; `None` of other families.
    pub(super) fn gemma4(
        &self,
        architecture: Architecture,
        (head_dim, num_kv_heads): (usize, usize),
        sliding_layers: &[bool],
    ) -> Result<Option<Gemma4>, ModelFileError> {
        if architecture != Architecture::Gemma4 {
            return Ok(None);
        }
        if self.text("use_bidirectional_attention") == Some("all") {
            return Err(invalid(
                "config.json: 'use_bidirectional_attention' all is not implemented; expected null or vision".to_owned(),
            ));
        }
        let has_keys_for_values = self.truth("attention_k_eq_v") == Some(true);
        let of_global = self.optional_size("num_global_key_value_heads")?;
        let of_global = of_global.filter(|_| has_keys_for_values).unwrap_or(num_kv_heads);
        let global = self.optional_size("global_head_dim")?.unwrap_or(GLOBAL_HEAD_DIM);
        let (global_head_dim, global_kv_heads) = match self.object("per_layer_config") {
            None => (global, of_global),
            Some(layers) => heads_of_layers(layers, (head_dim, num_kv_heads), sliding_layers)?,
        };
        let wide_size = match self.truth("use_double_wide_mlp") {
            Some(true) => self.size("intermediate_size")?.saturating_mul(2),
            _ => 0,
        };
        Ok(Some(Gemma4 {
            global_kv_heads,
            global_head_dim,
            num_kv_shared_layers: self.optional_size("num_kv_shared_layers")?.unwrap_or(0),
            makes_no_kv: false,
            wide_size,
            has_keys_for_values,
            per_layer_size: self.optional_size("hidden_size_per_layer_input")?.unwrap_or(
                if self.0.contains_key("hidden_size_per_layer_input") {
                    0
                } else {
                    PER_LAYER_SIZE
                },
            ),
        }))
    }

    /// The window's width, which has a default of its own.
    pub(super) fn gemma4_window(&self) -> Result<Option<usize>, ModelFileError> {
        Ok(Some(self.optional_size("sliding_window")?.unwrap_or(WINDOW)))
    }

    /// The cap of logits, where there is one.
    pub(super) fn gemma4_cap(&self) -> Result<Option<f32>, ModelFileError> {
        match self.0.contains_key("final_logit_softcapping") {
            true => self.cap(true, "final_logit_softcapping", 0.0),
            false => Ok(None),
        }
    }

    /// Base and scaling of layers that see everything: of a head's frequencies the first turn, as many as its share is; the
    /// others stand still.
    pub(super) fn gemma4_rope(&self, head_dim: usize) -> Result<(f64, RopeScaling), ModelFileError> {
        self.proportional_rope(head_dim, GLOBAL_SHARE)
    }

    /// The same of a family whose share is this where the file does not say.
    pub(super) fn proportional_rope(
        &self,
        head_dim: usize,
        default_share: f64,
    ) -> Result<(f64, RopeScaling), ModelFileError> {
        if head_dim > MOST_HEAD_DIM {
            return Err(invalid(format!(
                "head size of global layers: {head_dim}; expected {MOST_HEAD_DIM} at most"
            )));
        }
        let all = self.rope_table().filter(|all| !all.is_empty());
        if let Some(all) = all {
            refuse_unknown(all, &["full_attention sliding_attention"], "rope_parameters.")?;
        }
        let parameters = all.and_then(|all| all.get("full_attention"));
        let of_family = Map::from_iter([
            ("rope_type".to_owned(), "proportional".into()),
            ("partial_rotary_factor".to_owned(), default_share.into()),
        ]);
        let parameters = parameters.and_then(Value::as_object).unwrap_or(&of_family);
        refuse_unknown(
            parameters,
            &["rope_type rope_theta factor partial_rotary_factor"],
            "rope_parameters.full_attention.",
        )?;
        let number = |key: &str, default: f64| parameters.get(key).and_then(Value::as_f64).unwrap_or(default);
        let base = number("rope_theta", GLOBAL_BASE);
        let (share, factor) = (number("partial_rotary_factor", 1.0), number("factor", 1.0));
        match parameters.get("rope_type").and_then(Value::as_str) {
            None | Some("default") if share == 1.0 && factor == 1.0 => Ok((base, RopeScaling::None)),
            Some("proportional") if (0.0..=1.0).contains(&share) => {
                let turning = (share * head_dim as f64 / 2.0).floor() as usize;
                let divisor = |index| if index < turning { factor as f32 } else { STANDING };
                let divisors = (0..head_dim / 2).map(divisor).collect();
                Ok((
                    base,
                    RopeScaling::Factors {
                        divisors,
                        attention_factor: 1.0,
                    },
                ))
            }
            kind => Err(invalid(format!(
                "config.json: the rope scaling '{}' with 'partial_rotary_factor' {share} and 'factor' {factor} is not \
                 implemented for layers that see everything; expected proportional, a share of 0 to 1",
                clipped(kind.unwrap_or("default"))
            ))),
        }
    }
}

/// Width of heads and key-value heads of layers that see everything, by what `per_layer_config` says of each.
fn heads_of_layers(
    layers: &Map<String, Value>,
    (head_dim, num_kv_heads): (usize, usize),
    sliding_layers: &[bool],
) -> Result<(usize, usize), ModelFileError> {
    let mut of_global = None;
    for (layer, is_sliding) in sliding_layers.iter().enumerate() {
        let own = layers.get(&layer.to_string()).and_then(Value::as_object);
        let empty = Map::new();
        let own = own.unwrap_or(&empty);
        let place = format!("per_layer_config.{layer}.");
        refuse_unknown(own, &[OF_LAYER], &place)?;
        let size = |key: &str, default: usize| {
            JsonConfig(own, None)
                .optional_size(key)
                .map(|size| size.unwrap_or(default))
        };
        let heads = (size("head_dim", head_dim)?, size("num_key_value_heads", num_kv_heads)?);
        let expected = if *is_sliding {
            (head_dim, num_kv_heads)
        } else {
            *of_global.get_or_insert(heads)
        };
        if heads != expected {
            return Err(invalid(format!(
                "config.json: 'per_layer_config' has heads of {} numbers and {} key/value heads for layer {layer}; expected \
                 {} and {}, as other layers of its kind have",
                heads.0, heads.1, expected.0, expected.1
            )));
        }
    }
    Ok(of_global.unwrap_or((head_dim, num_kv_heads)))
}

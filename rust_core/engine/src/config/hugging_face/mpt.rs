//! MPT in a `config.json`: its own names of sizes, and `ALiBi` in a table of attention's.

use serde_json::{Map, Value};

use super::{IRRELEVANT, JsonConfig, kinds, refuse_unknown};
use crate::config::{Architecture, invalid};
use crate::weights::{ModelFileError, clipped};

pub(super) const NAME: &str = "mpt";
/// What is read besides; what its files say that is so in all of them.
pub(super) const FIELDS: &str = "layer_norm_eps alibi_bias_max embedding_fraction init_device learned_pos_emb no_bias norm_type \
    emb_pdrop verbose";
/// What is read of attention's table, or changes no number; prefixes and sequences apart are of training.
const OF_ATTENTION: &str = "model_type attn_type attn_impl attn_pdrop alibi alibi_bias_max";
/// What transformers takes where nothing is said.
const MAX_BIAS: f64 = 8.0;
const EXPANSION: usize = 4;
/// Sizes, by MPT's names and by the others'.
const SIZES: [(&str, &str); 5] = [
    ("d_model", "hidden_size"),
    ("n_heads", "num_attention_heads"),
    ("n_layers", "num_hidden_layers"),
    ("max_seq_len", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
];

/// The configuration under the names that others have; `None` for other models. An error for attention that is not
/// implemented.
pub(super) fn completed(config: &Map<String, Value>) -> Result<Option<Map<String, Value>>, ModelFileError> {
    let json = JsonConfig(config, None);
    if json.text("model_type") != Some(NAME) {
        return Ok(None);
    }
    kinds::refuse_others(config, "")?;
    let mut completed = config.clone();
    for (own, others) in SIZES {
        if let Some(value) = completed.remove(own) {
            completed.insert(others.to_owned(), value);
        }
    }
    completed.remove("expansion_ratio");
    completed.remove("attn_config");
    let expansion = json.optional_size("expansion_ratio")?.unwrap_or(EXPANSION);
    let ffn_size = json.size("d_model")?.saturating_mul(expansion);
    let attention = json.object("attn_config");
    let max_bias = attention.map_or(Ok(MAX_BIAS), alibi)?;
    match json.text("norm_type") {
        None | Some("layernorm" | "low_precision_layernorm") => {}
        Some(other) => {
            let other = clipped(other);
            return Err(invalid(format!(
                "config.json: 'norm_type' '{other}' is not implemented for mpt"
            )));
        }
    }
    completed.insert("num_key_value_heads".to_owned(), json.size("n_heads")?.into());
    completed.insert("intermediate_size".to_owned(), ffn_size.into());
    completed.insert("hidden_act".to_owned(), "gelu".into());
    completed.insert("alibi_bias_max".to_owned(), max_bias.into());
    Ok(Some(completed))
}

/// The greatest exponent that attention's table says; what else it says must change nothing.
fn alibi(attention: &Map<String, Value>) -> Result<f64, ModelFileError> {
    if attention.get("alibi") == Some(&Value::Bool(false)) {
        return Err(invalid(
            "config.json: 'attn_config.alibi' is false, which is not implemented for mpt; expected true".to_owned(),
        ));
    }
    let json = JsonConfig(attention, None);
    json.expect_text("attn_type", &["multihead_attention"])?;
    let mut said = attention.clone();
    said.retain(|_, value| *value != Value::Bool(false));
    refuse_unknown(&said, &[OF_ATTENTION, IRRELEVANT], "attn_config.")?;
    match attention.get("alibi_bias_max") {
        None | Some(Value::Null) => Ok(MAX_BIAS),
        Some(value) => value
            .as_f64()
            .ok_or_else(|| invalid("config.json: 'attn_config.alibi_bias_max' must be a number".to_owned())),
    }
}

impl JsonConfig<'_> {
    /// The greatest exponent of `ALiBi`'s slopes, of a family that has them.
    pub(super) fn alibi_max_bias(&self, architecture: Architecture) -> Option<f32> {
        let said = self.number("alibi_bias_max").map(|max_bias| max_bias as f32);
        said.filter(|_| {
            matches!(
                architecture,
                Architecture::Mpt | Architecture::Falcon | Architecture::Bloom
            )
        })
    }
}

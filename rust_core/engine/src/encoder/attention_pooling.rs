//! Models that pool by attention with weights of their own: what their files say, and which body lies in them.
//!
//! Of NV-Embed (Lee et al. 2024, arXiv 2405.17428) each token attends to learned vectors, and the tokens' mean follows
//! (`latents.rs`). Of CodeFuse's (CodeFuse-CGE; C2LLM, arXiv 2512.21332) a learned query attends to all tokens, which is
//! Set Transformer's pooling (Lee et al. 2019, section 3.2; `query_pooling.rs`). What differs is refused by name.

use std::path::Path;

use serde_json::{Map, Value};

use super::latents::{self, Latents};
use super::query_pooling::{self, QueryPooling};
use super::steps::{MODULES, Pooling, Steps};
use super::weights::expect;
use crate::config::hugging_face::{IRRELEVANT, JsonConfig};
use crate::config::invalid;
use crate::safetensors::read_json;
use crate::weights::{ModelFile, ModelFileError, clipped};

/// NV-Embed's `model_type`, and the body's; the body is a Mistral whose tokens see the whole text.
const NV_EMBED: &str = "nvembed";
const NV_EMBED_BODY: &str = "bidir_mistral";
/// NV-Embed's other fields.
const NV_EMBED_FIELDS: &str = "model_type latent_attention_config text_config hidden_size";
/// CodeFuse's fields; all others are the body's, a Qwen 2.
const QUERY_FIELDS: &str = "model_type embedding_method inf_seq_length padding_side keep_max_layer compress_dim \
    pma_num_heads pma_ln pma_norm pma_norm_mode tokenizer_name_or_path";

/// What attends when a text is pooled.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolingAttention {
    /// Each token, to learned vectors.
    Latents(Latents),
    /// A learned query, to all tokens.
    Query(QueryPooling),
}

impl PoolingAttention {
    /// Refuses tensors that are missing, of another shape or not known, over vectors of so many numbers.
    pub(super) fn check(&self, file: &ModelFile, hidden: usize) -> Result<(), ModelFileError> {
        let (begin, tensors) = match self {
            Self::Latents(latents) => (latents::BEGIN, latents.tensors(hidden)),
            Self::Query(query) => {
                query.check(hidden)?;
                (query_pooling::BEGIN, query.tensors(hidden))
            }
        };
        for (name, rows, cols) in &tensors {
            expect(&file.tensor(name)?, *rows, *cols)?;
        }
        let is_known = |name: &str| !name.starts_with(begin) || tensors.iter().any(|(known, ..)| known == name);
        match file.tensor_names().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => Err(invalid(format!(
                "there is a tensor '{}', which is not implemented for models that pool by attention",
                clipped(name)
            ))),
        }
    }
}

/// A model that pools by attention, as its `config.json` says.
pub(super) struct AttentionPooled {
    pub(super) attention: PoolingAttention,
    /// The body's configuration.
    pub(super) body: Map<String, Value>,
    pub(super) is_causal: bool,
    /// Tokens of a text at most, where the file says so.
    pub(super) max_tokens: Option<usize>,
    /// A token that stands behind every text.
    pub(super) closing_token: Option<u32>,
}

/// Whether a `config.json` is of a model that pools by attention.
pub(super) fn is_attention_pooled(config: &Map<String, Value>) -> bool {
    let json = JsonConfig(config, None);
    json.text("model_type") == Some(NV_EMBED) || json.text("embedding_method") == Some("pma")
}

impl AttentionPooled {
    /// Reads what `config.json` says; None for any other model.
    pub(super) fn of(config: &Map<String, Value>) -> Result<Option<Self>, ModelFileError> {
        if !is_attention_pooled(config) {
            return Ok(None);
        }
        let json = JsonConfig(config, None);
        if json.text("model_type") == Some(NV_EMBED) {
            return Self::nv_embed(config).map(Some);
        }
        let mut body = config.clone();
        for field in QUERY_FIELDS.split_whitespace() {
            body.remove(field);
        }
        body.insert("model_type".to_owned(), "qwen2".into());
        let layer = config.get("keep_max_layer").unwrap_or(&Value::Null);
        if !(layer.is_null() || layer.as_i64() == Some(-1) || Some(layer) == config.get("num_hidden_layers")) {
            return Err(invalid(format!(
                "config.json: 'keep_max_layer' is {}, which is not implemented; expected the last layer",
                clipped(&layer.to_string())
            )));
        }
        Ok(Some(Self {
            attention: PoolingAttention::Query(QueryPooling::of(config)?),
            body,
            is_causal: true,
            max_tokens: json.optional_size("inf_seq_length")?,
            closing_token: None,
        }))
    }

    fn nv_embed(config: &Map<String, Value>) -> Result<Self, ModelFileError> {
        let part = |key: &str| {
            let found = config.get(key).and_then(Value::as_object);
            found.ok_or_else(|| invalid(format!("config.json lacks '{key}', a table")))
        };
        let expected: [(&str, Value); 4] = [
            ("mask_type", "b".into()),
            ("padding_side", "right".into()),
            ("is_mask_instruction", true.into()),
            ("add_pad_token", true.into()),
        ];
        for (key, value) in config {
            let is_read = |all: &str| all.split_whitespace().any(|name| name == key);
            let is_expected = |(name, wanted): &(&str, Value)| name == key && wanted == value;
            let is_closing = key == "add_eos" && value.is_boolean();
            if !(is_read(NV_EMBED_FIELDS) || is_read(IRRELEVANT) || is_closing || expected.iter().any(is_expected)) {
                return Err(invalid(format!(
                    "config.json: '{}' is {}, which is not implemented for NV-Embed",
                    clipped(key),
                    clipped(&value.to_string())
                )));
            }
        }
        let mut body = part("text_config")?.clone();
        let kind = body.insert("model_type".to_owned(), "mistral".into());
        if kind.as_ref().and_then(Value::as_str) != Some(NV_EMBED_BODY) {
            let kind = clipped(&kind.unwrap_or_default().to_string());
            return Err(invalid(format!(
                "config.json: 'text_config.model_type' is {kind}; expected {NV_EMBED_BODY}"
            )));
        }
        // Its code masks padding alone, whatever window the file names.
        body.remove("sliding_window");
        let closing = JsonConfig(&body, None).optional_size("eos_token_id")?;
        let closes = config.get("add_eos") != Some(&Value::Bool(false));
        let closing_token = closing.and_then(|token| u32::try_from(token).ok()).filter(|_| closes);
        if closes && closing_token.is_none() {
            return Err(invalid(
                "config.json: 'text_config.eos_token_id' is missing, which is to stand behind every text".to_owned(),
            ));
        }
        let hidden = JsonConfig(&body, None).size("hidden_size")?;
        Ok(Self {
            attention: PoolingAttention::Latents(Latents::of(part("latent_attention_config")?, hidden)?),
            body,
            is_causal: false,
            max_tokens: None,
            closing_token,
        })
    }

    /// What sentence-transformers writes beside the model.
    pub(super) fn steps(&self, folder: &Path, config: &Map<String, Value>) -> Result<Steps, ModelFileError> {
        match self.attention {
            PoolingAttention::Latents(_) => Steps::of(folder),
            PoolingAttention::Query(_) => {
                let modules = folder.join(MODULES);
                if modules.exists() {
                    let steps = read_json(&modules)?;
                    refuse_others(&steps, config).map_err(|error| error.in_file(&modules))?;
                }
                Ok(Steps {
                    pooling: vec![Pooling::Attention],
                    dense: Vec::new(),
                    max_tokens: self.max_tokens,
                    is_late: false,
                })
            }
        }
    }
}

/// Refuses steps beside the model, which gives a text's vector.
fn refuse_others(modules: &Value, config: &Map<String, Value>) -> Result<(), ModelFileError> {
    let own = config.get("architectures").and_then(Value::as_array);
    let own: Vec<&str> = own.into_iter().flatten().filter_map(Value::as_str).collect();
    for step in modules.as_array().map(Vec::as_slice).unwrap_or_default() {
        let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
        let last = kind.rsplit('.').next().unwrap_or_default();
        if !matches!(last, "Transformer" | "Normalize") && !own.contains(&last) {
            return Err(invalid(format!(
                "the step '{}' is not implemented for a model that pools by attention itself",
                clipped(kind)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: &[(&str, &str)]) -> Result<Option<AttentionPooled>, ModelFileError> {
        let text = r#"{"model_type": "nvembed", "add_eos": true, "mask_type": "b", "latent_attention_config": {},
            "text_config": {"model_type": "bidir_mistral", "hidden_size": 4096, "eos_token_id": 2, "sliding_window": 4096}}"#;
        let mut config: Map<String, Value> = serde_json::from_str(text).unwrap();
        for (key, value) in changes {
            config.insert((*key).to_owned(), serde_json::from_str(value).unwrap());
        }
        AttentionPooled::of(&config)
    }

    /// NV-Embed's body is a Mistral without a window, whose texts end with a token.
    #[test]
    fn the_body_and_what_closes_a_text_are_read() {
        let found = read(&[]).unwrap().unwrap();
        assert_eq!(found.closing_token, Some(2));
        assert_eq!(found.body["model_type"], "mistral");
        assert!(!found.body.contains_key("sliding_window") && !found.is_causal);
        assert_eq!(read(&[("add_eos", "false")]).unwrap().unwrap().closing_token, None);
        assert!(AttentionPooled::of(&Map::new()).unwrap().is_none());
    }

    /// What is not implemented is refused by its name.
    #[test]
    fn what_differs_is_refused_by_name() {
        let why = |key, value| read(&[(key, value)]).err().unwrap().to_string();
        assert!(why("mask_type", "\"c\"").contains("'mask_type' is \"c\""));
        assert!(why("colour", "1").contains("'colour'"));
        assert!(why("text_config", r#"{"model_type": "llama"}"#).contains("bidir_mistral"));
        assert!(why("text_config", r#"{"model_type": "bidir_mistral"}"#).contains("eos_token_id"));
        assert!(why("latent_attention_config", r#"{"latent_dim": 8}"#).contains("latent_dim"));
        assert!(why("latent_attention_config", r#"{"num_cross_heads": 0}"#).contains("num_cross_heads"));
        let many = r#"{"num_cross_heads": 64, "num_latents_value": 513}"#;
        assert!(why("latent_attention_config", many).contains("expected 512 at most, of 64 heads"));
    }
}

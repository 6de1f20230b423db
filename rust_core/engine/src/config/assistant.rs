//! An assistant of Gemma 4, by its `config.json`: a small decoder that drafts for a larger one. Its layers make no keys and
//! values, they read those of the model that it drafts for; its input is that model's embedding of a token beside that
//! model's output for the token before (transformers' `gemma4_assistant`).

use pyagent_kernels::pack::ROWS_PER_GROUP;
use serde_json::{Map, Value};

use super::hugging_face::{IRRELEVANT, OF_PICTURES, STORED, refuse_unknown};
use super::{Architecture, ModelConfig, invalid};
use crate::gguf::GgufFile;
use crate::weights::ModelFileError;

/// What `config.json` calls the family, and that of Gemma 4 12B; and what GGUF files do.
const NAMES: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];
pub(crate) const GGUF_NAME: &str = "gemma4-assistant";
/// What is read of it.
const FIELDS: &str = "model_type text_config backbone_hidden_size use_ordered_embeddings num_centroids \
    centroid_intermediate_top_k tie_word_embeddings";
/// The defaults of transformers.
const BACKBONE: usize = 1536;
const CENTROIDS: [usize; 2] = [2048, 32];
/// Width of the other model's stream, and clusters, at most.
const MOST: usize = 1 << 20;

/// A vocabulary in clusters of equal size, of which a draft looks at a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clusters {
    /// How many there are.
    pub count: usize,
    /// How many are looked at.
    pub num_chosen: usize,
}

/// An assistant's shape.
#[derive(Clone, Debug)]
pub struct AssistantConfig {
    /// The layers, none of which makes keys and values, and the vocabulary.
    pub decoder: ModelConfig,
    /// Width of the stream of the model that it drafts for.
    pub backbone_size: usize,
    /// How its vocabulary is divided, where it is.
    pub clusters: Option<Clusters>,
}

/// Whether a `config.json` is an assistant's.
pub(crate) fn is_assistant(config: &Map<String, Value>) -> bool {
    config
        .get("model_type")
        .and_then(Value::as_str)
        .is_some_and(|name| NAMES.contains(&name))
}

/// Why an assistant is not loaded as a model.
pub(crate) fn no_model() -> ModelFileError {
    invalid(
        "an assistant of Gemma 4 answers nothing by itself; name it as a draft model of the model that it drafts for: \
         engine.speculative.model = {MODEL = ASSISTANT}"
            .to_owned(),
    )
}

impl AssistantConfig {
    /// Reads an assistant's `config.json`.
    pub(crate) fn from_hugging_face(config: &Map<String, Value>) -> Result<Self, ModelFileError> {
        refuse_unknown(config, &[FIELDS, STORED, IRRELEVANT, OF_PICTURES], "")?;
        let mut decoder = ModelConfig::from_hugging_face(&text_part(config)?, None)?;
        decoder.logit_softcap = None; // drafts are taken before the cap
        let odd = [
            ("hidden_size_per_layer_input", decoder.per_layer_size() > 0),
            ("enable_moe_block", decoder.experts.is_some()),
            (
                "use_double_wide_mlp",
                decoder.gemma4.is_some_and(|gemma4| gemma4.wide_size > 0),
            ),
        ];
        if let Some((field, _)) = odd.iter().find(|(_, is_there)| *is_there) {
            return Err(invalid(format!(
                "config.json: 'text_config.{field}' is not implemented for assistants; expected none"
            )));
        }
        if let Some(gemma4) = &mut decoder.gemma4 {
            gemma4.makes_no_kv = true;
        }
        let is_ordered = config.get("use_ordered_embeddings") == Some(&Value::Bool(true));
        Ok(Self {
            decoder,
            backbone_size: size(config, "backbone_hidden_size", BACKBONE)?,
            clusters: is_ordered.then(|| clusters(config)).transpose()?,
        })
    }

    /// Reads a GGUF file's metadata. Files of llama.cpp's converter do not say how many clusters are looked at, so all tokens are.
    pub(crate) fn from_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        let mut decoder = ModelConfig::of_assistant_gguf(file)?;
        decoder.logit_softcap = None;
        let backbone_size = file.metadata_u64(&format!("{GGUF_NAME}.embedding_length_out"))?;
        let backbone_size = usize::try_from(backbone_size)
            .ok()
            .filter(|size| (1..=MOST).contains(size));
        Ok(Self {
            decoder,
            backbone_size: backbone_size
                .ok_or_else(|| invalid(format!("'{GGUF_NAME}.embedding_length_out' is not 1 to {MOST}")))?,
            clusters: None,
        })
    }

    /// Of each layer, the one of `target` whose keys and values it reads: the last of its kind that makes some. An error
    /// where this does not draft for such a model.
    pub(crate) fn layers_in(&self, target: &ModelConfig) -> Result<Vec<usize>, ModelFileError> {
        let own = &self.decoder;
        if target.architecture != Architecture::Gemma4 {
            let got = target.architecture.name();
            return Err(invalid(format!("it drafts for models of Gemma 4; the model is {got}")));
        }
        let sizes = [
            ("hidden size", self.backbone_size, target.hidden_size),
            ("vocabulary", own.vocab_size, target.vocab_size),
        ];
        if let Some((what, expected, got)) = sizes.into_iter().find(|(_, expected, got)| expected != got) {
            return Err(unfit(&format!("models of {what}"), expected, got));
        }
        (0..own.num_layers).map(|layer| self.layer_in(layer, target)).collect()
    }

    fn layer_in(&self, layer: usize, target: &ModelConfig) -> Result<usize, ModelFileError> {
        let own = &self.decoder;
        let is_sliding = own.sliding_layers[layer];
        let kind = if is_sliding {
            "layers with windows"
        } else {
            "layers that see everything"
        };
        let Some(source) = target.last_kv_layer(is_sliding) else {
            return Err(invalid(format!(
                "it reads keys and values of {kind}, and the model has none"
            )));
        };
        let shape = |config: &ModelConfig, layer| {
            (
                config.kv_heads_of(layer),
                config.head_dim_of(layer),
                config.window(layer),
            )
        };
        let (expected, got) = (shape(own, layer), shape(target, source));
        if expected != got {
            let told = |(heads, dim, window): (usize, usize, Option<usize>)| {
                let seen = window.map_or(String::new(), |window| format!(" in windows of {window}"));
                format!("{heads} key/value heads of {dim} numbers{seen}")
            };
            return Err(unfit(&format!("models whose {kind} have"), told(expected), told(got)));
        }
        Ok(source)
    }
}

fn unfit(what: &str, expected: impl std::fmt::Display, got: impl std::fmt::Display) -> ModelFileError {
    invalid(format!("it drafts for {what} {expected}; the model has {got}"))
}

/// The configuration of its layers, as that of a decoder.
fn text_part(config: &Map<String, Value>) -> Result<Map<String, Value>, ModelFileError> {
    let Some(text) = config.get("text_config").and_then(Value::as_object) else {
        return Err(invalid("config.json lacks 'text_config'".to_owned()));
    };
    let mut text = text.clone();
    let count = text.get("num_hidden_layers").cloned();
    let shared = text.insert("num_kv_shared_layers".to_owned(), 0.into());
    if shared
        .as_ref()
        .is_some_and(|shared| !shared.is_null() && *shared != 0 && Some(shared) != count.as_ref())
    {
        return Err(invalid(
            "config.json: 'text_config.num_kv_shared_layers' must be all layers of an assistant".to_owned(),
        ));
    }
    if let Some(is_tied) = config.get("tie_word_embeddings") {
        text.insert("tie_word_embeddings".to_owned(), is_tied.clone());
    }
    Ok(text)
}

fn clusters(config: &Map<String, Value>) -> Result<Clusters, ModelFileError> {
    let count = size(config, "num_centroids", CENTROIDS[0])?;
    let num_chosen = size(config, "centroid_intermediate_top_k", CENTROIDS[1])?;
    if num_chosen > count {
        return Err(invalid(format!(
            "config.json: 'centroid_intermediate_top_k' is {num_chosen}; expected at most the {count} centroids"
        )));
    }
    Ok(Clusters { count, num_chosen })
}

impl Clusters {
    /// Tokens of a cluster in a vocabulary of so many; an error where it cannot be divided so.
    pub(crate) fn size_in(self, vocab_size: usize) -> Result<usize, ModelFileError> {
        let size = vocab_size / self.count;
        if size == 0 || !vocab_size.is_multiple_of(self.count) || !size.is_multiple_of(ROWS_PER_GROUP) {
            return Err(invalid(format!(
                "{} clusters of {vocab_size} tokens; expected clusters of equal size, a multiple of {ROWS_PER_GROUP}",
                self.count
            )));
        }
        Ok(size)
    }
}

fn size(config: &Map<String, Value>, field: &str, default: usize) -> Result<usize, ModelFileError> {
    let Some(value) = config.get(field).filter(|value| !value.is_null()) else {
        return Ok(default);
    };
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.filter(|number| (1..=MOST).contains(number)).ok_or_else(|| {
        let shown = crate::weights::clipped(&value.to_string());
        invalid(format!("config.json: '{field}' is {shown}; expected 1 to {MOST}"))
    })
}

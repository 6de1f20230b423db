//! Heads of Medusa (Cai et al. 2024, arXiv 2401.10774), by their `config.json`: small blocks that draft for a model of another
//! folder, each a token at a place of its own, from that model's output for its newest token.

use serde_json::{Map, Value};

use super::hugging_face::{IRRELEVANT, JsonConfig, STORED, refuse_unknown};
use super::{ModelConfig, invalid};
use crate::weights::{ModelFileError, clipped};

/// What converters to vLLM call the family.
const NAME: &str = "medusa";
/// What the paper's trainer writes, and no other.
const HEADS: &str = "medusa_num_heads";
/// What is read of it.
const FIELDS: &str = "model_type hidden_size vocab_size truncated_vocab_size num_heads num_hidden_layers original_lm_head \
    logit_scale medusa_num_heads medusa_num_layers";
/// What says how trees of drafts are searched, how heads were trained, and what tensors say too.
const OF_TRAINING: &str = "max_paths topk max_seq_len medusa_choices num_lookahead_tokens base_model_name_or_path version \
    medusa_fc_bias";
/// Heads of a file, and layers of a head, at most.
pub(crate) const MOST_HEADS: usize = 64;
/// Width of the other model's stream, and its vocabulary, at most.
const MOST: usize = 1 << 24;

/// The heads' shape.
#[derive(Clone, Debug)]
pub struct MedusaConfig {
    /// How many there are; so many tokens are drafted at most.
    pub num_heads: usize,
    /// Layers of each, before the matrix that gives logits.
    pub num_layers: usize,
    /// Width of the stream of the model that they draft for.
    pub hidden_size: usize,
    /// Tokens of that model.
    pub vocab_size: usize,
    /// Of these, how many are drafted.
    pub num_drafted: usize,
    /// Whether one matrix gives all heads' logits.
    pub has_one_output: bool,
}

/// Whether a `config.json` is of heads alone; some models have such heads in their own files.
pub(crate) fn is_medusa(config: &Map<String, Value>) -> bool {
    let is_named = config.get("model_type").and_then(Value::as_str) == Some(NAME);
    is_named || (config.contains_key(HEADS) && !config.contains_key("num_attention_heads"))
}

/// Why heads are not loaded as a model.
pub(crate) fn no_model() -> ModelFileError {
    invalid(
        "heads of Medusa answer nothing by themselves; name them as a draft model of the model that they draft for: \
         engine.speculative.model = {MODEL = HEADS}"
            .to_owned(),
    )
}

/// What `config.json` says of heads; the paper's trainer leaves their sizes to the tensors.
pub(crate) struct Said {
    num_heads: Option<usize>,
    pub(crate) num_layers: usize,
    hidden_size: Option<usize>,
    vocab_size: Option<usize>,
    num_drafted: Option<usize>,
    pub(crate) has_one_output: bool,
}

impl Said {
    pub(crate) fn of(config: &Map<String, Value>) -> Result<Self, ModelFileError> {
        refuse_unknown(config, &[FIELDS, OF_TRAINING, STORED, IRRELEVANT], "")?;
        let fields = JsonConfig(config, None);
        let is_scaled = config.get("logit_scale").is_some_and(|scale| !scale.is_null());
        if is_scaled && fields.number("logit_scale") != Some(1.0) {
            return Err(invalid(format!(
                "config.json: 'logit_scale' is {}; heads of Medusa with 1 are implemented",
                clipped(&config["logit_scale"].to_string())
            )));
        }
        let (heads, layers) = match config.contains_key(HEADS) {
            true => (HEADS, "medusa_num_layers"),
            false => ("num_heads", "num_hidden_layers"),
        };
        let within = |field: &str, most: usize| match fields.optional_size(field)? {
            Some(size) if !(1..=most).contains(&size) => Err(invalid(format!(
                "config.json: '{field}' is {size}; expected 1 to {most}"
            ))),
            size => Ok(size),
        };
        let vocab_size = within("vocab_size", MOST)?;
        Ok(Self {
            num_heads: within(heads, MOST_HEADS)?,
            num_layers: within(layers, MOST_HEADS)?.unwrap_or(1),
            hidden_size: within("hidden_size", MOST)?,
            num_drafted: within("truncated_vocab_size", vocab_size.unwrap_or(MOST))?.or(vocab_size),
            vocab_size,
            has_one_output: config.get("original_lm_head") == Some(&Value::Bool(true)),
        })
    }

    /// Completes it by the tensors: for how many heads there are some, the columns of the first layer, and the rows of the first
    /// matrix that gives logits. None where there is no head, or that is not known either.
    pub(crate) fn completed(
        &self,
        num_heads: usize,
        hidden_size: Option<usize>,
        num_outputs: Option<usize>,
    ) -> Result<Option<MedusaConfig>, ModelFileError> {
        // Files of the paper's authors have more heads than they say.
        if let Some(said) = self.num_heads.filter(|said| *said > num_heads) {
            return Err(invalid(format!(
                "config.json names {said} heads of Medusa; the file has {num_heads}"
            )));
        }
        if num_heads > MOST_HEADS {
            return Err(invalid(format!(
                "the file has {num_heads} heads of Medusa; expected {MOST_HEADS} at most"
            )));
        }
        let (hidden_size, vocab_size) = (self.hidden_size.or(hidden_size), self.vocab_size.or(num_outputs));
        let (Some(hidden_size), Some(vocab_size), 1..) = (hidden_size, vocab_size, num_heads) else {
            return Ok(None);
        };
        Ok(Some(MedusaConfig {
            num_heads,
            num_layers: self.num_layers,
            hidden_size,
            vocab_size,
            num_drafted: self.num_drafted.unwrap_or(vocab_size),
            has_one_output: self.has_one_output,
        }))
    }
}

impl MedusaConfig {
    /// Refuses a model that they do not draft for.
    pub(crate) fn check_target(&self, target: &ModelConfig) -> Result<(), ModelFileError> {
        let sizes = [
            ("hidden size", self.hidden_size, target.hidden_size),
            ("vocabulary", self.vocab_size, target.vocab_size),
        ];
        match sizes.into_iter().find(|(_, expected, got)| expected != got) {
            None => Ok(()),
            Some((what, expected, got)) => Err(invalid(format!(
                "they draft for models of {what} {expected}; the model has {got}"
            ))),
        }
    }
}

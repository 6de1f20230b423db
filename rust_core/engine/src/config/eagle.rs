//! A head of EAGLE-3 (arXiv 2503.01840), by its `config.json`: a decoder layer that drafts for a model of another folder. Its
//! attention reads a token's embedding beside what a matrix makes of three places of that model's stream at the token before.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::hugging_face::{IRRELEVANT, JsonConfig, STORED, refuse_unknown};
use super::{MOST_LAYERS, ModelConfig, invalid};
use crate::weights::{ModelFileError, clipped};

/// What is read of the head itself, in files of all trainers; the rest describes its layer.
const FIELDS: &str = "speculators_model_type draft_vocab_size target_hidden_size norm_before_residual norm_before_fc fc_norm \
    norm_output eagle_config eagle_aux_hidden_state_layer_ids transformer_layer_config";
const TAPS: &str = "eagle_aux_hidden_state_layer_ids";
/// What the trainers of `speculators` say of training and of how drafts are asked for.
const OF_TRAINING: &str = "speculators_config speculators_version has_no_defaults_at_init embed_requires_grad model_type \
    tie_word_embeddings";
/// What is read of `eagle_config`, which SpecForge and NVIDIA's Model Optimizer write.
const EAGLE_FIELDS: &str = "eagle_aux_hidden_state_layer_ids norm_before_fc norm_before_residual fc_norm norm_output";
/// What stands in `eagle_config`, or beside it, of heads of other forms, with the value that it has here.
const FORMS: [(&str, bool); 5] = [
    ("use_aux_hidden_state", true),
    ("use_input_layernorm_in_first_layer", true),
    ("use_last_layernorm", true),
    ("use_mtp_layernorm", false),
    ("next_layer_regular", true),
];
/// What says of the head's layer which positions it sees.
const WINDOWS: [&str; 4] = [
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
];
/// How many tokens a pass drafts, of heads that draft several at a time.
const PARALLEL: &str = "parallel_draft_step";
/// Places of the other model's stream, and which they are where the file does not say: after the second layer, in the middle,
/// and before the last three.
pub(crate) const NUM_TAPS: usize = 3;
const FIRST_TAP: usize = 2;
const LAST_TAP: usize = 3;
/// Width of the other model's stream at most.
const MOST_WIDTH: usize = 1 << 20;

/// How the three places of the stream are normalised before the matrix that joins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureNorm {
    /// Not at all.
    None,
    /// Each for itself.
    Each,
    /// All together.
    All,
}

/// A head's shape.
#[derive(Clone, Debug)]
pub struct EagleConfig {
    /// Its layer, as that of a head behind a decoder without layers; the vocabulary is the part that it drafts of.
    pub head: ModelConfig,
    /// Tokens that it can draft after: the vocabulary of the model that it drafts for.
    pub vocab_size: usize,
    /// Width of the stream of that model.
    pub target_size: usize,
    /// After how many layers of that model its stream is read, where the file says.
    taps: Option<[usize; NUM_TAPS]>,
    /// How many positions it sees, its own included; `None` means all.
    pub window: Option<usize>,
    /// How what it reads is normalised.
    pub feature_norm: FeatureNorm,
    /// Whether its stream begins with the norm of what it goes on from, and not with that itself.
    pub is_residual_normalised: bool,
    /// Whether a further draft goes on from its output after the last norm, and not before.
    pub hands_on_normalised: bool,
    /// Whether it has an embedding of its own; otherwise it reads the other model's.
    pub has_embedding: bool,
}

/// Whether a `config.json` is a head's.
pub(crate) fn is_eagle(config: &Map<String, Value>) -> bool {
    let architectures = config.get("architectures").and_then(Value::as_array);
    let mut names = architectures.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| name.to_ascii_lowercase().contains("eagle3"))
        || config.get("speculators_model_type").and_then(Value::as_str) == Some("eagle3")
        || config.contains_key("draft_vocab_size")
}

/// Why a head is not loaded as a model.
pub(crate) fn no_model() -> ModelFileError {
    invalid(
        "a head of EAGLE-3 answers nothing by itself; name it as a draft model of the model that it drafts for: \
         engine.speculative.model = {MODEL = HEAD}"
            .to_owned(),
    )
}

impl EagleConfig {
    /// Reads a head's `config.json`.
    pub(crate) fn from_hugging_face(config: &Map<String, Value>) -> Result<Self, ModelFileError> {
        let said = Said::of(config)?;
        let layer = layer_part(config)?;
        let mut head = ModelConfig::from_hugging_face(&layer, None)?;
        if head.num_layers != 1 {
            return Err(invalid(format!(
                "config.json: 'num_hidden_layers' is {}; heads of one layer are implemented",
                head.num_layers
            )));
        }
        let vocab_size = head.vocab_size;
        let sizes = JsonConfig(config, None);
        head.vocab_size = sizes.optional_size("draft_vocab_size")?.unwrap_or(vocab_size);
        if !(1..=vocab_size).contains(&head.vocab_size) {
            return Err(invalid(format!(
                "config.json: 'draft_vocab_size' is {}; expected 1 to the {vocab_size} tokens of 'vocab_size'",
                head.vocab_size
            )));
        }
        let target_size = sizes.optional_size("target_hidden_size")?.unwrap_or(head.hidden_size);
        if !(1..=MOST_WIDTH).contains(&target_size) {
            return Err(invalid(format!(
                "config.json: 'target_hidden_size' is {target_size}; expected 1 to {MOST_WIDTH}"
            )));
        }
        let is_of_speculators = config.contains_key("transformer_layer_config");
        let hands_on_normalised = is_of_speculators && said.truth("norm_output", false)?;
        if !is_of_speculators {
            said.expect("norm_output", true)?; // what others call so is the norm before the output matrix
        }
        Ok(Self {
            vocab_size,
            target_size,
            taps: said.taps()?,
            window: window(config)?,
            feature_norm: said.feature_norm()?,
            is_residual_normalised: said.truth("norm_before_residual", false)?,
            hands_on_normalised,
            has_embedding: false,
            head: head.into_head(),
        })
    }

    /// After how many layers of `target` its stream is read, in their order. An error where this does not draft for such a
    /// model.
    pub(crate) fn taps_in(&self, target: &ModelConfig) -> Result<[usize; NUM_TAPS], ModelFileError> {
        let mut sizes = vec![
            ("models of hidden size", self.target_size, target.hidden_size),
            ("models of vocabulary", self.vocab_size, target.vocab_size),
        ];
        if !self.has_embedding {
            sizes.push((
                "models with embeddings of width",
                self.head.hidden_size,
                target.hidden_size,
            ));
        }
        if let Some((what, expected, got)) = sizes.into_iter().find(|(_, expected, got)| expected != got) {
            return Err(invalid(format!("it drafts for {what} {expected}; the model has {got}")));
        }
        let count = target.num_file_layers();
        let taps = match self.taps {
            Some(taps) => taps,
            None if count > LAST_TAP => [FIRST_TAP, count / 2, count - LAST_TAP],
            None => {
                return Err(invalid(format!(
                    "it does not say which layers it reads, and a model of {count} has none of the usual ones"
                )));
            }
        };
        let place = |tap: usize| match tap.cmp(&count) {
            Ordering::Less => (0..target.num_layers).find(|layer| target.file_layer(*layer) == tap),
            Ordering::Equal => Some(target.num_layers),
            Ordering::Greater => None,
        };
        let places: Option<Vec<usize>> = taps.into_iter().map(place).collect();
        places.and_then(|places| places.try_into().ok()).ok_or_else(|| {
            invalid(format!(
                "it reads the stream after {taps:?} layers; the model has {count} layers"
            ))
        })
    }
}

/// What a file says of a head beside its layer: some write it into a table of its own.
struct Said<'a> {
    config: &'a Map<String, Value>,
    own: Map<String, Value>,
}

impl<'a> Said<'a> {
    fn of(config: &'a Map<String, Value>) -> Result<Self, ModelFileError> {
        let own = match config.get("eagle_config") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(own)) => own.clone(),
            Some(_) => return Err(invalid("config.json: 'eagle_config' must be a table".to_owned())),
        };
        let forms = FORMS.map(|(field, _)| field).join(" ");
        refuse_unknown(&own, &[EAGLE_FIELDS, &forms, PARALLEL], "eagle_config.")?;
        let said = Self { config, own };
        for (field, expected) in FORMS {
            said.expect(field, expected)?;
        }
        if let Some(steps) = said.find(PARALLEL).filter(|steps| **steps != 1) {
            return Err(invalid(format!(
                "config.json: '{PARALLEL}' is {}; heads that draft one token at a time are implemented",
                clipped(&steps.to_string())
            )));
        }
        Ok(said)
    }

    fn find(&self, field: &str) -> Option<&Value> {
        let beside = self.config.get(field).filter(|value| !value.is_null());
        beside.or_else(|| self.own.get(field).filter(|value| !value.is_null()))
    }

    fn truth(&self, field: &str, default: bool) -> Result<bool, ModelFileError> {
        match self.find(field) {
            None => Ok(default),
            Some(Value::Bool(is)) => Ok(*is),
            Some(value) => Err(invalid(format!(
                "config.json: '{field}' must be true or false, got {}",
                clipped(&value.to_string())
            ))),
        }
    }

    /// Refuses another value than the one that is implemented.
    fn expect(&self, field: &str, expected: bool) -> Result<(), ModelFileError> {
        if self.truth(field, expected)? == expected {
            return Ok(());
        }
        Err(invalid(format!(
            "config.json: '{field}' must be {expected}; other heads of EAGLE-3 are not implemented"
        )))
    }

    fn feature_norm(&self) -> Result<FeatureNorm, ModelFileError> {
        match (self.truth("fc_norm", false)?, self.truth("norm_before_fc", false)?) {
            (false, false) => Ok(FeatureNorm::None),
            (true, false) => Ok(FeatureNorm::Each),
            (false, true) => Ok(FeatureNorm::All),
            (true, true) => Err(invalid(
                "config.json: 'fc_norm' and 'norm_before_fc' are both true; expected one of them".to_owned(),
            )),
        }
    }

    /// After how many layers the stream is read: beside the table, as vLLM and `speculators` count; in it, as SGLang does, who
    /// names the layers whose outputs they are.
    fn taps(&self) -> Result<Option<[usize; NUM_TAPS]>, ModelFileError> {
        let listed = |fields: &Map<String, Value>| match fields.get(TAPS) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(layers)) if layers.is_empty() => Ok(None),
            Some(layers) => read_taps(layers).map(Some),
        };
        if let Some(taps) = listed(self.config)? {
            return Ok(Some(taps));
        }
        Ok(listed(&self.own)?.map(|taps| taps.map(|layer| layer + 1)))
    }
}

fn read_taps(layers: &Value) -> Result<[usize; NUM_TAPS], ModelFileError> {
    let number = |layer: &Value| layer.as_u64().filter(|layer| *layer <= MOST_LAYERS as u64);
    let numbers = layers.as_array().map(|layers| layers.iter().map(number));
    let numbers: Option<Vec<usize>> =
        numbers.and_then(|numbers| numbers.map(|number| number.map(|number| number as usize)).collect());
    numbers
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| invalid(format!("config.json: '{TAPS}' must be {NUM_TAPS} layers' numbers")))
}

/// What describes the layer, as that of a decoder of one; of Llama's form where nothing is said.
fn layer_part(config: &Map<String, Value>) -> Result<Map<String, Value>, ModelFileError> {
    let mut layer = match config.get("transformer_layer_config") {
        Some(Value::Object(layer)) => {
            refuse_unknown(config, &[FIELDS, STORED, IRRELEVANT, OF_TRAINING], "")?;
            layer.clone()
        }
        Some(_) => {
            return Err(invalid(
                "config.json: 'transformer_layer_config' must be a table".to_owned(),
            ));
        }
        None => {
            let is_of_layer = |field: &str| {
                let mut others = FIELDS
                    .split_whitespace()
                    .chain(FORMS.map(|(form, _)| form))
                    .chain([PARALLEL]);
                !others.any(|other| other == field)
            };
            let fields = config.iter().filter(|(field, _)| is_of_layer(field));
            fields.map(|(field, value)| (field.clone(), value.clone())).collect()
        }
    };
    for field in WINDOWS.into_iter().chain(["architectures"]) {
        layer.remove(field);
    }
    layer.entry("model_type").or_insert_with(|| "llama".into());
    match layer.get("model_type").and_then(Value::as_str) {
        Some("llama") => Ok(layer),
        other => Err(invalid(format!(
            "the layer of this head of EAGLE-3 is {}; expected llama",
            clipped(other.unwrap_or("no text"))
        ))),
    }
}

/// How many positions the layer sees, where it has a window.
fn window(config: &Map<String, Value>) -> Result<Option<usize>, ModelFileError> {
    let layer = config.get("transformer_layer_config").and_then(Value::as_object);
    let layer = layer.unwrap_or(config);
    let kinds = layer.get("layer_types").and_then(Value::as_array);
    let has_window = match kinds.and_then(|kinds| kinds.first()) {
        Some(kind) => kind == "sliding_attention",
        None => layer.get("use_sliding_window") == Some(&Value::Bool(true)),
    };
    let window = JsonConfig(layer, None).optional_size("sliding_window")?;
    match window.filter(|_| has_window) {
        Some(0) => Err(invalid(
            "config.json: 'sliding_window' is 0; expected at least 1".to_owned(),
        )),
        window => Ok(window),
    }
}

//! What an encoder looks like, read from its files and checked at the door.
//!
//! Beside `config.json` a folder has what sentence-transformers writes: `modules.json` says which steps there are,
//! `1_Pooling/config.json` how a text's tokens become one vector, `sentence_bert_config.json` how long a text may be. A
//! field or a step that is not known is refused by name: a vector would not show that it was left out.

use std::path::Path;

use serde_json::{Map, Value};

use super::head::Head;
use crate::config::hugging_face::{IRRELEVANT, JsonConfig, refuse_unknown};
use crate::config::invalid;
use crate::gguf::GgufFile;
use crate::safetensors::{CONFIG_NAME, SafetensorsFolder, read_json, read_object};
use crate::weights::{ModelFile, ModelFileError, clipped};

/// The names of every encoder that can be run, for messages.
pub const SUPPORTED_ENCODERS: &str = "bert, roberta, xlm-roberta";

/// What is read here of `config.json`.
const READ: &str = "model_type vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act \
    max_position_embeddings type_vocab_size layer_norm_eps position_embedding_type pad_token_id architectures";

/// What changes no number of the layers: training, and what heads are read from elsewhere.
const OTHER_TASKS: &str = "attention_probs_dropout_prob hidden_dropout_prob classifier_dropout directionality output_past \
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type model_name \
    sbert_ce_default_activation_function sentence_transformers adapters gradient_checkpointing add_pooling_layer tie_word_embeddings";

/// Tokens of a text at most, whatever a file says.
const MOST_POSITIONS: usize = 1 << 20;

/// How positions are counted, and what tensors are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderArchitecture {
    /// BERT (Devlin et al. 2018, arXiv 1810.04805): positions from 0.
    Bert,
    /// RoBERTa and XLM-RoBERTa: positions from the padding token's id on.
    Roberta,
}

impl EncoderArchitecture {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "bert" => Some(Self::Bert),
            "roberta" | "xlm-roberta" | "camembert" => Some(Self::Roberta),
            _ => None,
        }
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
        }
    }
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean. A mean over the root of the length has the same direction.
    Mean,
    /// The first one's.
    Cls,
    /// Of each dimension the greatest.
    Max,
    /// The last one's.
    Last,
    /// Their mean weighted by position, from 1.
    WeightedMean,
}

impl Pooling {
    /// The name that files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Last => "lasttoken",
            Self::WeightedMean => "weightedmean",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "mean" | "mean_tokens" | "mean_sqrt_len_tokens" => Some(Self::Mean),
            "cls" | "cls_token" => Some(Self::Cls),
            "max" | "max_tokens" => Some(Self::Max),
            "lasttoken" => Some(Self::Last),
            "weightedmean" | "weightedmean_tokens" => Some(Self::WeightedMean),
            _ => None,
        }
    }
}

/// The activation inside a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderActivation {
    /// GELU with the error function.
    Gelu,
    /// Its tanh form.
    GeluTanh,
}

/// Everything the forward pass needs to know about an encoder besides its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// The family.
    pub architecture: EncoderArchitecture,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of a token's vector, and of a text's.
    pub hidden_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Attention heads.
    pub num_heads: usize,
    /// Width inside the feed-forward block.
    pub ffn_size: usize,
    /// Rows of the table of positions.
    pub num_positions: usize,
    /// The row of a text's first token.
    pub first_position: usize,
    /// The padding token, at which RoBERTa's positions stand still.
    pub pad_id: usize,
    /// Rows of the table of token types; a text is of the first type. 0: there is no such table.
    pub num_types: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// The activation.
    pub activation: EncoderActivation,
    /// How a text's vector is made.
    pub pooling: Pooling,
    /// Tokens of a text at most, special ones included.
    pub max_tokens: usize,
    /// What follows the layers of a model that ranks or classifies; one that embeds has none.
    pub head: Option<Head>,
}

impl EncoderConfig {
    /// Reads what a file says of itself.
    pub fn of(file: &ModelFile) -> Result<Self, ModelFileError> {
        match file {
            ModelFile::Gguf(gguf) => Self::from_gguf(gguf)?,
            ModelFile::Safetensors(folder) => Self::from_folder(folder)?,
        }
        .check()
    }

    /// Numbers that a text gives: those of its vector, or one for each label.
    pub fn num_outputs(&self) -> usize {
        self.head.as_ref().map_or(self.hidden_size, |head| head.labels.len())
    }

    /// The type of a token, by whether it is of a pair's second text.
    pub(super) fn kind_of(&self, is_second: bool) -> usize {
        // RoBERTa's table of types has one row, or another that no tokenizer names.
        usize::from(is_second && self.num_types > 1 && self.architecture == EncoderArchitecture::Bert)
    }

    /// Width of an attention head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    fn from_folder(folder: &SafetensorsFolder) -> Result<Self, ModelFileError> {
        let config = folder.config();
        let json = JsonConfig(config, None);
        let name = json.text("model_type").unwrap_or("(no model_type)");
        let architecture = EncoderArchitecture::from_name(name).ok_or_else(|| unsupported(name))?;
        refuse_unknown(config, &[READ, OTHER_TASKS, IRRELEVANT], "")?;
        let head = Head::of(config)?;
        if let Some(kind) = json.text("position_embedding_type").filter(|kind| *kind != "absolute") {
            let kind = clipped(kind);
            return Err(invalid(format!(
                "config.json: 'position_embedding_type' is '{kind}', which is not implemented; expected absolute"
            )));
        }
        let num_positions = json.size("max_position_embeddings")?;
        let pad_id = json.optional_size("pad_token_id")?;
        let (pad_id, first_position) = match architecture {
            EncoderArchitecture::Bert => (pad_id.unwrap_or(0), 0),
            EncoderArchitecture::Roberta => {
                let pad_id = pad_id.unwrap_or(1);
                (pad_id, pad_id.saturating_add(1))
            }
        };
        let most = num_positions.saturating_sub(first_position);
        let steps = Steps::of(folder.path())?;
        Ok(Self {
            architecture,
            vocab_size: json.size("vocab_size")?,
            hidden_size: json.size("hidden_size")?,
            num_layers: json.size("num_hidden_layers")?,
            num_heads: json.size("num_attention_heads")?,
            ffn_size: json.size("intermediate_size")?,
            num_positions,
            first_position,
            pad_id,
            num_types: json.optional_size("type_vocab_size")?.unwrap_or(2),
            norm_epsilon: json.number("layer_norm_eps").unwrap_or(1e-12) as f32,
            activation: match json.text("hidden_act") {
                Some("gelu") | None => EncoderActivation::Gelu,
                Some("gelu_new" | "gelu_pytorch_tanh") => EncoderActivation::GeluTanh,
                Some(other) => {
                    let other = clipped(other);
                    return Err(invalid(format!(
                        "config.json: activation '{other}' is not supported; expected gelu or gelu_new"
                    )));
                }
            },
            pooling: steps.pooling,
            max_tokens: steps.max_tokens.map_or(most, |tokens| tokens.min(most)),
            head,
        })
    }

    fn from_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        let name = file.metadata_str("general.architecture")?;
        if name != "bert" {
            return Err(unsupported(name));
        }
        let size = |key: &str| file.metadata_u64(&format!("bert.{key}")).map(|value| value as usize);
        let optional = |key: &str| {
            let is_there = file.find(&format!("bert.{key}")).is_some();
            is_there.then(|| size(key)).transpose()
        };
        let pooling = match optional("pooling_type")? {
            None | Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(other) => {
                return Err(invalid(format!(
                    "'bert.pooling_type' is {other}, which is not implemented; expected 1 (mean), 2 (cls) or 3 (last)"
                )));
            }
        };
        let num_positions = size("context_length")?;
        let types = file.find_tensor("token_types.weight");
        let embedding = file.find_tensor("token_embd.weight");
        Ok(Self {
            architecture: EncoderArchitecture::Bert,
            vocab_size: embedding.map_or(0, |tensor| tensor.rows()),
            hidden_size: size("embedding_length")?,
            num_layers: size("block_count")?,
            num_heads: size("attention.head_count")?,
            ffn_size: size("feed_forward_length")?,
            num_positions,
            first_position: 0,
            pad_id: 0,
            num_types: types.map_or(0, |tensor| tensor.rows()),
            norm_epsilon: file.metadata_f32("bert.attention.layer_norm_epsilon")?,
            activation: EncoderActivation::Gelu,
            pooling,
            max_tokens: num_positions,
            head: None,
        })
    }

    /// Refuses shapes no real model has, before anything is multiplied or allocated.
    fn check(self) -> Result<Self, ModelFileError> {
        let limits = [
            ("vocabulary", self.vocab_size, 1, 1 << 28),
            ("hidden size", self.hidden_size, 1, 1 << 16),
            ("layers", self.num_layers, 1, 1_000),
            ("attention heads", self.num_heads, 1, 4_096),
            ("feed-forward size", self.ffn_size, 1, 1 << 20),
            ("table of positions", self.num_positions, 1, MOST_POSITIONS),
            ("longest text", self.max_tokens, 1, MOST_POSITIONS),
            ("table of token types", self.num_types, 0, 1 << 16),
        ];
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what} is {value}; expected {low} to {high}")));
            }
        }
        if !self.hidden_size.is_multiple_of(self.num_heads) {
            return Err(invalid(format!(
                "{} attention heads cannot share a hidden size of {} evenly",
                self.num_heads, self.hidden_size
            )));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon >= 0.0) {
            return Err(invalid("norm epsilon is not a number from 0 on".to_owned()));
        }
        Ok(self)
    }
}

/// What a model's files are for, from a header alone: `embed`, `rank` or `classify` of an encoder, else `generate`. A file
/// that cannot be read is of the last: whoever opens it as a decoder says why.
pub fn task_of(path: &Path) -> &'static str {
    const OTHER: &str = "generate";
    if path.is_dir() {
        let Ok(config) = read_object(&path.join(CONFIG_NAME)) else {
            return OTHER;
        };
        let name = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        return match EncoderArchitecture::from_name(name).map(|_| Head::of(&config)) {
            None => OTHER,
            Some(Ok(Some(head))) if head.labels.len() == 1 => "rank",
            Some(Ok(Some(_))) => "classify",
            Some(_) => "embed",
        };
    }
    let file = GgufFile::open(path);
    let name = file
        .as_ref()
        .ok()
        .and_then(|file| file.metadata_str("general.architecture").ok());
    if name == Some("bert") { "embed" } else { OTHER }
}

fn unsupported(name: &str) -> ModelFileError {
    let name = clipped(name);
    invalid(format!(
        "encoder '{name}' is not supported; supported are {SUPPORTED_ENCODERS}"
    ))
}

/// What sentence-transformers writes beside a model.
struct Steps {
    pooling: Pooling,
    max_tokens: Option<usize>,
}

impl Steps {
    /// Reads a folder's files; one that has none is pooled by the mean, as sentence-transformers does.
    fn of(folder: &Path) -> Result<Self, ModelFileError> {
        let about = folder.join("sentence_bert_config.json");
        let max_tokens = if about.exists() {
            let object = read_object(&about)?;
            let found = JsonConfig(&object, None).optional_size("max_seq_length");
            found.map_err(|error| error.in_file(&about))?
        } else {
            None
        };
        let modules = folder.join("modules.json");
        let pooling = if modules.exists() {
            let steps = read_json(&modules)?;
            let named = pooling_folder(&steps).map_err(|error| error.in_file(&modules))?;
            let path = folder.join(named).join(CONFIG_NAME);
            pooling_of(&read_object(&path)?).map_err(|error| error.in_file(&path))?
        } else {
            Pooling::Mean
        };
        Ok(Self { pooling, max_tokens })
    }
}

/// The folder that says how to pool. Raises for steps that are not implemented, and for a folder somewhere else.
fn pooling_folder(modules: &Value) -> Result<&str, ModelFileError> {
    let steps = modules.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut found = None;
    for step in steps {
        let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        match kind.rsplit('.').next() {
            Some("Transformer" | "Normalize") => {}
            Some("Pooling") if found.is_none() => found = Some(text("path")),
            _ => {
                let kind = clipped(kind);
                return Err(invalid(format!(
                    "the step '{kind}' is not implemented; expected one each of Transformer, Pooling and Normalize"
                )));
            }
        }
    }
    let name = found.ok_or_else(|| invalid("no step is Pooling: the model gives no vector for a text".to_owned()))?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        let name = clipped(name);
        return Err(invalid(format!(
            "the step Pooling is in '{name}'; expected a folder's name"
        )));
    }
    Ok(name)
}

/// The pooling that a file names: as a text, or as the only one of its truths.
fn pooling_of(config: &Map<String, Value>) -> Result<Pooling, ModelFileError> {
    const PREFIX: &str = "pooling_mode_";
    let mut names: Vec<&str> = config.get("pooling_mode").and_then(Value::as_str).into_iter().collect();
    let truths = config.iter().filter(|(_, value)| **value == Value::Bool(true));
    names.extend(truths.filter_map(|(key, _)| key.strip_prefix(PREFIX)));
    let found = match names[..] {
        [name] => Pooling::from_name(name),
        _ => None,
    };
    found.ok_or_else(|| {
        let names = clipped(&names.join(" and "));
        invalid(format!(
            "pooling by '{names}' is not implemented; expected one of mean, cls, max, lasttoken, weightedmean"
        ))
    })
}

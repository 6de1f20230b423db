//! What an encoder looks like, read from its files and checked at the door.
//!
//! Beside `config.json` a folder has what sentence-transformers writes: `modules.json` says which steps there are,
//! `1_Pooling/config.json` how a text's tokens become one vector, `sentence_bert_config.json` how long a text may be. A
//! field or a step that is not known is refused by name: a vector would not show that it was left out.

use std::path::Path;

use serde_json::Value;

use super::head::Head;
use super::steps::{DenseStep, MODULES, Pooling, Steps};
use crate::config::hugging_face::{IRRELEVANT, JsonConfig, refuse_unknown};
use crate::config::{Architecture, ModelConfig, invalid};
use crate::gguf::GgufFile;
use crate::model::embedding_rows;
use crate::safetensors::{CONFIG_NAME, SafetensorsFolder, read_object};
use crate::weights::{ModelFile, ModelFileError, clipped};

/// The names of every encoder that can be run, for messages.
pub const SUPPORTED_ENCODERS: &str = "bert, roberta, xlm-roberta, and decoders that the engine runs";

/// What is read here of `config.json`.
const READ: &str = "model_type vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act \
    max_position_embeddings type_vocab_size layer_norm_eps position_embedding_type pad_token_id architectures";

/// What changes no number of the layers: training, and what heads are read from elsewhere.
const OTHER_TASKS: &str = "attention_probs_dropout_prob hidden_dropout_prob classifier_dropout directionality output_past \
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type model_name \
    sbert_ce_default_activation_function sentence_transformers adapters gradient_checkpointing add_pooling_layer tie_word_embeddings";

/// Tokens of a text at most that a decoder takes: memory for one text is reserved whole.
const MOST_DECODER_TOKENS: usize = 8_192;

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
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of a token's vector, and of a text's.
    pub hidden_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// What the layers are.
    pub layers: Layers,
    /// How a text's vector is made.
    pub pooling: Pooling,
    /// What follows pooling, one after another.
    pub dense: Vec<DenseStep>,
    /// Tokens of a text at most, special ones included.
    pub max_tokens: usize,
    /// What follows the layers of a model that ranks or classifies; one that embeds has none.
    pub head: Option<Head>,
}

/// What the layers of an encoder are.
#[derive(Clone, Debug, PartialEq)]
pub enum Layers {
    /// BERT's.
    Bert(BertConfig),
    /// A decoder's, read whole.
    Decoder(Box<DecoderConfig>),
}

/// A decoder that embeds, ranks or classifies.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The decoder.
    pub model: ModelConfig,
    /// Whether a token sees those before it alone.
    pub is_causal: bool,
}

/// What BERT's layers are.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// The family.
    pub architecture: EncoderArchitecture,
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
}

impl EncoderConfig {
    /// Reads what a file says of itself.
    pub fn of(file: &ModelFile) -> Result<Self, ModelFileError> {
        match file {
            ModelFile::Gguf(gguf) => Self::from_gguf(gguf)?,
            ModelFile::Safetensors(folder) => Self::from_folder(folder)?.with_rows_of(file)?,
        }
        .check()
    }

    /// Numbers that a text gives: those of its vector, or one for each label.
    pub fn num_outputs(&self) -> usize {
        let size = self.dense.last().map_or(self.hidden_size, |dense| dense.num_outputs);
        self.head.as_ref().map_or(size, |head| head.labels.len())
    }

    /// The same with as many tokens as a decoder's embedding has rows, which may be filled up.
    fn with_rows_of(mut self, file: &ModelFile) -> Result<Self, ModelFileError> {
        if let Layers::Decoder(decoder) = &mut self.layers {
            decoder.model.vocab_size = embedding_rows(file)?;
            self.vocab_size = decoder.model.vocab_size;
        }
        Ok(self)
    }

    /// The family's name, for messages.
    pub fn architecture(&self) -> &'static str {
        match &self.layers {
            Layers::Bert(bert) => bert.architecture.name(),
            Layers::Decoder(decoder) => decoder.model.architecture.name(),
        }
    }

    /// Width of an attention head.
    pub fn head_dim(&self) -> usize {
        match &self.layers {
            Layers::Bert(bert) => self.hidden_size / bert.num_heads,
            Layers::Decoder(decoder) => decoder.model.head_dim,
        }
    }

    fn from_folder(folder: &SafetensorsFolder) -> Result<Self, ModelFileError> {
        let config = folder.config();
        let json = JsonConfig(config, None);
        let name = json.text("model_type").unwrap_or("(no model_type)");
        match EncoderArchitecture::from_name(name) {
            Some(architecture) => Self::bert_of_folder(folder, architecture),
            None if Architecture::from_name(name).is_some() => decoder_of_folder(folder),
            None => Err(unsupported(name)),
        }
    }

    fn bert_of_folder(folder: &SafetensorsFolder, architecture: EncoderArchitecture) -> Result<Self, ModelFileError> {
        let config = folder.config();
        let json = JsonConfig(config, None);
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
        let layers = BertConfig {
            architecture,
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
        };
        Ok(Self {
            vocab_size: json.size("vocab_size")?,
            hidden_size: json.size("hidden_size")?,
            num_layers: json.size("num_hidden_layers")?,
            layers: Layers::Bert(layers),
            pooling: steps.pooling,
            dense: steps.dense,
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
        let layers = BertConfig {
            architecture: EncoderArchitecture::Bert,
            num_heads: size("attention.head_count")?,
            ffn_size: size("feed_forward_length")?,
            num_positions,
            first_position: 0,
            pad_id: 0,
            num_types: types.map_or(0, |tensor| tensor.rows()),
            norm_epsilon: file.metadata_f32("bert.attention.layer_norm_epsilon")?,
            activation: EncoderActivation::Gelu,
        };
        Ok(Self {
            vocab_size: embedding.map_or(0, |tensor| tensor.rows()),
            hidden_size: size("embedding_length")?,
            num_layers: size("block_count")?,
            layers: Layers::Bert(layers),
            pooling,
            dense: Vec::new(),
            max_tokens: num_positions,
            head: None,
        })
    }

    /// Refuses shapes no real model has, before anything is multiplied or allocated.
    fn check(self) -> Result<Self, ModelFileError> {
        let mut limits = vec![
            ("vocabulary", self.vocab_size, 1, 1 << 28),
            ("hidden size", self.hidden_size, 1, 1 << 16),
            ("layers", self.num_layers, 1, 1_000),
            ("longest text", self.max_tokens, 1, MOST_POSITIONS),
        ];
        if let Layers::Bert(bert) = &self.layers {
            limits.extend([
                ("attention heads", bert.num_heads, 1, 4_096),
                ("feed-forward size", bert.ffn_size, 1, 1 << 20),
                ("table of positions", bert.num_positions, 1, MOST_POSITIONS),
                ("table of token types", bert.num_types, 0, 1 << 16),
            ]);
        }
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what} is {value}; expected {low} to {high}")));
            }
        }
        let widths = self.dense.iter().map(|dense| dense.num_outputs);
        for (dense, width) in self.dense.iter().zip(std::iter::once(self.hidden_size).chain(widths)) {
            if dense.num_inputs != width || !(1..=1 << 16).contains(&dense.num_outputs) {
                let (folder, inputs, outputs) = (&dense.folder, dense.num_inputs, dense.num_outputs);
                return Err(invalid(format!(
                    "the step Dense in '{folder}' takes {inputs} numbers and gives {outputs}; expected it to take {width}"
                )));
            }
        }
        match &self.layers {
            Layers::Bert(bert) => bert.check(self.hidden_size)?,
            Layers::Decoder(decoder) => decoder.check()?,
        }
        Ok(self)
    }
}

impl BertConfig {
    /// The type of a token, by whether it is of a pair's second text.
    pub(super) fn kind_of(&self, is_second: bool) -> usize {
        // RoBERTa's table of types has one row, or another that no tokenizer names.
        usize::from(is_second && self.num_types > 1 && self.architecture == EncoderArchitecture::Bert)
    }

    fn check(&self, hidden_size: usize) -> Result<(), ModelFileError> {
        if !hidden_size.is_multiple_of(self.num_heads) {
            return Err(invalid(format!(
                "{} attention heads cannot share a hidden size of {hidden_size} evenly",
                self.num_heads
            )));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon >= 0.0) {
            return Err(invalid("norm epsilon is not a number from 0 on".to_owned()));
        }
        Ok(())
    }
}

impl DecoderConfig {
    /// Refuses what a decoder that is read whole has not.
    fn check(&self) -> Result<(), ModelFileError> {
        let name = self.model.architecture.name();
        let lacks = [
            ("experts", self.model.experts.is_some()),
            ("recurrent layers", self.model.recurrent.is_some()),
            ("capped scores", self.model.attention_softcap.is_some()),
            (
                "norms after rotary positions",
                self.model.architecture.is_norm_after_rope(),
            ),
            ("growing queries", self.model.query_growth.is_some()),
        ];
        match lacks.into_iter().find(|(_, has)| *has) {
            Some((what, _)) => Err(invalid(format!(
                "'{name}' has {what}, which is not implemented for models that embed"
            ))),
            None => Ok(()),
        }
    }
}

/// A decoder whose folder says how it embeds, or that has a head.
fn decoder_of_folder(folder: &SafetensorsFolder) -> Result<EncoderConfig, ModelFileError> {
    let head = Head::of(folder.config())?;
    let mut fields = folder.config().clone();
    for other in ["sentence_transformers", "sbert_ce_default_activation_function"] {
        fields.remove(other);
    }
    let is_causal = fields.remove("use_bidirectional_attention") != Some(Value::Bool(true));
    let mut model = ModelConfig::from_hugging_face(&fields, None)?;
    if !is_causal {
        // Half of the window lies behind a token, its own position in both halves.
        model.sliding_window = model.sliding_window.map(|window| window / 2 + 1);
    }
    model.is_output_tied = Some(true); // there is no output matrix, or none that is used
    let steps = Steps::of(folder.path())?;
    let most = model.context_length.min(MOST_DECODER_TOKENS);
    Ok(EncoderConfig {
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        layers: Layers::Decoder(Box::new(DecoderConfig { model, is_causal })),
        pooling: steps.pooling,
        dense: steps.dense,
        max_tokens: steps.max_tokens.map_or(most, |tokens| tokens.min(most)),
        head,
    })
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
        let is_decoder = EncoderArchitecture::from_name(name).is_none();
        return match Head::of(&config) {
            _ if is_decoder && Architecture::from_name(name).is_none() => OTHER,
            Ok(Some(head)) if head.labels.len() == 1 => "rank",
            Ok(Some(_)) => "classify",
            // What sentence-transformers saves of a decoder beside it says that it embeds.
            _ if is_decoder && !path.join(MODULES).exists() => OTHER,
            _ => "embed",
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

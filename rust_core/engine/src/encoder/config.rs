//! What an encoder looks like, read from its files and checked at the door.
//!
//! Beside `config.json` a folder has what sentence-transformers writes: `modules.json` says which steps there are,
//! `1_Pooling/config.json` how a text's tokens become one vector, `sentence_bert_config.json` how long a text may be. A
//! field or a step that is not known is refused by name: a vector would not show that it was left out.

use std::path::Path;

use serde_json::Value;

use super::attention_pooling::{AttentionPooled, PoolingAttention, is_attention_pooled};
use super::bert_config::{BertConfig, EncoderArchitecture};
use super::bert_files::bert_of_folder;
use super::bert_gguf::bert_of_gguf;
use super::forward::TASK_SHIFT;
use super::gguf::{decoder_of_gguf, task_of_gguf};
use super::head::{Head, HeadKind};
use super::latents::Latents;
use super::steps::{DenseStep, LabelWords, MODULES, Pooling, Steps, is_late};
use super::tasks::Tasks;
use crate::config::hugging_face::JsonConfig;
use crate::config::{Architecture, Blocks, ModelConfig, invalid};
use crate::gguf::GgufFile;
use crate::model::embedding_rows;
use crate::safetensors::{CONFIG_NAME, SafetensorsFolder, read_object};
use crate::weights::{ModelFile, ModelFileError, clipped};

/// Whether a name is a decoder's; an encoder-decoder gives no vectors.
fn is_decoder(name: &str) -> bool {
    Architecture::from_name(name).is_some_and(|architecture| architecture != Architecture::T5)
}

/// The names of every encoder that can be run, for messages.
pub const SUPPORTED_ENCODERS: &str = "bert, roberta, xlm-roberta, mpnet, distilbert, jina-bert-v2, jina-bert-v3, eurobert, modernbert, nomic_bert, gte, and decoders that the \
     engine runs";

/// EuroBERT (Boizard et al. 2025, arXiv 2503.05500): Llama's layers, whose tokens see the whole text.
const EURO_BERT: &str = "eurobert";

/// Tokens of a text at most where positions are computed and a text is read whole, as memory for one is reserved.
pub(super) const MOST_TEXT_TOKENS: usize = 8_192;

/// Tokens of a text at most, whatever a file says.
pub(super) const MOST_POSITIONS: usize = 1 << 20;

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
    /// How a text's vector is made: of several poolings by all their vectors, one after another.
    pub pooling: Vec<Pooling>,
    /// What follows pooling, one after another.
    pub dense: Vec<DenseStep>,
    /// Tokens of a text at most, special ones included.
    pub max_tokens: usize,
    /// What follows the layers of a model that ranks or classifies; one that embeds has none.
    pub head: Option<Head>,
    /// Whether a text is its tokens' vectors, which rank by late interaction.
    pub is_late: bool,
    /// What attends when a text is pooled, with weights of its own.
    pub attention: Option<PoolingAttention>,
    /// A token that stands behind every text.
    pub closing_token: Option<u32>,
    /// Tasks that texts may be of.
    pub tasks: Option<Tasks>,
}

/// What the layers of an encoder are.
#[derive(Clone, Debug, PartialEq)]
pub enum Layers {
    /// Those of BERT and of what came of it.
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

impl EncoderConfig {
    /// Reads what a file says of itself.
    pub fn of(file: &ModelFile) -> Result<Self, ModelFileError> {
        match file {
            ModelFile::Gguf(gguf) if task_of_gguf(gguf).is_some() => {
                match EncoderArchitecture::from_gguf(gguf.metadata_str("general.architecture")?) {
                    Some(_) => bert_of_gguf(gguf)?,
                    None => decoder_of_gguf(file, gguf)?,
                }
            }
            ModelFile::Gguf(gguf) => return Err(unsupported(gguf.metadata_str("general.architecture")?)),
            ModelFile::Safetensors(folder) => Self::from_folder(folder)?.with_rows_of(file)?,
        }
        .check()
    }

    /// Numbers that a text gives: those of its vector, or one for each label.
    pub fn num_outputs(&self) -> usize {
        let size = self.dense.last().map_or(self.num_pooled(), |dense| dense.num_outputs);
        self.head.as_ref().map_or(size, |head| head.labels.len())
    }

    /// Numbers that pooling gives.
    pub(super) fn num_pooled(&self) -> usize {
        match &self.attention {
            Some(PoolingAttention::Query(query)) => query.width,
            _ => self.hidden_size * self.pooling.len(),
        }
    }

    /// How a text is pooled, in words.
    pub fn pooling_name(&self) -> String {
        let names: Vec<&str> = self.pooling.iter().map(|pooling| pooling.name()).collect();
        let names = names.join(" + ");
        match &self.attention {
            Some(PoolingAttention::Latents(_)) => format!("{names} after latent attention"),
            _ => names,
        }
    }

    /// Latent attention, of a model whose tokens go through it.
    pub fn latents(&self) -> Option<&Latents> {
        match &self.attention {
            Some(PoolingAttention::Latents(latents)) => Some(latents),
            _ => None,
        }
    }

    /// A decoder whose tokens see those before them alone, which takes a text in parts.
    pub fn causal(&self) -> Option<&DecoderConfig> {
        match &self.layers {
            Layers::Decoder(decoder) => Some(&**decoder).filter(|decoder| decoder.is_causal),
            Layers::Bert(_) => None,
        }
    }

    /// Tokens that there is to be room for, where batches have so many: a text that is read whole needs as many as it has.
    pub fn room(&self, most_tokens: usize) -> usize {
        match self.causal() {
            Some(_) => most_tokens,
            None => most_tokens.max(self.max_tokens),
        }
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
            _ if is_attention_pooled(config) => decoder_of_folder(folder),
            Some(architecture) => bert_of_folder(folder, architecture),
            None if name == EURO_BERT || is_decoder(name) => decoder_of_folder(folder),
            None => Err(unsupported(name)),
        }
    }

    /// Refuses shapes no real model has, before anything is multiplied or allocated.
    fn check(self) -> Result<Self, ModelFileError> {
        let most_words = if self.tasks.is_some() { 1 << TASK_SHIFT } else { 1 << 28 };
        let mut limits = vec![
            ("vocabulary", self.vocab_size, 1, most_words),
            ("hidden size", self.hidden_size, 1, 1 << 16),
            ("layers", self.num_layers, 1, 1_000),
            ("longest text", self.max_tokens, 1, MOST_POSITIONS),
        ];
        if let Layers::Bert(bert) = &self.layers {
            limits.extend(bert.limits());
        }
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what} is {value}; expected {low} to {high}")));
            }
        }
        let widths = self.dense.iter().map(|dense| dense.num_outputs);
        for (dense, width) in self.dense.iter().zip(std::iter::once(self.num_pooled()).chain(widths)) {
            if dense.num_inputs != width || !(1..=1 << 16).contains(&dense.num_outputs) {
                let (folder, inputs, outputs) = (dense.place.name(), dense.num_inputs, dense.num_outputs);
                return Err(invalid(format!(
                    "the step Dense in '{folder}' takes {inputs} numbers and gives {outputs}; expected it to take {width}"
                )));
            }
        }
        match &self.layers {
            Layers::Bert(bert) => bert.check(self.hidden_size)?,
            Layers::Decoder(decoder) => decoder.check()?,
        }
        let words = self.head.as_ref().and_then(|head| head.words);
        let named = words
            .into_iter()
            .flat_map(|words| [Some(words.yes), words.no])
            .flatten();
        if let Some(token) = named.into_iter().find(|token| *token >= self.vocab_size) {
            return Err(invalid(format!(
                "the model ranks by token {token}, which is not in its vocabulary of {}",
                self.vocab_size
            )));
        }
        Ok(self)
    }
}

impl DecoderConfig {
    /// Refuses what a decoder that is read whole has not.
    fn check(&self) -> Result<(), ModelFileError> {
        let name = self.model.architecture.name();
        let lacks = [
            ("experts", self.model.experts.is_some()),
            ("recurrent layers", self.model.recurrent.is_some()),
            ("Gemma 4's layers", self.model.gemma4.is_some()),
            (
                "layers of one block",
                self.model.blocks.iter().any(|blocks| *blocks != Blocks::Both),
            ),
            ("capped scores", self.model.attention_softcap.is_some()),
            (
                "norms after rotary positions",
                self.model.architecture.is_norm_after_rope(),
            ),
            ("LayerNorm", self.model.architecture.has_layer_norms()),
            ("blocks beside each other", self.model.is_parallel),
            ("ALiBi", self.model.alibi_max_bias.is_some()),
            ("dual chunk attention", self.model.dual_chunks.is_some()),
            ("growing queries", self.model.query_growth.is_some()),
            ("a factor on blocks", self.model.residual_scale != 1.0),
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
    let words = LabelWords::of(folder.path())?;
    let head = match words {
        Some(words) => Some(Head::of_words(folder.config(), words)?),
        None => Head::of(folder.config())?,
    };
    let pooled = AttentionPooled::of(folder.config())?;
    let own = |pooled: &AttentionPooled| pooled.body.clone();
    let mut fields = pooled.as_ref().map_or_else(|| folder.config().clone(), own);
    let is_euro_bert = JsonConfig(&fields, None).text("model_type") == Some(EURO_BERT);
    if is_euro_bert {
        if head.is_some() {
            return Err(invalid(
                "config.json: a EuroBERT with labels is not implemented; expected one that embeds".to_owned(),
            ));
        }
        fields.insert("model_type".to_owned(), "llama".into());
        fields.remove("classifier_pooling");
    }
    for other in ["sentence_transformers", "sbert_ce_default_activation_function"] {
        fields.remove(other);
    }
    let sees_all = fields.remove("use_bidirectional_attention") == Some(Value::Bool(true)) || is_euro_bert;
    let is_causal = pooled
        .as_ref()
        .map_or(!sees_all, |pooled| pooled.is_causal && !sees_all);
    let mut model = ModelConfig::from_hugging_face(&fields, None)?;
    if !is_causal {
        // Half of the window lies behind a token, its own position in both halves.
        model.sliding_window = model.sliding_window.map(|window| window / 2 + 1);
    }
    model.is_output_tied = Some(true); // there is no output matrix, or none that is used
    if model.logit_softcap.is_some() && words.is_some() {
        return Err(invalid(
            "config.json: capped logits are not implemented for models that rank by words".to_owned(),
        ));
    }
    let steps = match &pooled {
        Some(pooled) => pooled.steps(folder.path(), folder.config())?,
        None => Steps::of(folder.path())?,
    };
    let most = model.context_length.min(most_tokens(is_causal));
    Ok(EncoderConfig {
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        layers: Layers::Decoder(Box::new(DecoderConfig { model, is_causal })),
        pooling: steps.pooling,
        dense: steps.dense,
        max_tokens: steps.max_tokens.map_or(most, |tokens| tokens.min(most)),
        head,
        is_late: steps.is_late,
        closing_token: pooled.as_ref().and_then(|pooled| pooled.closing_token),
        attention: pooled.map(|pooled| pooled.attention),
        tasks: None,
    })
}

/// Tokens of a decoder's text at most, whatever its files say.
pub(super) fn most_tokens(is_causal: bool) -> usize {
    if is_causal { MOST_POSITIONS } else { MOST_TEXT_TOKENS }
}

/// What a model's files are for, from a header alone: `embed`, `rank`, `classify` or `token_classify` of an encoder, else `generate`. A file
/// that cannot be read is of the last: whoever opens it as a decoder says why.
pub fn task_of(path: &Path) -> &'static str {
    const OTHER: &str = "generate";
    if path.is_dir() {
        let Ok(config) = read_object(&path.join(CONFIG_NAME)) else {
            return OTHER;
        };
        if is_attention_pooled(&config) {
            return "embed";
        }
        let name = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let is_decoder = EncoderArchitecture::from_name(name).is_none() && name != EURO_BERT;
        return match Head::of(&config) {
            _ if is_decoder && Architecture::from_name(name).is_none() => OTHER,
            Ok(Some(head)) if head.kind != HeadKind::Texts => "token_classify",
            Ok(Some(head)) if head.labels.len() == 1 => "rank",
            Ok(Some(_)) => "classify",
            // What sentence-transformers saves of a decoder beside it says that it embeds.
            _ if is_decoder && !path.join(MODULES).exists() => OTHER,
            _ if is_decoder && matches!(LabelWords::of(path), Ok(Some(_))) => "rank",
            _ if is_late(path) => "rank",
            _ => "embed",
        };
    }
    let file = GgufFile::open(path).ok();
    file.and_then(|file| task_of_gguf(&file)).unwrap_or(OTHER)
}

pub(super) fn unsupported(name: &str) -> ModelFileError {
    let name = clipped(name);
    invalid(format!(
        "encoder '{name}' is not supported; supported are {SUPPORTED_ENCODERS}"
    ))
}

//! What a GGUF file says of an encoder, as llama.cpp's converter writes it: keys that begin with the architecture's name.
//!
//! The file's kind of pooling is a number; a head is known by its last matrix, `cls.output`. What the converter leaves out of
//! a head is refused by name.

use super::bert_config::{EncoderActivation, EncoderArchitecture};
use super::config::{DecoderConfig, EncoderConfig, Layers, most_tokens};
use super::head::{Head, HeadKind, InnerActivation, LabelActivation, MOST_LABELS};
use super::steps::{DensePlace, DenseStep, Pooling};
use crate::config::gguf::GEMMA_EMBEDDING;
use crate::config::{Architecture, invalid};
use crate::gguf::GgufFile;
use crate::model;
use crate::weights::{ModelFile, ModelFileError};

/// The tensors of a head, without `.weight`.
pub(super) const LABELS: &str = "cls.output";
pub(super) const HEAD_DENSE: &str = "cls";
pub(super) const HEAD_NORM: &str = "cls.norm";
/// Those of steps after pooling, in their order.
const DENSE: [&str; 2] = ["dense_2", "dense_3"];

/// llama.cpp's numbers for kinds of pooling.
const MEAN: usize = 1;
const CLS: usize = 2;
const LAST: usize = 3;
const RANK: usize = 4;

/// The keys of a file that begin with its architecture's name.
pub(super) struct Keys<'a> {
    pub(super) file: &'a GgufFile,
    pub(super) name: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn of(file: &'a GgufFile) -> Result<Self, ModelFileError> {
        let name = file.metadata_str("general.architecture")?;
        Ok(Self { file, name })
    }

    pub(super) fn key(&self, end: &str) -> String {
        format!("{}.{end}", self.name)
    }

    pub(super) fn size(&self, end: &str) -> Result<usize, ModelFileError> {
        self.file.metadata_u64(&self.key(end)).map(|value| value as usize)
    }

    pub(super) fn optional_size(&self, end: &str) -> Result<Option<usize>, ModelFileError> {
        self.has(end).then(|| self.size(end)).transpose()
    }

    pub(super) fn number(&self, end: &str) -> Result<f64, ModelFileError> {
        self.file.metadata_f32(&self.key(end)).map(f64::from)
    }

    pub(super) fn number_or(&self, end: &str, default: f64) -> Result<f64, ModelFileError> {
        if self.has(end) { self.number(end) } else { Ok(default) }
    }

    pub(super) fn has(&self, end: &str) -> bool {
        self.file.find(&self.key(end)).is_some()
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.file.find_tensor(name).is_some()
    }

    /// The file's pooling of an encoder; of one that ranks the head says what it sees.
    pub(super) fn pooling(&self) -> Result<Pooling, ModelFileError> {
        match self.optional_size("pooling_type")? {
            None | Some(MEAN) => Ok(Pooling::Mean),
            Some(CLS) => Ok(Pooling::Cls),
            Some(LAST) => Ok(Pooling::Last),
            Some(RANK) if self.has_labels() => Ok(Pooling::Cls),
            Some(RANK) => Err(invalid(format!(
                "'{}' is 4 (rank), but the file has no tensor '{LABELS}.weight', which would rate texts",
                self.key("pooling_type")
            ))),
            Some(other) => Err(invalid(format!(
                "'{}' is {other}, which is not implemented; expected 1 (mean), 2 (cls), 3 (last) or 4 (rank)",
                self.key("pooling_type")
            ))),
        }
    }

    fn has_labels(&self) -> bool {
        self.has_tensor(&format!("{LABELS}.weight"))
    }

    /// The labels' names, of a file with labels: by default transformers' own.
    fn labels(&self) -> Result<Option<Vec<String>>, ModelFileError> {
        let Some(matrix) = self.file.find_tensor(&format!("{LABELS}.weight")) else {
            return Ok(None);
        };
        let (rows, key) = (matrix.rows(), self.key("classifier.output_labels"));
        if rows > MOST_LABELS {
            return Err(invalid(format!(
                "tensor '{LABELS}.weight' has {rows} rows, one for each label; expected at most {MOST_LABELS}"
            )));
        }
        if self.file.find(&key).is_none() {
            return Ok(Some((0..rows).map(|label| format!("LABEL_{label}")).collect()));
        }
        let names = self.file.metadata_strings(&key)?;
        if names.len() != rows {
            return Err(invalid(format!(
                "'{key}' names {} labels, but tensor '{LABELS}.weight' has {rows} rows",
                names.len()
            )));
        }
        Ok(Some(names.to_vec()))
    }

    /// The head of one of BERT's families, if the file has one.
    pub(super) fn head(&self, architecture: EncoderArchitecture) -> Result<Option<Head>, ModelFileError> {
        let Some(labels) = self.labels()? else {
            return Ok(None);
        };
        let is_modern = architecture == EncoderArchitecture::ModernBert;
        // DistilBERT, which alone has no token types, goes through ReLU, which no key tells.
        let also = if is_modern { HEAD_NORM } else { "token_types" };
        let is_there = |name: &str| self.has_tensor(&format!("{name}.weight"));
        if !is_there(also) || !is_there(HEAD_DENSE) {
            return Err(invalid(format!(
                "the file has labels ('{LABELS}.weight') without the layer before them: llama.cpp's converter leaves out \
                 BERT's pooler and DistilBERT's activation, and the numbers would be others; take the model's folder"
            )));
        }
        Ok(Some(Head {
            kind: HeadKind::Texts,
            is_of_mean: is_modern && self.is_head_of_mean()?,
            has_dense_bias: self.has_tensor(&format!("{HEAD_DENSE}.bias")),
            inner: if is_modern {
                InnerActivation::Of(EncoderActivation::Gelu) // no key says so
            } else {
                InnerActivation::Tanh
            },
            words: None,
            activation: shown_as(&labels),
            labels,
        }))
    }

    /// Whether ModernBERT's head sees the mean: where the file does not say, as in llama.cpp.
    fn is_head_of_mean(&self) -> Result<bool, ModelFileError> {
        match self.optional_size("classifier.pooling_type")? {
            None | Some(MEAN) => Ok(true),
            Some(CLS) => Ok(false),
            Some(other) => Err(invalid(format!(
                "'{}' is {other}; expected 1 (mean) or 2 (cls)",
                self.key("classifier.pooling_type")
            ))),
        }
    }
}

fn shown_as(labels: &[String]) -> LabelActivation {
    if labels.len() == 1 {
        LabelActivation::Sigmoid
    } else {
        LabelActivation::Softmax
    }
}

/// Whether a decoder's file says that it embeds or ranks; one that does not chats.
fn is_pooled(keys: &Keys<'_>) -> bool {
    (MEAN..=RANK).contains(&keys.size("pooling_type").unwrap_or(0))
}

/// Reads a decoder that embeds, or that ranks by two words: Qwen3-Reranker's "yes" and "no" are labels of such a file.
pub(super) fn decoder_of_gguf(file: &ModelFile, gguf: &GgufFile) -> Result<EncoderConfig, ModelFileError> {
    let keys = Keys::of(gguf)?;
    let mut model = model::pooled_configuration(file, gguf)?;
    let is_embedding_gemma = keys.name == GEMMA_EMBEDDING;
    let causal = keys.key("attention.causal");
    let is_causal = !is_embedding_gemma && (gguf.find(&causal).is_none() || gguf.metadata_bool(&causal)?);
    if !is_causal && !is_embedding_gemma && model.sliding_window.is_some() {
        return Err(invalid(format!(
            "'{causal}' is false, which is not implemented beside a window of '{}'",
            keys.name
        )));
    }
    if !is_causal {
        model.sliding_window = model.sliding_window.map(|window| window / 2 + 1);
    }
    model.is_output_tied = Some(true); // there is no output matrix, or none that is used
    let ranks = keys.size("pooling_type")? == RANK;
    let labels = if ranks { keys.labels()? } else { None };
    let head = labels.map(|labels| Head {
        kind: HeadKind::Texts,
        is_of_mean: false,
        has_dense_bias: false,
        inner: InnerActivation::Tanh,
        words: None,
        activation: shown_as(&labels),
        labels,
    });
    let most = model.context_length.min(most_tokens(is_causal));
    Ok(EncoderConfig {
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        layers: Layers::Decoder(Box::new(DecoderConfig { model, is_causal })),
        pooling: vec![keys.pooling()?],
        dense: dense_steps(gguf),
        max_tokens: most,
        head,
        is_late: false,
        attention: None,
        closing_token: None,
        tasks: None,
    })
}

/// EmbeddingGemma's steps after pooling: matrices of the file.
fn dense_steps(file: &GgufFile) -> Vec<DenseStep> {
    let step = |name: &'static str| {
        let matrix = file.find_tensor(&format!("{name}.weight"))?;
        Some(DenseStep {
            place: DensePlace::Tensor(name),
            num_inputs: matrix.cols(),
            num_outputs: matrix.rows(),
            has_bias: file.find_tensor(&format!("{name}.bias")).is_some(),
            is_tanh: false,
        })
    };
    DENSE.into_iter().filter_map(step).collect()
}

/// What a file is for, by its header.
pub(super) fn task_of_gguf(file: &GgufFile) -> Option<&'static str> {
    let keys = Keys::of(file).ok()?;
    if EncoderArchitecture::from_gguf(keys.name).is_some() {
        let labels = file.find_tensor(&format!("{LABELS}.weight"));
        return Some(match labels.map(|labels| labels.rows()) {
            None => "embed",
            Some(1) => "rank",
            Some(_) => "classify",
        });
    }
    let is_decoder = keys.name == GEMMA_EMBEDDING || Architecture::from_name(keys.name).is_some();
    if !is_decoder || !is_pooled(&keys) {
        return None;
    }
    let ranks = keys.size("pooling_type").is_ok_and(|kind| kind == RANK);
    Some(if ranks { "rank" } else { "embed" })
}

//! What follows the layers of an encoder that ranks or classifies: the number that each label gets.

use serde_json::{Map, Value};

use super::bert_config::EncoderActivation;
use super::steps::LabelWords;
use crate::config::hugging_face::JsonConfig;
use crate::config::invalid;
use crate::weights::{ModelFileError, clipped};

/// Labels of a model at most, whatever a file says.
pub(super) const MOST_LABELS: usize = 1 << 16;

/// How a label's number is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelActivation {
    /// As it is.
    Identity,
    /// Each label apart, from 0 to 1.
    Sigmoid,
    /// All of them together are 1.
    Softmax,
}

/// What the layer before the labels' matrix goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerActivation {
    /// tanh.
    Tanh,
    /// What is less than 0 becomes 0.
    Relu,
    /// An encoder's own.
    Of(EncoderActivation),
}

/// What gets a number for each label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// A text, or a pair.
    Texts,
    /// Each token.
    Tokens,
    /// Each token, of which those count that end a step of reasoning: a process reward model.
    Steps,
}

/// A dense layer with tanh over the first token's vector, then one number for each label (Devlin et al. 2018).
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// What gets its numbers.
    pub kind: HeadKind,
    /// Whether it sees the mean of the tokens, and not the first one.
    pub is_of_mean: bool,
    /// Whether the dense layer adds something.
    pub has_dense_bias: bool,
    /// What that goes through.
    pub inner: InnerActivation,
    /// Words of a decoder that take the place of a labels' matrix.
    pub words: Option<LabelWords>,
    /// The labels' names, in the order of their numbers; a model that ranks has one.
    pub labels: Vec<String>,
    /// How their numbers are shown.
    pub activation: LabelActivation,
}

impl Head {
    /// Reads what `config.json` says; None for a model that embeds. Refuses a model of any other task by its name.
    pub(super) fn of(config: &Map<String, Value>) -> Result<Option<Self>, ModelFileError> {
        let names = config.get("architectures").and_then(Value::as_array);
        let names: Vec<&str> = names.into_iter().flatten().filter_map(Value::as_str).collect();
        let others = ["QuestionAnswering", "MultipleChoice"];
        if let Some(name) = names
            .iter()
            .find(|name| others.iter().any(|other| name.contains(other)))
        {
            return Err(invalid(format!(
                "config.json: the model is a {}; expected one that embeds, ranks or classifies texts",
                clipped(name)
            )));
        }
        let kinds = [
            ("ForSequenceClassification", HeadKind::Texts),
            ("ForTokenClassification", HeadKind::Tokens),
            ("Qwen2ForProcessRewardModel", HeadKind::Steps),
        ];
        let is_named = |end: &str| names.iter().any(|name| name.ends_with(end));
        let Some((_, kind)) = kinds.into_iter().find(|(end, _)| is_named(end)) else {
            return Ok(None);
        };
        let (labels, inner) = match kind {
            // The model's code, not its configuration, says that there are two.
            HeadKind::Steps => (
                vec!["negative".to_owned(), "positive".to_owned()],
                InnerActivation::Relu,
            ),
            HeadKind::Texts | HeadKind::Tokens => (labels(config)?, InnerActivation::Tanh),
        };
        let activation = activation(config, labels.len())?;
        Ok(Some(Self {
            kind,
            is_of_mean: false,
            has_dense_bias: true,
            inner,
            words: None,
            labels,
            activation,
        }))
    }

    /// The head of a decoder that ranks by its words.
    pub(super) fn of_words(config: &Map<String, Value>, words: LabelWords) -> Result<Self, ModelFileError> {
        Ok(Self {
            kind: HeadKind::Texts,
            is_of_mean: false,
            has_dense_bias: false,
            inner: InnerActivation::Tanh,
            words: Some(words),
            labels: vec!["relevance".to_owned()],
            activation: activation(config, 1)?,
        })
    }
}

/// The labels by number. transformers leaves them out where there are two without names.
fn labels(config: &Map<String, Value>) -> Result<Vec<String>, ModelFileError> {
    let named = config.get("id2label").and_then(Value::as_object);
    let count = match named {
        Some(named) => named.len(),
        None => JsonConfig(config, None).optional_size("num_labels")?.unwrap_or(2),
    };
    if !(1..=MOST_LABELS).contains(&count) {
        return Err(invalid(format!(
            "config.json: the model has {count} labels; expected 1 to {MOST_LABELS}"
        )));
    }
    let name_of = |label: usize| match named.map(|named| named.get(&label.to_string())) {
        None => Ok(format!("LABEL_{label}")),
        Some(Some(Value::String(name))) => Ok(name.clone()),
        Some(_) => Err(invalid(format!("config.json: 'id2label' names no label {label}"))),
    };
    (0..count).map(name_of).collect()
}

/// sentence-transformers writes how the numbers are shown; without it one label is between 0 and 1, as it does, and
/// several are shown as `problem_type` says.
fn activation(config: &Map<String, Value>, num_labels: usize) -> Result<LabelActivation, ModelFileError> {
    let written = config
        .get("sentence_transformers")
        .and_then(|about| about.get("activation_fn"))
        .or_else(|| config.get("sbert_ce_default_activation_function"))
        .and_then(Value::as_str);
    if let Some(name) = written {
        return match name.rsplit('.').next() {
            Some("Identity") => Ok(LabelActivation::Identity),
            Some("Sigmoid") => Ok(LabelActivation::Sigmoid),
            _ => {
                let name = clipped(name);
                Err(invalid(format!(
                    "config.json: labels are shown by '{name}', which is not implemented; expected Identity or Sigmoid"
                )))
            }
        };
    }
    match JsonConfig(config, None).text("problem_type") {
        Some("multi_label_classification") => Ok(LabelActivation::Sigmoid),
        Some("regression") => Ok(LabelActivation::Identity),
        _ if num_labels == 1 => Ok(LabelActivation::Sigmoid),
        _ => Ok(LabelActivation::Softmax),
    }
}

/// Shows the numbers of a text's labels, in double precision.
pub(super) fn activate(activation: LabelActivation, numbers: &mut [f32]) {
    match activation {
        LabelActivation::Identity => {}
        LabelActivation::Sigmoid => {
            for number in numbers {
                *number = (1.0 / (1.0 + (-f64::from(*number)).exp())) as f32;
            }
        }
        LabelActivation::Softmax => {
            let most = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = numbers.iter().map(|x| (f64::from(*x) - f64::from(most)).exp()).sum();
            for number in numbers {
                *number = ((f64::from(*number) - f64::from(most)).exp() / sum) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(config: &str) -> Result<Option<Head>, ModelFileError> {
        Head::of(serde_json::from_str::<Value>(config).unwrap().as_object().unwrap())
    }

    /// What `config.json` and sentence-transformers say decides labels and how they are shown.
    #[test]
    fn heads_are_read_from_what_files_say() {
        let is = |extra: &str| {
            let config = format!(r#"{{"architectures": ["BertForSequenceClassification"]{extra}}}"#);
            let head = head(&config).unwrap().unwrap();
            (head.labels.join(" "), head.activation)
        };
        let two = "LABEL_0 LABEL_1".to_owned();
        assert_eq!(is(""), (two.clone(), LabelActivation::Softmax));
        assert_eq!(
            is(r#", "num_labels": 1"#),
            ("LABEL_0".to_owned(), LabelActivation::Sigmoid)
        );
        let multi = r#", "problem_type": "multi_label_classification""#;
        assert_eq!(is(multi), (two, LabelActivation::Sigmoid));
        let one = r#", "id2label": {"0": "x"}, "sentence_transformers": {"activation_fn": "torch.nn.Identity"}"#;
        assert_eq!(is(one), ("x".to_owned(), LabelActivation::Identity));
        let named = r#", "id2label": {"1": "no", "0": "yes"}"#;
        assert_eq!(is(named), ("yes no".to_owned(), LabelActivation::Softmax));
        let tokens = r#"{"architectures": ["BertForTokenClassification"], "num_labels": 3}"#;
        let tokens = head(tokens).unwrap().unwrap();
        assert_eq!((tokens.kind, tokens.labels.len()), (HeadKind::Tokens, 3));
        let steps = head(r#"{"architectures": ["Qwen2ForProcessRewardModel"]}"#)
            .unwrap()
            .unwrap();
        assert_eq!((steps.kind, steps.inner), (HeadKind::Steps, InnerActivation::Relu));
        assert_eq!(steps.labels.join(" "), "negative positive");
        assert_eq!(head(r#"{"architectures": ["BertModel"]}"#).unwrap(), None);
        assert_eq!(head("{}").unwrap(), None);
    }

    /// Other tasks, other activations and labels that are not there are refused by name.
    #[test]
    fn what_is_no_head_of_ours_is_refused_by_name() {
        let why = |config: &str| head(config).unwrap_err().to_string();
        let sequence = r#""architectures": ["XForSequenceClassification"]"#;
        assert!(why(r#"{"architectures": ["BertForQuestionAnswering"]}"#).contains("BertForQuestionAnswering"));
        assert!(why(&format!(r#"{{{sequence}, "id2label": {{"1": "x"}}}}"#)).contains("label 0"));
        assert!(why(&format!(r#"{{{sequence}, "id2label": {{}}}}"#)).contains("0 labels"));
        assert!(why(&format!(r#"{{{sequence}, "num_labels": 100000}}"#)).contains("100000 labels"));
        let shown = r#""sbert_ce_default_activation_function": "torch.nn.ReLU""#;
        assert!(why(&format!("{{{sequence}, {shown}}}")).contains("torch.nn.ReLU"));
    }

    /// Large numbers stay finite.
    #[test]
    fn numbers_are_shown_as_their_names_say() {
        let mut numbers = [1000.0, 0.0, -1000.0];
        activate(LabelActivation::Softmax, &mut numbers);
        assert_eq!(numbers, [1.0, 0.0, 0.0]);
        let mut numbers = [1000.0, 0.0, -1000.0];
        activate(LabelActivation::Sigmoid, &mut numbers);
        assert_eq!(numbers, [1.0, 0.5, 0.0]);
        activate(LabelActivation::Identity, &mut numbers);
        assert_eq!(numbers, [1.0, 0.5, 0.0]);
    }
}

//! What sentence-transformers writes beside a model: how a text's tokens become one vector, what follows, how long a text
//! may be.

use std::path::Path;

use serde_json::{Map, Value};

use crate::config::hugging_face::JsonConfig;
use crate::config::invalid;
use crate::safetensors::{CONFIG_NAME, read_json, read_object};
use crate::weights::{ModelFileError, clipped};

/// What sentence-transformers says of a model's steps.
pub(super) const MODULES: &str = "modules.json";

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// Their sum over the root of their number.
    MeanSqrtLen,
    /// The first one's.
    Cls,
    /// Of each dimension the greatest.
    Max,
    /// The last one's.
    Last,
    /// Their mean weighted by position, from 1.
    WeightedMean,
    /// What a learned query attends to.
    Attention,
}

impl Pooling {
    /// All that `1_Pooling` may name, in the order in which sentence-transformers puts them one after another.
    const ALL: [Self; 6] = [
        Self::Cls,
        Self::Max,
        Self::Mean,
        Self::MeanSqrtLen,
        Self::WeightedMean,
        Self::Last,
    ];

    /// The name that files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::MeanSqrtLen => "mean_sqrt_len",
            Self::Cls => "cls",
            Self::Max => "max",
            Self::Last => "lasttoken",
            Self::WeightedMean => "weightedmean",
            Self::Attention => "attention",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "mean" | "mean_tokens" => Some(Self::Mean),
            "mean_sqrt_len" | "mean_sqrt_len_tokens" => Some(Self::MeanSqrtLen),
            "cls" | "cls_token" => Some(Self::Cls),
            "max" | "max_tokens" => Some(Self::Max),
            "lasttoken" => Some(Self::Last),
            "weightedmean" | "weightedmean_tokens" => Some(Self::WeightedMean),
            _ => None,
        }
    }
}

/// Where a dense layer's matrix is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DensePlace {
    /// In a folder below the model's.
    Folder(String),
    /// In the model's file, by this name.
    Tensor(&'static str),
}

impl DensePlace {
    /// The folder's name, or the tensor's, for messages.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Folder(folder) => folder,
            Self::Tensor(name) => name,
        }
    }
}

/// A dense layer that follows pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseStep {
    /// Where its matrix is.
    pub place: DensePlace,
    /// Numbers it takes.
    pub num_inputs: usize,
    /// Numbers it gives.
    pub num_outputs: usize,
    /// Whether something is added.
    pub has_bias: bool,
    /// Whether what it gives goes through tanh.
    pub is_tanh: bool,
}

impl DenseStep {
    fn of(model: &Path, folder: &str) -> Result<Self, ModelFileError> {
        let path = model.join(folder).join(CONFIG_NAME);
        let config = read_object(&path)?;
        let read = || {
            let json = JsonConfig(&config, None);
            if config.get("use_residual") == Some(&Value::Bool(true)) {
                return Err(invalid("'use_residual' is not implemented".to_owned()));
            }
            let activation = json.text("activation_function").unwrap_or("Tanh");
            Ok::<_, ModelFileError>(Self {
                place: DensePlace::Folder(folder.to_owned()),
                num_inputs: json.size("in_features")?,
                num_outputs: json.size("out_features")?,
                has_bias: config.get("bias") != Some(&Value::Bool(false)),
                is_tanh: match activation.rsplit('.').next() {
                    Some("Identity") => false,
                    Some("Tanh") => true,
                    _ => {
                        let activation = clipped(activation);
                        return Err(invalid(format!(
                            "the activation '{activation}' is not implemented; expected Identity or Tanh"
                        )));
                    }
                },
            })
        };
        read().map_err(|error| error.in_file(&path))
    }
}

/// The words by which a decoder ranks: how much likelier it says the one than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelWords {
    /// The token of a document that answers the query.
    pub yes: usize,
    /// The token of one that does not; without one `yes` counts alone.
    pub no: Option<usize>,
}

impl LabelWords {
    /// Those that a model's folder names, if it ranks so.
    pub(super) fn of(folder: &Path) -> Result<Option<Self>, ModelFileError> {
        let modules = folder.join(MODULES);
        if !modules.exists() {
            return Ok(None);
        }
        let steps = read_json(&modules)?;
        let Some(name) = score_folder(&steps).map_err(|error| error.in_file(&modules))? else {
            return Ok(None);
        };
        let path = folder.join(name).join(CONFIG_NAME);
        let config = read_object(&path)?;
        let json = JsonConfig(&config, None);
        let read = || {
            Ok::<_, ModelFileError>(Self {
                yes: json.size("true_token_id")?,
                no: json.optional_size("false_token_id")?,
            })
        };
        read().map(Some).map_err(|error| error.in_file(&path))
    }
}

/// The folder of the step LogitScore, which follows the model and nothing else.
fn score_folder(modules: &Value) -> Result<Option<&str>, ModelFileError> {
    let steps = modules.as_array().map(Vec::as_slice).unwrap_or_default();
    let kind = |step: &Value| {
        let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
        kind.rsplit('.').next().unwrap_or_default().to_owned()
    };
    let Some(step) = steps.iter().find(|step| kind(step) == SCORE) else {
        return Ok(None);
    };
    if let Some(other) = steps
        .iter()
        .map(kind)
        .find(|kind| kind != "Transformer" && kind != SCORE)
    {
        let other = clipped(&other);
        return Err(invalid(format!("the step '{other}' is not implemented beside {SCORE}")));
    }
    let path = step.get("path").and_then(Value::as_str).unwrap_or_default();
    plain_folder(SCORE, path).map(Some)
}

const SCORE: &str = "LogitScore";

/// What sentence-transformers writes beside a model.
pub(super) struct Steps {
    pub(super) pooling: Vec<Pooling>,
    pub(super) dense: Vec<DenseStep>,
    pub(super) max_tokens: Option<usize>,
    /// Whether a text is its tokens' vectors, as nothing pools them (late interaction, Khattab and Zaharia 2020).
    pub(super) is_late: bool,
}

impl Steps {
    /// Reads a folder's files; one that has none is pooled by the mean, as sentence-transformers does.
    pub(super) fn of(folder: &Path) -> Result<Self, ModelFileError> {
        let about = folder.join("sentence_bert_config.json");
        let max_tokens = if about.exists() {
            let object = read_object(&about)?;
            let found = JsonConfig(&object, None).optional_size("max_seq_length");
            found.map_err(|error| error.in_file(&about))?
        } else {
            None
        };
        let modules = folder.join(MODULES);
        if !modules.exists() || LabelWords::of(folder)?.is_some() {
            return Ok(Self {
                pooling: vec![Pooling::Mean],
                dense: Vec::new(),
                max_tokens,
                is_late: false,
            });
        }
        let steps = read_json(&modules)?;
        let (pooled, dense) = step_folders(&steps).map_err(|error| error.in_file(&modules))?;
        let pooling = match pooled {
            Some(pooled) => {
                let path = folder.join(pooled).join(CONFIG_NAME);
                pooling_of(&read_object(&path)?).map_err(|error| error.in_file(&path))?
            }
            None => vec![Pooling::Mean], // of nothing: nobody asks for a text's vector
        };
        let dense = dense.into_iter().map(|dense| DenseStep::of(folder, dense));
        Ok(Self {
            pooling,
            dense: dense.collect::<Result<_, _>>()?,
            // Of late interaction queries and documents have lengths of their own.
            max_tokens: max_tokens.filter(|_| pooled.is_some()),
            is_late: pooled.is_none(),
        })
    }
}

/// Whether a folder is of a model of late interaction: it has dense steps and does not pool.
pub(super) fn is_late(folder: &Path) -> bool {
    let steps = read_json(&folder.join(MODULES));
    steps.is_ok_and(|steps| matches!(step_folders(&steps), Ok((None, _))))
}

/// The folder that says how to pool, and those of dense layers after it; without the first they are of each token. Raises
/// for steps that are not implemented, and for a folder somewhere else.
fn step_folders(modules: &Value) -> Result<(Option<&str>, Vec<&str>), ModelFileError> {
    let steps = modules.as_array().map(Vec::as_slice).unwrap_or_default();
    let (mut pooling, mut dense) = (None, Vec::new());
    for step in steps {
        let text = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        match kind.rsplit('.').next() {
            Some("Transformer" | "Normalize") => {}
            Some("Pooling") if pooling.is_none() && dense.is_empty() => {
                pooling = Some(plain_folder("Pooling", text("path"))?)
            }
            Some("Dense") => dense.push(plain_folder("Dense", text("path"))?),
            _ => {
                let kind = clipped(kind);
                return Err(invalid(format!(
                    "the step '{kind}' is not implemented here; expected one each of Transformer, Pooling and Normalize, \
                     with Dense after Pooling or in its place"
                )));
            }
        }
    }
    if pooling.is_none() && dense.is_empty() {
        let text = "no step is Pooling, and none Dense: the model gives no vector for a text or a token";
        return Err(invalid(text.to_owned()));
    }
    Ok((pooling, dense))
}

/// A folder's name, of a step.
fn plain_folder<'a>(step: &str, name: &'a str) -> Result<&'a str, ModelFileError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        let name = clipped(name);
        return Err(invalid(format!(
            "the step {step} is in '{name}'; expected a folder's name"
        )));
    }
    Ok(name)
}

/// The poolings that a file names, in the order of their vectors: as texts, or by what is true.
fn pooling_of(config: &Map<String, Value>) -> Result<Vec<Pooling>, ModelFileError> {
    const PREFIX: &str = "pooling_mode_";
    let mut names: Vec<&str> = match config.get("pooling_mode") {
        Some(Value::Array(modes)) => modes.iter().map(|mode| mode.as_str().unwrap_or("?")).collect(),
        Some(mode) if !mode.is_null() => vec![mode.as_str().unwrap_or("?")],
        _ => Vec::new(),
    };
    let truths = config.iter().filter(|(_, value)| **value == Value::Bool(true));
    names.extend(truths.filter_map(|(key, _)| key.strip_prefix(PREFIX)));
    let refused = |what: String| {
        let expected = Pooling::ALL.map(Pooling::name).join(", ");
        invalid(format!("{what}; expected one or more of {expected}"))
    };
    let unknown = |name: &str| refused(format!("pooling by '{}' is not implemented", clipped(name)));
    let found: Vec<Pooling> = names
        .into_iter()
        .map(|name| Pooling::from_name(name).ok_or_else(|| unknown(name)))
        .collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(refused("no way of pooling is named".to_owned()));
    }
    Ok(Pooling::ALL.into_iter().filter(|mode| found.contains(mode)).collect())
}

//! A folder in the layout of the Hugging Face hub: `config.json` and one or more `*.safetensors`, or in their place
//! `model.tensors` or `pytorch_model.bin`, whose tensors lie in the file as those do ([`crate::tensorizer`],
//! [`crate::pytorch`]).
//!
//! A safetensors header is read by the `safetensors` crate, which refuses holes, overlaps and sizes that disagree
//! with dtype and shape; here its size is bounded first, its facts are put into errors, and its shapes are turned to
//! the order of [`TensorView`]. File names in an index are hostile input too: only names in this folder are opened.

mod header;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(crate) use header::{MAX_DIMS, checked_dims};
pub use header::{SafetensorsHeader, SafetensorsInfo};

use crate::family::{FamilyDescription, ScoreTables};
use crate::pytorch::StateDict;
use crate::tensorizer::TensorizerFile;
use crate::weights::{Asked, LoadProgress, Mapping, ModelFileError, StoredTensor, TensorView, clipped, range_within};

/// Longest `config.json` or index that is read; real ones are below 1 MiB.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// Fields of `config.json` that say how weights are quantised.
pub(crate) const QUANTIZATION: [&str; 2] = ["quantization_config", "compression_config"];
pub(crate) const CONFIG_NAME: &str = "config.json";
const ADAPTER_CONFIG_NAME: &str = "adapter_config.json";
/// An adapter's weights, the first one that is there.
const ADAPTER_NAMES: [&str; 3] = [
    "adapter_model.safetensors",
    "adapter_model.tensors",
    "adapter_model.bin",
];

/// The names that files of weights have.
struct Form {
    /// Says in which files the tensors are, where it is there; none is written of some forms.
    index: Option<&'static str>,
    /// All of them.
    whole: &'static str,
    /// The beginning and the ending of every file's name.
    ends: (&'static str, &'static str),
}

/// The forms of a folder's weights; the first one of which there are files is read.
const FORMS: [Form; 4] = [
    Form {
        index: Some("model.safetensors.index.json"),
        whole: "model.safetensors",
        ends: ("", ".safetensors"),
    },
    Form {
        index: None,
        whole: "model.tensors",
        ends: ("model.tensors", ".tensors"),
    },
    Form {
        index: Some("pytorch_model.bin.index.json"),
        whole: "pytorch_model.bin",
        ends: ("pytorch_model", ".bin"),
    },
    // Heads of Medusa, as its authors publish them.
    Form {
        index: None,
        whole: "medusa_lm_head.pt",
        ends: ("medusa_lm_head", ".pt"),
    },
];

/// Element types that are read, for messages.
const SUPPORTED: &str = "F32, F16, BF16";

/// A JSON object: keys with any values.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;

/// A model in safetensors files or PyTorch's, mapped, their headers checked.
#[derive(Debug)]
pub struct SafetensorsFolder {
    path: PathBuf,
    config: JsonObject,
    shards: Vec<Mapping>,
    name_to_tensor: BTreeMap<String, ShardTensor>,
    scores: Option<ScoreTables>,
    pub(crate) asked: Asked,
    pub(crate) progress: OnceLock<Arc<LoadProgress>>,
}

/// A tensor and the shard it is in.
#[derive(Debug)]
struct ShardTensor {
    shard: usize,
    info: SafetensorsInfo,
}

impl SafetensorsFolder {
    /// Reads `config.json`, maps the files of weights and checks their headers.
    ///
    /// With a `model.safetensors.index.json` the files are those it names, and each tensor must be where it says;
    /// without one there is `model.safetensors`, beside which others may lie for other programs, or they are all
    /// `*.safetensors` of the folder. Where there are none, there is `model.tensors`, or the same holds of
    /// `pytorch_model.bin`. As with GGUF, files must not be changed in place.
    pub fn open(path: &Path) -> Result<Self, ModelFileError> {
        let config = read_object(&path.join(CONFIG_NAME))?;
        let (form, found) = find_files(path).map_err(|error| error.in_file(path))?;
        let index = path.join(form.index.unwrap_or_default());
        let weight_map = if form.index.is_some() && index.exists() {
            Some(read_index(&index, form)?)
        } else {
            None
        };
        let file_names = match &weight_map {
            Some(weight_map) => weight_map.values().cloned().collect(),
            None => found,
        };
        let mut folder = Self {
            path: path.to_owned(),
            config,
            shards: Vec::new(),
            name_to_tensor: BTreeMap::new(),
            scores: None,
            asked: Asked::default(),
            progress: OnceLock::new(),
        };
        for file_name in &file_names {
            folder.add_shard(&path.join(file_name))?;
        }
        for (name, file_name) in weight_map.iter().flatten() {
            folder
                .check_place(name, file_name)
                .map_err(|error| error.in_file(&index))?;
        }
        Ok(folder)
    }

    /// Reads an adapter's `adapter_config.json`, maps its weights and checks their header.
    pub(crate) fn open_adapter(path: &Path) -> Result<Self, ModelFileError> {
        let mut folder = Self {
            path: path.to_owned(),
            config: read_object(&path.join(ADAPTER_CONFIG_NAME))?,
            shards: Vec::new(),
            name_to_tensor: BTreeMap::new(),
            scores: None,
            asked: Asked::default(),
            progress: OnceLock::new(),
        };
        let paths = ADAPTER_NAMES.map(|name| path.join(name));
        folder.add_shard(paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]))?;
        Ok(folder)
    }

    /// The folder as a description has it. How its weights are quantised its own `config.json` says, unless the description does.
    pub(crate) fn described(mut self, description: &FamilyDescription) -> Result<Self, ModelFileError> {
        let mut config = description.config().clone();
        for field in QUANTIZATION {
            if let Some(own) = self.config.remove(field) {
                config.entry(field).or_insert(own);
            }
        }
        let name_to_tensor = description.renamed(self.name_to_tensor)?;
        let scores = description.scores().cloned();
        Ok(Self {
            config,
            name_to_tensor,
            scores,
            ..self
        })
    }

    /// What layers add to scores, where a description says it.
    pub(crate) fn scores(&self) -> Option<&ScoreTables> {
        self.scores.as_ref()
    }

    /// The folder that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of `config.json`.
    pub fn config(&self) -> &JsonObject {
        &self.config
    }

    /// The tensor with this name, if there is one; an error if its element type cannot be read.
    pub fn find_tensor(&self, name: &str) -> Result<Option<TensorView<'_>>, ModelFileError> {
        let Some((name, tensor)) = self.name_to_tensor.get_key_value(name) else {
            return Ok(None);
        };
        self.view(name, tensor).map(Some)
    }

    /// The tensor with this name, if there is one whose elements are not read as numbers here.
    pub fn find_unread(&self, name: &str) -> Option<StoredTensor<'_>> {
        let (name, tensor) = self.name_to_tensor.get_key_value(name)?;
        let kind = tensor.info.kind.as_ref().err()?;
        let bytes = &self.shards[tensor.shard].bytes()[tensor.info.range.clone()];
        let dims = tensor.info.dims.clone();
        Some(StoredTensor {
            name,
            dims,
            kind,
            bytes,
        })
    }

    /// Every tensor whose element type can be read, by name.
    ///
    /// Others (position numbers of old models, for instance) do not keep a folder from being opened; asking for one
    /// of them by name says what it is.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.name_to_tensor
            .iter()
            .filter_map(|(name, tensor)| self.view(name, tensor).ok())
    }

    /// The files, each with its size, in the order of [`Self::place`].
    pub(crate) fn shards(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.shards.iter().map(|shard| (shard.path(), shard.bytes().len()))
    }

    /// In which file a tensor is, and at which of its bytes.
    pub(crate) fn place(&self, name: &str) -> Option<(usize, Range<usize>)> {
        let tensor = self.name_to_tensor.get(name)?;
        Some((tensor.shard, tensor.info.range.clone()))
    }

    /// A copy of bytes of a tensor, read and not mapped: an error where the file has become shorter.
    pub(crate) fn copied(&self, bytes: &[u8]) -> Result<Vec<u8>, ModelFileError> {
        let mut out = vec![0; bytes.len()];
        for shard in &self.shards {
            if let Some(range) = range_within(bytes, shard.bytes()) {
                shard.read(range, &mut out)?;
            }
        }
        Ok(out)
    }

    /// The names of all tensors, in order.
    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.name_to_tensor.keys().map(String::as_str)
    }

    /// Bytes of all files of weights.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes().len() as u64).sum()
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.shards.iter()
    }

    fn add_shard(&mut self, path: &Path) -> Result<(), ModelFileError> {
        let mapping = Mapping::open(path)?;
        let tensors = match path.extension().and_then(|extension| extension.to_str()) {
            Some("bin" | "pt") => StateDict::parse(mapping.bytes()).map(|dict| dict.tensors),
            Some("tensors") => TensorizerFile::parse(mapping.bytes()).map(|file| file.tensors),
            _ => SafetensorsHeader::parse(mapping.bytes()).map(|header| header.tensors),
        };
        let shard = self.shards.len();
        for (name, info) in tensors.map_err(|error| error.in_file(path))? {
            if self.name_to_tensor.contains_key(&name) {
                let fault = ModelFileError::Duplicate {
                    what: "tensor name",
                    name: clipped(&name),
                };
                return Err(fault.in_file(path));
            }
            self.name_to_tensor.insert(name, ShardTensor { shard, info });
        }
        self.shards.push(mapping);
        Ok(())
    }

    fn check_place(&self, name: &str, file_name: &str) -> Result<(), ModelFileError> {
        let found = self
            .name_to_tensor
            .get(name)
            .map(|tensor| self.shards[tensor.shard].path());
        if found.is_some_and(|path| path.ends_with(file_name)) {
            return Ok(());
        }
        let place = found.map_or("in no file".to_owned(), |path| format!("in {}", path.display()));
        let reason = format!(
            "it says tensor {:?} is in {file_name}, but it is {place}",
            clipped(name)
        );
        Err(ModelFileError::Json { reason })
    }

    fn view<'a>(&'a self, name: &'a str, tensor: &'a ShardTensor) -> Result<TensorView<'a>, ModelFileError> {
        let mapping = &self.shards[tensor.shard];
        match &tensor.info.kind {
            Ok(kind) => {
                let bytes = &mapping.bytes()[tensor.info.range.clone()];
                Ok(TensorView {
                    name,
                    dims: &tensor.info.dims,
                    kind: *kind,
                    bytes,
                })
            }
            Err(found) => {
                let (name, found) = (clipped(name), found.clone());
                let fault = ModelFileError::ElementType {
                    name,
                    found,
                    supported: SUPPORTED,
                };
                Err(fault.in_file(mapping.path()))
            }
        }
    }
}

/// The form of a folder's weights, and the names of their files as far as no index says them.
fn find_files(folder: &Path) -> Result<(&'static Form, BTreeSet<String>), ModelFileError> {
    let unreadable = |source| ModelFileError::Io {
        action: "list the folder",
        source,
    };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        names.extend(name.to_str().map(str::to_owned));
    }
    for form in &FORMS {
        let mut found: BTreeSet<String> = names.iter().filter(|name| form.names(name)).cloned().collect();
        if found.contains(form.whole) {
            found.retain(|name| name == form.whole);
        }
        if !found.is_empty() || form.index.is_some_and(|index| names.contains(index)) {
            return Ok((form, found));
        }
    }
    let other = names.iter().find(|name| name.ends_with(".tensors"));
    let other = other.map_or("none of these".to_owned(), |name| {
        format!("{}, which is a part of a model, or of another kind", clipped(name))
    });
    let got = format!("a folder with config.json and {other}");
    Err(ModelFileError::NotAModel { got })
}

impl Form {
    /// Whether this names a file of weights in the folder itself, not one somewhere else.
    fn names(&self, name: &str) -> bool {
        let (start, end) = self.ends;
        name.starts_with(start) && name.ends_with(end) && !name.contains(['/', '\\', ':', '\0'])
    }
}

/// Whether a file of this name is one of a folder's weights.
pub(crate) fn is_weights_name(name: &str) -> bool {
    FORMS.iter().any(|form| form.names(name))
}

/// The index's map from tensor to file.
fn read_index(path: &Path, form: &Form) -> Result<BTreeMap<String, String>, ModelFileError> {
    let refuse = |reason: String| ModelFileError::Json { reason }.in_file(path);
    let object = read_object(path)?;
    let Some(weight_map) = object.get("weight_map").and_then(serde_json::Value::as_object) else {
        return Err(refuse(
            "expected an object \"weight_map\" from tensor names to file names".to_owned(),
        ));
    };
    let mut name_to_file = BTreeMap::new();
    for (name, file) in weight_map {
        let Some(file) = file.as_str().filter(|file| form.names(file)) else {
            let (name, file) = (clipped(name), clipped(&file.to_string()));
            return Err(refuse(format!(
                "tensor {name:?} is in {file}: expected the name of a {} file beside it, as {} has them; download the \
                 folder again, or delete the index where {} has all tensors",
                form.ends.1.trim_start_matches('.'),
                form.index.unwrap_or_default(),
                form.whole
            )));
        };
        name_to_file.insert(name.clone(), file.to_owned());
    }
    if name_to_file.is_empty() {
        return Err(refuse("\"weight_map\" names no tensors".to_owned()));
    }
    Ok(name_to_file)
}

/// Reads a JSON file that must hold an object.
pub(crate) fn read_object(path: &Path) -> Result<JsonObject, ModelFileError> {
    read_bounded(path)
        .and_then(|bytes| parse_object(&bytes))
        .map_err(|error| error.in_file(path))
}

/// Reads a text that must be a JSON object.
pub(crate) fn parse_object(json: &[u8]) -> Result<JsonObject, ModelFileError> {
    match parse_json(json)? {
        serde_json::Value::Object(object) => Ok(object),
        _ => {
            let reason = "expected a JSON object".to_owned();
            Err(ModelFileError::Json { reason })
        }
    }
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value, ModelFileError> {
    read_bounded(path)
        .and_then(|bytes| parse_json(&bytes))
        .map_err(|error| error.in_file(path))
}

fn parse_json(json: &[u8]) -> Result<serde_json::Value, ModelFileError> {
    if json.len() as u64 > MAX_JSON_BYTES {
        return Err(ModelFileError::Json {
            reason: format!("it is longer than the {MAX_JSON_BYTES} bytes allowed"),
        });
    }
    let parsed = serde_json::from_slice(json).or_else(|_| serde_json::from_slice(&with_words(json)));
    parsed.map_err(|error| ModelFileError::Json {
        reason: clipped(&error.to_string()),
    })
}

/// JSON in which numbers that Python writes as words, and JSON has not, are objects, as transformers 5 writes them:
/// `{"__float__": "Infinity"}`.
fn with_words(json: &[u8]) -> Vec<u8> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let (mut out, mut rest, mut is_text) = (Vec::with_capacity(json.len()), json, false);
    while let Some((&byte, after)) = rest.split_first() {
        let word = WORDS.iter().find(|word| !is_text && rest.starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend_from_slice(format!("{{\"__float__\":\"{word}\"}}").as_bytes());
            rest = &rest[word.len()..];
            continue;
        }
        let len = if is_text && byte == b'\\' { 2.min(rest.len()) } else { 1 };
        is_text ^= byte == b'"';
        out.extend_from_slice(&rest[..len]);
        rest = if len == 1 { after } else { &rest[len..] };
    }
    out
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, ModelFileError> {
    let io = |action| move |source| ModelFileError::Io { action, source };
    let facts = path.metadata().map_err(io("find the file"))?;
    if !facts.is_file() {
        return Err(ModelFileError::Json {
            reason: "expected a file, got something else".to_owned(),
        });
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io("open the file"))?;
    file.take(MAX_JSON_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io("read the file"))?;
    Ok(bytes)
}

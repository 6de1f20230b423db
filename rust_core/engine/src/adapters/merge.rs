//! Merging: what adapters add, added to a model's own weights for good.
//!
//! It works by names alone: those that peft wraps are the names of the folder's tensors. So it needs no description of the
//! model, and merges into matrices that steps have no place for, such as those of experts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use pyagent_kernels::ggml::{self, GgmlError};

use super::file::{Tensors, by_module, checked_module, open, without_decoder};
use super::load::numbers;
use super::stack::check_alone;
use crate::config::invalid;
use crate::safetensors::SafetensorsFolder;
use crate::weights::{ModelFile, ModelFileError, TensorView, clipped};

/// What the names of a matrix's tensors end in.
const WEIGHT: &str = ".weight";

/// A folder of safetensors, and the files of adapters that are merged into it, checked against each other.
#[derive(Debug)]
pub struct AdapterMerge {
    base: SafetensorsFolder,
    files: Vec<ModelFile>,
    name_to_parts: BTreeMap<String, Vec<Part>>,
}

/// What one adapter adds to a tensor.
#[derive(Debug)]
struct Part {
    file: usize,
    tensors: Tensors,
    scale: f32,
}

/// A safetensors file, and which of its bytes are those of tensors that are added to.
#[derive(Debug)]
pub struct MergedShard<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its size.
    pub bytes: usize,
    /// The tensors that are added to, in the order of the file: name, bytes, rows.
    pub tensors: Vec<(&'a str, Range<usize>, usize)>,
}

/// What is added to one tensor, in memory.
#[derive(Debug)]
pub struct MergedTensor {
    name: String,
    deltas: Vec<Delta>,
}

/// `scale * B A`; of `DoRA`, rows are then as long as `magnitudes` say.
#[derive(Debug)]
struct Delta {
    a: Vec<f32>,
    b: Vec<f32>,
    rank: usize,
    scale: f32,
    magnitudes: Option<Vec<f32>>,
}

impl AdapterMerge {
    /// Opens a model's folder, and folders of peft's.
    pub fn open(model: &Path, adapters: &[impl AsRef<Path>]) -> Result<Self, ModelFileError> {
        let base = SafetensorsFolder::open(model)?;
        if base
            .config()
            .get("quantization_config")
            .is_some_and(|told| !told.is_null())
        {
            let text = "its weights are quantised; merge into the folder of the model as it was published before";
            return Err(invalid(text.to_owned()).in_file(model));
        }
        let is_rewritable = |(file, _): (&Path, usize)| file.extension().is_some_and(|kind| kind == "safetensors");
        if !base.shards().all(is_rewritable) {
            let text = "its weights are what torch or tensorizer wrote; save it as safetensors first: \
                model.save_pretrained(FOLDER)";
            return Err(invalid(text.to_owned()).in_file(model));
        }
        let mut merge = Self {
            base,
            files: Vec::new(),
            name_to_parts: BTreeMap::new(),
        };
        for path in adapters {
            let path = path.as_ref();
            merge.add(path, adapters.len()).map_err(|error| error.in_file(path))?;
        }
        Ok(merge)
    }

    /// The model's files.
    pub fn shards(&self) -> Vec<MergedShard<'_>> {
        let mut shards: Vec<_> = self
            .base
            .shards()
            .map(|(path, bytes)| MergedShard {
                path,
                bytes,
                tensors: Vec::new(),
            })
            .collect();
        for name in self.name_to_parts.keys() {
            if let Some((shard, range)) = self.base.place(name) {
                let rows = self
                    .base
                    .find_tensor(name)
                    .ok()
                    .flatten()
                    .map_or(1, |tensor| tensor.rows());
                shards[shard].tensors.push((name, range, rows));
            }
        }
        shards
            .iter_mut()
            .for_each(|shard| shard.tensors.sort_by_key(|(_, range, _)| range.start));
        shards
    }

    /// Reads what is added to a tensor.
    pub fn tensor(&self, name: &str) -> Result<MergedTensor, ModelFileError> {
        let parts = self.name_to_parts.get(name).into_iter().flatten();
        let deltas = parts.map(|part| {
            let file = &self.files[part.file];
            let read = |name: &Option<String>| numbers(file, name.as_deref().unwrap_or_default());
            let delta = || {
                let magnitude = &part.tensors.magnitude;
                let (a, b) = (read(&part.tensors.a)?, read(&part.tensors.b)?);
                let rank = file.tensor(part.tensors.a.as_deref().unwrap_or_default())?.rows();
                let magnitudes = magnitude.is_some().then(|| read(magnitude)).transpose()?;
                let scale = part.scale;
                Ok(Delta {
                    a,
                    b,
                    rank,
                    scale,
                    magnitudes,
                })
            };
            delta().map_err(|error: ModelFileError| error.in_file(file.path()))
        });
        Ok(MergedTensor {
            name: name.to_owned(),
            deltas: deltas.collect::<Result<_, _>>()?,
        })
    }

    /// Rows of the model's tensor with what is added, in the type that the file has them; in so many threads.
    pub fn rows(&self, merged: &MergedTensor, rows: &Range<usize>, threads: usize) -> Result<Vec<u8>, ModelFileError> {
        let told = |error: GgmlError| {
            let name = clipped(&merged.name);
            invalid(format!("tensor {name:?} with what is added: {error}")).in_file(self.base.path())
        };
        let gone = || invalid("the model has changed".to_owned()).in_file(self.base.path());
        let tensor = self.base.find_tensor(&merged.name)?.ok_or_else(gone)?;
        let (cols, part) = (tensor.cols(), tensor.part(rows).ok_or_else(gone)?);
        let read = self.base.copied(part.bytes)?;
        let mut values = TensorView { bytes: &read, ..part }.to_f32().map_err(told)?;
        let share = rows.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for (at, values) in values.chunks_mut(share * cols).enumerate() {
                let first = rows.start + at * share;
                scope.spawn(move || {
                    for (row, values) in values.chunks_exact_mut(cols).enumerate() {
                        add_row(&merged.deltas, first + row, values);
                    }
                });
            }
        });
        let mut out = vec![0; part.bytes.len()];
        ggml::quantise(tensor.kind, &values, &mut out, threads).map_err(told)?;
        Ok(out)
    }

    fn add(&mut self, path: &Path, num_files: usize) -> Result<(), ModelFileError> {
        if !path.is_dir() {
            let text = "expected a folder that peft saved; adapters in GGUF files are not merged into a folder";
            return Err(invalid(text.to_owned()));
        }
        let (file, settings) = open(path)?;
        check_alone(settings.is_dora, num_files)?;
        let modules = by_module(&file, false)?;
        if modules.is_empty() {
            return Err(invalid("it adds to nothing: it has no tensors".to_owned()));
        }
        let bare_to_names = self.matrices();
        let mut found = Vec::with_capacity(modules.len());
        for (module, tensors) in modules {
            let tensor = self.matrix(&module, &bare_to_names)?;
            let size = (tensor.rows(), tensor.cols());
            let rank = checked_module(&file, &module, &tensors, size, &settings)?.rank;
            settings.check_rank(&module, rank)?;
            let scale = settings.scale(&module, rank);
            let file = self.files.len();
            found.push((tensor.name.to_owned(), Part { file, tensors, scale }));
        }
        for (name, part) in found {
            self.name_to_parts.entry(name).or_default().push(part);
        }
        self.files.push(file);
        Ok(())
    }

    /// The names of the folder's tensors by what they are without what names of decoders begin with.
    fn matrices(&self) -> BTreeMap<String, Vec<String>> {
        let mut bare_to_names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in self.base.tensor_names() {
            if let Some(module) = name.strip_suffix(WEIGHT) {
                let names = bare_to_names.entry(without_decoder(module).to_owned()).or_default();
                names.push(name.to_owned());
            }
        }
        bare_to_names
    }

    fn matrix(
        &self,
        module: &str,
        bare_to_names: &BTreeMap<String, Vec<String>>,
    ) -> Result<TensorView<'_>, ModelFileError> {
        let shown = clipped(module);
        if module.ends_with("embed_tokens") || module.ends_with("lm_head") {
            let text = "adapters of embeddings and of output matrices are not merged, as models share them";
            return Err(invalid(format!("{shown:?}: {text}")));
        }
        let name = match bare_to_names.get(module).map(Vec::as_slice) {
            Some([name]) => name,
            Some(names) => {
                let names: Vec<_> = names.iter().map(|name| clipped(name)).collect();
                let text = format!("the model has several such matrices: {}", names.join(", "));
                return Err(invalid(format!("{shown:?}: {text}")));
            }
            None => {
                let text = "the model has no such matrix: is it an adapter of another model?";
                return Err(invalid(format!("{shown:?}: {text}")));
            }
        };
        let tensor = self.base.find_tensor(name)?;
        tensor.filter(|tensor| tensor.dims.len() == 2).ok_or_else(|| {
            invalid(format!(
                "{shown:?}: the model has no matrix there, but a tensor of another kind"
            ))
        })
    }
}

/// Adds what adapters add to a row of the model's.
fn add_row(deltas: &[Delta], row: usize, values: &mut [f32]) {
    let mut sum = vec![0.0_f32; values.len()];
    for delta in deltas {
        sum.fill(0.0);
        let up = &delta.b[row * delta.rank..][..delta.rank];
        for (down, up) in delta.a.chunks_exact(values.len()).zip(up) {
            sum.iter_mut().zip(down).for_each(|(sum, down)| *sum += up * down);
        }
        values
            .iter_mut()
            .zip(&sum)
            .for_each(|(value, sum)| *value += delta.scale * sum);
        if let Some(magnitudes) = &delta.magnitudes {
            let squares = values.iter().map(|value| f64::from(*value) * f64::from(*value));
            let factor = (f64::from(magnitudes[row]) / squares.sum::<f64>().sqrt()) as f32;
            values.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

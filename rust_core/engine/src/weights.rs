//! One view of a model's tensors, whatever file they come from.
//!
//! Knows where a tensor's bytes are and how they are encoded; must not know what the tensor is for.

mod asked;
mod error;
mod load_progress;
mod mapping;

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use pyagent_kernels::ggml::{self, GgmlError, GgmlType};

pub(crate) use asked::Asked;
pub use error::ModelFileError;
pub(crate) use error::clipped;
pub use load_progress::LoadProgress;
pub(crate) use mapping::Mapping;

use crate::family::{FamilyDescription, ScoreTables};
use crate::gguf::GgufFile;
use crate::safetensors::{SafetensorsFolder, is_weights_name};

/// A tensor's place in a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its dimensions in GGUF's order, the contiguous one first: a matrix is `[cols, rows]`. None is zero. Of a part,
    /// those of the whole.
    ///
    /// Safetensors and numpy write the same shape the other way round.
    pub dims: &'a [usize],
    /// How its elements are encoded.
    pub kind: GgmlType,
    /// Its elements, row after row; exactly `rows() * kind.row_bytes(cols())` bytes, at any address.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// The contiguous dimension: elements of a row (1 for a scalar).
    pub fn cols(&self) -> usize {
        self.dims.first().copied().unwrap_or(1)
    }

    /// The product of all other dimensions, or how many rows these are of them: 1 for a vector.
    pub fn rows(&self) -> usize {
        let row_bytes = self.kind.row_bytes(self.cols()).unwrap_or(0);
        self.bytes.len().checked_div(row_bytes).unwrap_or(1)
    }

    /// Some of its rows as a tensor of their own; `None` where it has no such rows.
    pub fn part(self, rows: &Range<usize>) -> Option<Self> {
        let row_bytes = self.kind.row_bytes(self.cols()).ok()?;
        let bytes = rows.start.checked_mul(row_bytes)?..rows.end.checked_mul(row_bytes)?;
        let bytes = self.bytes.get(bytes)?;
        Some(Self { bytes, ..self })
    }

    /// The elements as numbers.
    pub fn to_f32(&self) -> Result<Vec<f32>, GgmlError> {
        let mut values = vec![0.0; self.cols() * self.rows()];
        ggml::dequantise(self.kind, self.bytes, &mut values)?;
        Ok(values)
    }
}

/// A tensor as its file has it, of any element type, for those who know what its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<usize>,
    /// The name of its element type.
    pub kind: &'a str,
    /// Its elements, row after row.
    pub bytes: &'a [u8],
}

impl<'a> StoredTensor<'a> {
    /// Its dimensions and the name of its element type.
    pub fn shape(self) -> (Vec<usize>, &'a str) {
        (self.dims, self.kind)
    }

    /// Bytes of a row of the contiguous dimension.
    pub fn row_bytes(&self) -> usize {
        let rows: usize = self.dims.iter().skip(1).product();
        self.bytes.len() / rows.max(1)
    }
}

impl<'a> From<TensorView<'a>> for StoredTensor<'a> {
    /// A part of a matrix has fewer rows than its dimensions say.
    fn from(tensor: TensorView<'a>) -> Self {
        let num_rows: usize = tensor.dims.iter().skip(1).product();
        let dims = match tensor.dims {
            [cols, ..] if tensor.rows() != num_rows => vec![*cols, tensor.rows()],
            dims => dims.to_vec(),
        };
        let kind = tensor.kind.name();
        Self {
            name: tensor.name,
            dims,
            kind,
            bytes: tensor.bytes,
        }
    }
}

/// A model's weights, mapped and checked.
#[derive(Debug)]
pub enum ModelFile {
    /// A GGUF file, or the files of a split one.
    Gguf(GgufFile),
    /// A folder with `config.json` and safetensors, or PyTorch's files.
    Safetensors(SafetensorsFolder),
}

impl ModelFile {
    /// Opens a GGUF file, or a folder that holds `config.json` and `*.safetensors` or `pytorch_model.bin`.
    pub fn open(path: &Path) -> Result<Self, ModelFileError> {
        if path.is_dir() {
            return SafetensorsFolder::open(path).map(Self::Safetensors);
        }
        let file_name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if is_weights_name(file_name) {
            let got = "a single file of weights; give the folder it is in".to_owned();
            return Err(ModelFileError::NotAModel { got }.in_file(path));
        }
        GgufFile::open(path).map(Self::Gguf)
    }

    /// The folder as a description has it; GGUF files say themselves what they are.
    pub(crate) fn described(self, description: &FamilyDescription) -> Result<Self, ModelFileError> {
        match self {
            Self::Gguf(_) => Ok(self),
            Self::Safetensors(folder) => folder.described(description).map(Self::Safetensors),
        }
    }

    /// What layers add to scores, where a description says it.
    pub(crate) fn scores(&self) -> Option<&ScoreTables> {
        match self {
            Self::Gguf(_) => None,
            Self::Safetensors(folder) => folder.scores(),
        }
    }

    /// Counts to `progress` from now on the weights that are loaded of this file. Only the first call has an effect.
    pub fn count_to(&self, progress: &Arc<LoadProgress>) {
        let _ = self.progress().set(Arc::clone(progress));
    }

    /// Notes that so many bytes of weights are in memory, where somebody counts them.
    pub(crate) fn note_loaded(&self, bytes: usize) {
        if let Some(progress) = self.progress().get() {
            progress.add(bytes as u64);
        }
    }

    fn progress(&self) -> &OnceLock<Arc<LoadProgress>> {
        match self {
            Self::Gguf(file) => &file.progress,
            Self::Safetensors(folder) => &folder.progress,
        }
    }

    /// The file or folder that was opened.
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(file) => file.path(),
            Self::Safetensors(folder) => folder.path(),
        }
    }

    /// The tensor with this name; an error if there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelFileError> {
        self.find_tensor(name)?
            .ok_or_else(|| ModelFileError::TensorMissing { name: name.to_owned() }.in_file(self.path()))
    }

    /// The tensor with this name, if there is one; an error if its element type cannot be read.
    pub fn find_tensor(&self, name: &str) -> Result<Option<TensorView<'_>>, ModelFileError> {
        let found = match self {
            Self::Gguf(file) => file.find_tensor(name),
            Self::Safetensors(folder) => folder.find_tensor(name)?,
        };
        if found.is_some() {
            self.asked().note(name);
        }
        Ok(found)
    }

    /// As `find_tensor`, for a tensor of any element type.
    pub fn find_stored(&self, name: &str) -> Result<Option<StoredTensor<'_>>, ModelFileError> {
        if let Self::Safetensors(folder) = self
            && let Some(tensor) = folder.find_unread(name)
        {
            self.asked().note(name);
            return Ok(Some(tensor));
        }
        Ok(self.find_tensor(name)?.map(StoredTensor::from))
    }

    /// Every tensor that can be read, in the order of the file (by name in a folder).
    pub fn tensors(&self) -> Box<dyn Iterator<Item = TensorView<'_>> + '_> {
        match self {
            Self::Gguf(file) => Box::new(file.tensors()),
            Self::Safetensors(folder) => Box::new(folder.tensors()),
        }
    }

    /// The names of all tensors, also of those that cannot be read.
    pub(crate) fn tensor_names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::Gguf(file) => Box::new(file.tensors().map(|tensor| tensor.name)),
            Self::Safetensors(folder) => Box::new(folder.tensor_names()),
        }
    }

    /// Forgets which tensors were looked up.
    pub(crate) fn forget_asked(&self) {
        self.asked().forget();
    }

    /// The names of the tensors that were not looked up since [`Self::forget_asked`].
    pub(crate) fn unasked(&self) -> impl Iterator<Item = &str> {
        self.tensor_names().filter(|name| !self.asked().has(name))
    }

    fn asked(&self) -> &Asked {
        match self {
            Self::Gguf(file) => &file.asked,
            Self::Safetensors(folder) => &folder.asked,
        }
    }

    /// Bytes of all mapped files.
    pub fn file_bytes(&self) -> u64 {
        match self {
            Self::Gguf(file) => file.file_bytes(),
            Self::Safetensors(folder) => folder.file_bytes(),
        }
    }

    /// Copies bytes of this file, or of its tensors, into memory, by the quickest way and without mapping them.
    ///
    /// Bytes that are not of this file are copied as they are. An error where a file has become shorter.
    pub fn read(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), ModelFileError> {
        let found = |mapping: &Mapping| range_within(bytes, mapping.bytes());
        let of_file = self
            .mappings()
            .find_map(|mapping| found(mapping).map(|range| (mapping, range)));
        match of_file {
            Some((mapping, range)) => mapping.read(range, out),
            None => {
                out.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Gives the memory behind a tensor back to the system, for instance once it is packed.
    ///
    /// Its bytes stay readable (from the file, slowly). Does nothing where the system has no such call, and nothing
    /// for bytes that are not of this file.
    pub fn drop_pages(&self, bytes: &[u8]) {
        let drop_from = |mapping: &Mapping| {
            if let Some(range) = range_within(bytes, mapping.bytes()) {
                mapping.drop_pages(range);
            }
        };
        self.mappings().for_each(drop_from);
    }

    fn mappings(&self) -> Box<dyn Iterator<Item = &Mapping> + '_> {
        match self {
            Self::Gguf(file) => Box::new(file.mappings()),
            Self::Safetensors(folder) => Box::new(folder.mappings()),
        }
    }
}

/// Where `part` lies in `whole`, if it does.
pub(crate) fn range_within(part: &[u8], whole: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

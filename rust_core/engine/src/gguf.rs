//! GGUF model files, versions 2 and 3, little-endian: header, metadata and tensor table.
//!
//! Follows the specification at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Must not know what a
//! key or a tensor means to a model. The file is hostile input: every count, length, product and offset is checked
//! against the bytes that are there before anything is allocated, so that memory stays proportional to the header.

mod cursor;
mod metadata;
mod parts;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub use metadata::{MetadataArray, MetadataValue};
pub use tensors::TensorInfo;

use crate::weights::{Asked, LoadProgress, Mapping, ModelFileError, TensorView, clipped};
use cursor::Cursor;

/// Where tensors start unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Everything before the tensors' bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufHeader {
    /// 2 or 3; they are laid out alike.
    pub version: u32,
    /// Keys and their values.
    pub metadata: BTreeMap<String, MetadataValue>,
    /// The tensors, in the order of the file.
    pub tensors: Vec<TensorInfo>,
}

impl GgufHeader {
    /// Reads the header of a whole file's bytes, and checks that each tensor lies inside them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelFileError> {
        let mut cursor = Cursor::new(bytes);
        let version = read_version(&mut cursor)?;
        let num_tensors = cursor.u64("number of tensors")?;
        let num_entries = cursor.u64("number of metadata keys")?;
        let num_entries = cursor.check_count(num_entries, metadata::MIN_ENTRY_BYTES, "metadata keys")?;
        let metadata = metadata::read_metadata(&mut cursor, num_entries)?;
        let alignment = read_alignment(&metadata)?;
        let num_tensors = cursor.check_count(num_tensors, tensors::MIN_ENTRY_BYTES, "tensors")?;
        let tensors = tensors::read_tensors(&mut cursor, num_tensors, alignment, bytes.len() as u64)?;
        Ok(Self {
            version,
            metadata,
            tensors,
        })
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, ModelFileError> {
    let magic = cursor.take(cursor.available().min(4) as u64, "magic")?;
    if magic != b"GGUF" {
        return Err(ModelFileError::Magic {
            found: magic.to_owned(),
        });
    }
    match cursor.u32("version")? {
        version @ (2 | 3) => Ok(version),
        // Small numbers of the other byte order have their low half empty.
        swapped if swapped != 0 && swapped & 0xffff == 0 => Err(ModelFileError::BigEndian {
            version: swapped.swap_bytes(),
        }),
        found => Err(ModelFileError::Version { found }),
    }
}

fn read_alignment(metadata: &BTreeMap<String, MetadataValue>) -> Result<u64, ModelFileError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.as_u64() {
        Some(alignment) if alignment.is_power_of_two() && alignment <= u64::from(u32::MAX) => Ok(alignment),
        _ => Err(ModelFileError::MetadataType {
            key: KEY.to_owned(),
            expected: "a power of two below 2^32",
            found: value.described(),
        }),
    }
}

/// A GGUF file, or the files of a split one, mapped, their headers checked.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
    name_to_place: HashMap<String, (usize, usize)>,
    pub(crate) asked: Asked,
    pub(crate) progress: OnceLock<Arc<LoadProgress>>,
}

/// A file and its header.
#[derive(Debug)]
struct Part {
    mapping: Mapping,
    header: GgufHeader,
}

impl Part {
    fn open(path: &Path) -> Result<Self, ModelFileError> {
        let mapping = Mapping::open(path)?;
        let header = GgufHeader::parse(mapping.bytes()).map_err(|error| error.in_file(path))?;
        Ok(Self { mapping, header })
    }

    fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.header.tensors.iter().map(|tensor| self.view(tensor))
    }

    fn view<'a>(&'a self, tensor: &'a TensorInfo) -> TensorView<'a> {
        TensorView {
            name: &tensor.name,
            dims: &tensor.dims,
            kind: tensor.kind,
            bytes: &self.mapping.bytes()[tensor.range.clone()],
        }
    }
}

impl GgufFile {
    /// Maps a file and checks its header; of a split model all its files, whichever of them is given. Tensors' bytes
    /// are not read.
    ///
    /// The files must not be changed in place while this value lives: if one is truncated, reading the lost part ends
    /// the process with SIGBUS. Renaming another file over it is harmless.
    pub fn open(path: &Path) -> Result<Self, ModelFileError> {
        let parts = parts::open_all(path)?;
        let mut name_to_place = HashMap::new();
        for (index, part) in parts.iter().enumerate() {
            for (place, tensor) in part.header.tensors.iter().enumerate() {
                if name_to_place.insert(tensor.name.clone(), (index, place)).is_some() {
                    let (what, name) = ("tensor name", clipped(&tensor.name));
                    return Err(ModelFileError::Duplicate { what, name }.in_file(part.mapping.path()));
                }
            }
        }
        Ok(Self {
            parts,
            name_to_place,
            asked: Asked::default(),
            progress: OnceLock::new(),
        })
    }

    /// The file that was opened; of a split model the first.
    pub fn path(&self) -> &Path {
        self.parts[0].mapping.path()
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.parts[0].header.version
    }

    /// All keys with their values, sorted by key. One key of a known type is best read with `metadata_*`.
    ///
    /// Those of the first file: the others of a split model only say which of them they are.
    pub fn metadata(&self) -> &BTreeMap<String, MetadataValue> {
        &self.parts[0].header.metadata
    }

    /// The tensor with this name.
    pub fn find_tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (index, place) = *self.name_to_place.get(name)?;
        let part = &self.parts[index];
        Some(part.view(&part.header.tensors[place]))
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.parts.iter().flat_map(Part::tensors)
    }

    /// Bytes of the files.
    pub fn file_bytes(&self) -> u64 {
        self.mappings().map(|mapping| mapping.bytes().len() as u64).sum()
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.parts.iter().map(|part| &part.mapping)
    }
}

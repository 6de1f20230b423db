//! GGUF model files, versions 2 and 3, little-endian: header, metadata and tensor table.
//!
//! Follows the specification at <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Must not know what a
//! key or a tensor means to a model. The file is hostile input: every count, length, product and offset is checked
//! against the bytes that are there before anything is allocated, so that memory stays proportional to the header.

mod cursor;
mod metadata;
mod tensors;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

pub use metadata::{MetadataArray, MetadataValue};
pub use tensors::TensorInfo;

use crate::weights::{Mapping, ModelFileError, TensorView};
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
        refuse_split(&metadata)?;
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

fn refuse_split(metadata: &BTreeMap<String, MetadataValue>) -> Result<(), ModelFileError> {
    let number = |key| metadata.get(key).and_then(MetadataValue::as_u64);
    match number("split.count") {
        Some(count) if count > 1 => {
            let part = number("split.no").unwrap_or(0).saturating_add(1);
            Err(ModelFileError::Split { part, count })
        }
        _ => Ok(()),
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

/// A GGUF file, mapped, its header checked.
#[derive(Debug)]
pub struct GgufFile {
    mapping: Mapping,
    header: GgufHeader,
    name_to_index: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps a file and checks its header. Tensors' bytes are not read.
    ///
    /// The file must not be changed in place while this value lives: if it is truncated, reading the lost part ends
    /// the process with SIGBUS. Renaming another file over it is harmless.
    pub fn open(path: &Path) -> Result<Self, ModelFileError> {
        let mapping = Mapping::open(path)?;
        let header = GgufHeader::parse(mapping.bytes()).map_err(|error| error.in_file(path))?;
        let name_to_index = header
            .tensors
            .iter()
            .enumerate()
            .map(|(i, tensor)| (tensor.name.clone(), i))
            .collect();
        Ok(Self {
            mapping,
            header,
            name_to_index,
        })
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        self.mapping.path()
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// All keys with their values, sorted by key. One key of a known type is best read with `metadata_*`.
    pub fn metadata(&self) -> &BTreeMap<String, MetadataValue> {
        &self.header.metadata
    }

    /// The tensor with this name.
    pub fn find_tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.name_to_index
            .get(name)
            .map(|index| self.view(&self.header.tensors[*index]))
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.header.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.mapping.bytes().len() as u64
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn view<'a>(&'a self, tensor: &'a TensorInfo) -> TensorView<'a> {
        let bytes = &self.mapping.bytes()[tensor.range.clone()];
        TensorView {
            name: &tensor.name,
            dims: &tensor.dims,
            kind: tensor.kind,
            bytes,
        }
    }
}

//! A file that CoreWeave's tensorizer wrote, `model.tensors`: where in it each tensor lies, and what its checksums are of.
//!
//! The file begins with a table of all tensors; before each tensor's bytes stands a header that says the same and has
//! checksums of itself and of the bytes (tensorizer's data versions 1, 2, 4 and 5). Both are read, and must agree. What
//! the checksums are compared with is read by who asks for [`TensorizerFile::sums`]: opening a file reads no tensor.

mod cursor;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use cursor::Cursor;
use pyagent_kernels::ggml::GgmlType;

use crate::safetensors::{MAX_DIMS, SafetensorsInfo, checked_dims};
use crate::weights::{Mapping, ModelFileError, clipped};

const MAGIC: &[u8] = b"|TZR|";
/// Files of this version are encrypted; later ones say so by a flag.
const ENCRYPTED_VERSION: u32 = 3;
const MAX_VERSION: u32 = 5;
/// The version from which on the table says how wide a tensor's dimensions are.
const LONG_VERSION: u32 = 5;
const FLAGS_BYTES: usize = 32;
const ENCRYPTED: u8 = 1;
const VERSIONED_ENTRIES: u8 = 2;
/// The longest table that is read; tensorizer keeps 256 KiB for one.
const MAX_TABLE_BYTES: u64 = 16 << 20;
const MAX_TENSORS: u64 = 131_072;
/// What an entry of the table takes at least: lengths of name, type and shape, the kind, three numbers of 64 bits.
const ENTRY_BYTES: u64 = 29;
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// A tensor without bytes by which vLLM knows files of its own modules.
const VLLM_MARK: &str = "vllm_tensorized_marker";
/// A name that begins so is a path through dicts and lists, as JSON.
const PATH_MARK: u8 = 0x1e;

/// Element types: what numpy and torch call one in a file, what safetensors and messages do, bytes of a number.
const KINDS: [(&str, &str, u64); 14] = [
    ("<f4", "F32", 4),
    ("<f2", "F16", 2),
    ("<V2\0torch.bfloat16", "BF16", 2),
    ("<f8", "F64", 8),
    ("<i8", "I64", 8),
    ("<i4", "I32", 4),
    ("<i2", "I16", 2),
    ("|i1", "I8", 1),
    ("|u1", "U8", 1),
    ("|b1", "BOOL", 1),
    ("|V1\0torch.float8_e4m3fn", "F8_E4M3", 1),
    ("|V1\0torch.float8_e5m2", "F8_E5M2", 1),
    ("<u2", "U16", 2),
    ("<u4", "U32", 4),
];

/// The tensors of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorizerFile {
    /// Tensors by name.
    pub tensors: BTreeMap<String, SafetensorsInfo>,
    /// What each tensor's checksums are of, in the order of the table.
    pub sums: Vec<TensorSums>,
}

/// A tensor's checksums. They are of its header, in which they are zeros then, and of the bytes that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSums {
    /// The tensor.
    pub name: String,
    /// Its header in the file.
    pub header: Range<usize>,
    /// Where its bytes end, which begin with the header's end.
    pub end: usize,
    /// Where the checksums are in the file.
    pub places: SumPlaces,
}

/// Where checksums are in a file.
pub type SumPlaces = Vec<(SumKind, Range<usize>)>;

/// How a checksum is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumKind {
    /// The CRC-32 of zip and PNG, four bytes, the low one first.
    Crc32,
    /// SHA-256, 32 bytes.
    Sha256,
}

/// A tensor as the table has it.
struct Entry<'a> {
    told: Told<'a>,
    is_long: bool,
    header: u64,
    data: u64,
    num_bytes: u64,
}

/// What the table and a tensor's own header both say.
#[derive(PartialEq, Eq)]
struct Told<'a> {
    kind: u8,
    name: &'a [u8],
    element_type: &'a [u8],
    /// As the file has it, the contiguous one last.
    shape: Vec<u64>,
}

impl TensorizerFile {
    /// Reads the table and the headers of a whole file's bytes, and checks that each tensor lies inside them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelFileError> {
        let (num_tensors, is_versioned, mut table, table_end) = open(bytes)?;
        let mut file = Self {
            tensors: BTreeMap::new(),
            sums: Vec::new(),
        };
        let mut spans = Vec::new();
        for _ in 0..num_tensors {
            let entry = take_entry(&mut table, is_versioned)?;
            let name = entry.told.name()?;
            if name.trim_start_matches('.') == VLLM_MARK {
                let reason = "vLLM wrote it of its own modules, in which matrices are joined; write it of transformers' \
                    model: TensorSerializer.write_module(AutoModelForCausalLM.from_pretrained(FOLDER))";
                return Err(refused(reason.to_owned()));
            }
            let (info, sums) = entry.placed(name, bytes, table_end)?;
            spans.push(sums.header.start..sums.end);
            if file.tensors.insert(name.to_owned(), info).is_some() {
                let (what, name) = ("tensor name", clipped(name));
                return Err(ModelFileError::Duplicate { what, name });
            }
            file.sums.push(sums);
        }
        spans.sort_unstable_by_key(|span| span.start);
        if spans.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return Err(damaged("two of its tensors overlap"));
        }
        Ok(file)
    }
}

/// What the checksums of a file's tensors are of.
pub fn sums_of(path: &Path) -> Result<Vec<TensorSums>, ModelFileError> {
    let mapping = Mapping::open(path)?;
    let file = TensorizerFile::parse(mapping.bytes()).map_err(|error| error.in_file(path))?;
    Ok(file.sums)
}

/// How many tensors there are, whether entries have a version, the table, and where in the file that ends.
fn open(bytes: &[u8]) -> Result<(u64, bool, Cursor<'_>, usize), ModelFileError> {
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let start = bytes[..bytes.len().min(MAGIC.len())].escape_ascii();
        let reason = format!("it starts with \"{start}\" where \"|TZR|\" is expected; download it again");
        return Err(refused(reason));
    };
    let mut start = Cursor(rest);
    let version = start.number(4)? as u32;
    let flags = start.bytes(FLAGS_BYTES)?;
    let (_, _, num_tensors) = (start.number(8)?, start.number(8)?, start.number(8)?);
    if version == 0 || version > MAX_VERSION {
        let reason = format!(
            "its version is {version}; expected 1, 2, 4 or 5: write the model again with a tensorizer of version 2"
        );
        return Err(refused(reason));
    }
    // Before version 4 the flags' place is of no meaning.
    let flag = if version > ENCRYPTED_VERSION { flags[0] } else { 0 };
    if version == ENCRYPTED_VERSION || flag & ENCRYPTED != 0 {
        let reason = "it is encrypted, and the engine has no key; write it again with tensorizer without `encryption`";
        return Err(refused(reason.to_owned()));
    }
    let has_others = flag & !VERSIONED_ENTRIES != 0 || flags[1..].iter().any(|byte| *byte != 0);
    if version > ENCRYPTED_VERSION && has_others {
        let reason = "it has features that are not known here; write it again with a tensorizer of version 2";
        return Err(refused(reason.to_owned()));
    }
    let table_bytes = start.number(8)?;
    if table_bytes > MAX_TABLE_BYTES || num_tensors > MAX_TENSORS || num_tensors > table_bytes / ENTRY_BYTES {
        let reason = format!(
            "it says that it has {num_tensors} tensors in a table of {table_bytes} bytes; expected at most {MAX_TENSORS} \
             in {MAX_TABLE_BYTES}"
        );
        return Err(damaged(&reason));
    }
    let table = Cursor(start.bytes(table_bytes as usize)?);
    Ok((
        num_tensors,
        flag & VERSIONED_ENTRIES != 0,
        table,
        bytes.len() - start.0.len(),
    ))
}

fn take_entry<'a>(table: &mut Cursor<'a>, is_versioned: bool) -> Result<Entry<'a>, ModelFileError> {
    let version = if is_versioned { table.number(4)? as u32 } else { 1 };
    if version != 1 && version != LONG_VERSION {
        return Err(damaged(&format!("an entry of its table has version {version}")));
    }
    let is_long = version == LONG_VERSION;
    let name = table.text(2)?;
    let kind = table.number(1)? as u8;
    let (element_type, shape) = (table.text(1)?, table.shape(is_long)?);
    let (header, data, num_bytes) = (table.number(8)?, table.number(8)?, table.number(8)?);
    let told = Told {
        kind,
        name,
        element_type,
        shape,
    };
    Ok(Entry {
        told,
        is_long,
        header,
        data,
        num_bytes,
    })
}

impl<'a> Told<'a> {
    fn name(&self) -> Result<&'a str, ModelFileError> {
        if self.name.first() == Some(&PATH_MARK) {
            let reason = "its tensors are in dicts and lists within each other; expected those of one model: write it \
                with TensorSerializer.write_module(model), or write_state_dict(model.state_dict())";
            return Err(refused(reason.to_owned()));
        }
        std::str::from_utf8(self.name).map_err(|_| damaged("a tensor's name is not UTF-8"))
    }

    /// The element type, or the name of one that is not read as numbers; bytes of a number, where that is known.
    fn element_type(&self) -> (Result<GgmlType, String>, Option<u64>) {
        let Some((_, name, num_bytes)) = KINDS.iter().find(|(kind, ..)| kind.as_bytes() == self.element_type) else {
            let name = String::from_utf8_lossy(self.element_type).replace('\0', " ");
            return (Err(clipped(&name)), None);
        };
        let kind = match *name {
            "F32" => Ok(GgmlType::F32),
            "F16" => Ok(GgmlType::F16),
            "BF16" => Ok(GgmlType::BF16),
            other => Err(other.to_owned()),
        };
        (kind, Some(*num_bytes))
    }
}

impl Entry<'_> {
    /// Where the tensor lies, and what its checksums are of. Refuses what its own header says otherwise.
    fn placed(
        &self,
        name: &str,
        bytes: &[u8],
        table_end: usize,
    ) -> Result<(SafetensorsInfo, TensorSums), ModelFileError> {
        let end = self.data.saturating_add(self.num_bytes);
        if end > bytes.len() as u64 {
            let (name, file_bytes) = (clipped(name), bytes.len() as u64);
            return Err(ModelFileError::TensorTruncated { name, end, file_bytes });
        }
        let wrong = |what: &str| damaged(&format!("tensor {:?} {what}", clipped(name)));
        if self.header < table_end as u64 || self.header >= self.data || self.data - self.header > MAX_HEADER_BYTES {
            return Err(wrong("has no header where the table says"));
        }
        // All are below the file's length.
        let header = self.header as usize..self.data as usize;
        let dims = self.told.shape.iter().rev().map(|dim| *dim as usize).collect();
        let dims = checked_dims(name, dims)?;
        let places = self
            .sums_of(&bytes[header.clone()], header.start)?
            .ok_or_else(|| wrong("has a header that says otherwise than the table"))?;
        let (mut kind, value_bytes) = self.told.element_type();
        let num_values = self.told.shape.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
        if self.num_bytes == 0 {
            kind = Err("of no bytes in the file (a meta tensor)".to_owned());
        } else if let Some(value_bytes) = value_bytes
            && num_values.and_then(|all| all.checked_mul(value_bytes)) != Some(self.num_bytes)
        {
            return Err(wrong("has other bytes than its shape says"));
        }
        let range = header.end..end as usize;
        let (name, end) = (name.to_owned(), range.end);
        let sums = TensorSums {
            name,
            header,
            end,
            places,
        };
        Ok((SafetensorsInfo { dims, kind, range }, sums))
    }

    /// Where a tensor's own header, which starts at `start` in the file, has its checksums; none where it disagrees.
    fn sums_of(&self, header: &[u8], start: usize) -> Result<Option<SumPlaces>, ModelFileError> {
        let mut rest = Cursor(header);
        let length = rest.number(8)?;
        let _module = rest.number(2)?;
        let kind = rest.number(1)? as u8;
        let told = Told {
            kind,
            name: rest.text(2)?,
            element_type: rest.text(1)?,
            shape: rest.shape(self.is_long)?,
        };
        let mut sums = Cursor(rest.text(2)?);
        let sums_end = start + header.len() - rest.0.len();
        let num_bytes = rest.number(8)?;
        if told != self.told || length != header.len() as u64 || num_bytes != self.num_bytes || !rest.0.is_empty() {
            return Ok(None);
        }
        let mut places = Vec::new();
        for _ in 0..sums.number(1)? {
            let (kind, sum) = (sums.number(1)?, sums.text(1)?);
            let kind = match (kind, sum.len()) {
                (0, 4) => SumKind::Crc32,
                (1, 32) => SumKind::Sha256,
                _ => {
                    let reason = format!("a checksum of kind {kind} has {} bytes", sum.len());
                    return Err(damaged(&reason));
                }
            };
            let end = sums_end - sums.0.len();
            places.push((kind, end - sum.len()..end));
        }
        Ok(Some(places))
    }
}

/// The fault of a file, which says what is expected.
fn refused(reason: String) -> ModelFileError {
    ModelFileError::Tensorizer { reason }
}

fn damaged(what: &str) -> ModelFileError {
    refused(format!("{what}; the file is damaged, download it again"))
}

//! The tensor table of a GGUF file: names, dimensions, types, and where the bytes are.

use std::collections::HashSet;
use std::ops::Range;

use pyagent_kernels::ggml::GgmlType;

use super::cursor::Cursor;
use crate::weights::{ModelFileError, clipped};

/// Longest tensor name that is read. The specification allows 64 bytes; some converters write longer ones.
const MAX_NAME_BYTES: u64 = 256;

/// Most dimensions a ggml tensor has.
const MAX_DIMS: u32 = 4;

/// Least bytes of an entry: the name's length, the number of dimensions, a type and an offset.
pub(super) const MIN_ENTRY_BYTES: usize = 8 + 4 + 4 + 8;

/// What is read, for messages.
const SUPPORTED: &str =
    "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4";

/// One line of the tensor table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The dimensions, the contiguous one first; none is zero.
    pub dims: Vec<usize>,
    /// How elements are encoded.
    pub kind: GgmlType,
    /// The bytes, from the start of the file; inside the file, after the header, shared with no other tensor.
    pub range: Range<usize>,
}

/// An entry as it is written: the offset still counts from the data section, whose start is not known yet.
struct Entry<'a> {
    name: &'a str,
    dims: Vec<usize>,
    kind: GgmlType,
    offset: u64,
    num_bytes: u64,
}

/// Reads `count` entries; `count` has been checked against the bytes left. The data section starts at the first
/// multiple of `alignment` after them.
pub(super) fn read_tensors(
    cursor: &mut Cursor<'_>,
    count: usize,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, ModelFileError> {
    let mut names = HashSet::with_capacity(count);
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let entry = read_entry(cursor)?;
        if !names.insert(entry.name) {
            return Err(ModelFileError::Duplicate {
                what: "tensor name",
                name: clipped(entry.name),
            });
        }
        entries.push(entry);
    }
    let data_start = (cursor.offset() as u64).saturating_add(alignment - 1) / alignment * alignment;
    let placed = entries
        .into_iter()
        .map(|entry| place(entry, data_start, alignment, file_bytes));
    let tensors = placed.collect::<Result<Vec<_>, _>>()?;
    check_disjoint(&tensors)?;
    Ok(tensors)
}

fn read_entry<'a>(cursor: &mut Cursor<'a>) -> Result<Entry<'a>, ModelFileError> {
    let name = cursor.name(MAX_NAME_BYTES, "tensor name")?;
    let num_dims = cursor.u32("number of dimensions")?;
    if num_dims > MAX_DIMS {
        let problem = format!("{num_dims} of them, more than the {MAX_DIMS} allowed; the file is damaged");
        return Err(ModelFileError::Dimensions {
            name: clipped(name),
            dims: Vec::new(),
            problem,
        });
    }
    let mut raw_dims = Vec::with_capacity(num_dims as usize);
    for _ in 0..num_dims {
        raw_dims.push(cursor.u64("tensor dimension")?);
    }
    let type_id = cursor.u32("tensor type")?;
    let offset = cursor.u64("tensor offset")?;
    let kind = GgmlType::from_id(type_id).ok_or_else(|| ModelFileError::ElementType {
        name: clipped(name),
        found: format!("number {type_id}"),
        supported: SUPPORTED,
    })?;
    let (dims, num_bytes) = measure(&raw_dims, kind).map_err(|problem| ModelFileError::Dimensions {
        name: clipped(name),
        dims: raw_dims,
        problem,
    })?;
    Ok(Entry {
        name,
        dims,
        kind,
        offset,
        num_bytes,
    })
}

/// The dimensions in the machine's size and the bytes they take, or what is wrong with them.
fn measure(raw_dims: &[u64], kind: GgmlType) -> Result<(Vec<usize>, u64), String> {
    let too_large = || "more elements than can be addressed; the file is damaged".to_owned();
    let dims = raw_dims
        .iter()
        .map(|dim| usize::try_from(*dim))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| too_large())?;
    if dims.contains(&0) {
        return Err("a dimension is 0; the file is damaged".to_owned());
    }
    let row_bytes = kind
        .row_bytes(dims.first().copied().unwrap_or(1))
        .map_err(|error| error.to_string())?;
    // Elements are counted too: users of a tensor multiply its dimensions, and a block has more elements than bytes.
    dims.iter()
        .try_fold(1usize, |product, dim| product.checked_mul(*dim))
        .ok_or_else(too_large)?;
    let num_bytes = dims
        .iter()
        .skip(1)
        .try_fold(row_bytes, |product, rows| product.checked_mul(*rows));
    Ok((dims, num_bytes.ok_or_else(too_large)? as u64))
}

fn place(entry: Entry<'_>, data_start: u64, alignment: u64, file_bytes: u64) -> Result<TensorInfo, ModelFileError> {
    let Entry {
        name,
        dims,
        kind,
        offset,
        num_bytes,
    } = entry;
    if !offset.is_multiple_of(alignment) {
        return Err(ModelFileError::Misaligned {
            name: clipped(name),
            offset,
            alignment,
        });
    }
    // Saturated sums are past the end of any file.
    let start = data_start.saturating_add(offset);
    let end = start.saturating_add(num_bytes);
    if end > file_bytes {
        return Err(ModelFileError::TensorTruncated {
            name: clipped(name),
            end,
            file_bytes,
        });
    }
    // The file is mapped, so offsets inside it fit in a usize.
    Ok(TensorInfo {
        name: name.to_owned(),
        dims,
        kind,
        range: start as usize..end as usize,
    })
}

fn check_disjoint(tensors: &[TensorInfo]) -> Result<(), ModelFileError> {
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_unstable_by_key(|tensor| tensor.range.start);
    match by_start.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        None => Ok(()),
        Some(pair) => Err(ModelFileError::Overlap {
            first: clipped(&pair[0].name),
            second: clipped(&pair[1].name),
            start: pair[1].range.start as u64,
            end: pair[0].range.end as u64,
        }),
    }
}

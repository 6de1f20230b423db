//! The header of one safetensors file.

use std::collections::BTreeMap;
use std::ops::Range;

use pyagent_kernels::ggml::GgmlType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::weights::{ModelFileError, clipped};

/// Longest header that is read. The format allows 100 MB, which takes seconds and a gigabyte; the largest files (a
/// mixture of experts in one file, a scale beside each matrix) have a tenth of this.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Most dimensions a tensor may have; convolutions over video have five.
pub(crate) const MAX_DIMS: usize = 8;

/// The header's length comes first, in 64 bits.
const LENGTH_BYTES: usize = 8;

/// The header of one safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsHeader {
    /// Tensors by name.
    pub tensors: BTreeMap<String, SafetensorsInfo>,
}

/// One tensor of a safetensors file, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsInfo {
    /// The dimensions, the contiguous one first (the header has them the other way round); none is zero.
    pub dims: Vec<usize>,
    /// The element type, or the name of one that cannot be read.
    pub kind: Result<GgmlType, String>,
    /// The bytes, from the start of the file.
    pub range: Range<usize>,
}

impl SafetensorsHeader {
    /// Reads the header of a whole file's bytes, and checks that each tensor lies inside them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelFileError> {
        let header = header_bytes(bytes)?;
        let metadata: Metadata = serde_json::from_slice(header).map_err(|error| ModelFileError::Safetensors {
            reason: clipped(&error.to_string()),
        })?;
        let data_start = LENGTH_BYTES + header.len();
        let mut tensors = BTreeMap::new();
        let mut data_end = data_start;
        for (name, info) in metadata.tensors() {
            let range = place(&name, info.data_offsets, data_start, bytes.len())?;
            data_end = data_end.max(range.end);
            let info = read_info(&name, info, range)?;
            tensors.insert(name, info);
        }
        if data_end != bytes.len() {
            let extra = bytes.len() - data_end;
            let reason = format!("{extra} bytes follow the last tensor, which ends at byte {data_end}");
            return Err(ModelFileError::Safetensors { reason });
        }
        Ok(Self { tensors })
    }
}

fn header_bytes(bytes: &[u8]) -> Result<&[u8], ModelFileError> {
    let truncated = |what, offset, needed, available| ModelFileError::HeaderTruncated {
        what,
        offset,
        needed,
        available,
    };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated("the header's length", 0, LENGTH_BYTES as u64, bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        let (what, offset) = ("safetensors header", LENGTH_BYTES);
        return Err(ModelFileError::Length {
            what,
            offset,
            length,
            limit: MAX_HEADER_BYTES,
        });
    }
    rest.get(..length as usize)
        .ok_or_else(|| truncated("the header", LENGTH_BYTES, length, rest.len()))
}

fn place(
    name: &str,
    (start, end): (usize, usize),
    data_start: usize,
    file_bytes: usize,
) -> Result<Range<usize>, ModelFileError> {
    let (start, end) = (data_start.saturating_add(start), data_start.saturating_add(end));
    if end > file_bytes {
        let (end, file_bytes) = (end as u64, file_bytes as u64);
        return Err(ModelFileError::TensorTruncated {
            name: clipped(name),
            end,
            file_bytes,
        });
    }
    Ok(start..end)
}

fn read_info(name: &str, info: &TensorInfo, range: Range<usize>) -> Result<SafetensorsInfo, ModelFileError> {
    let dims = checked_dims(name, info.shape.iter().rev().copied().collect())?;
    let kind = match info.dtype {
        Dtype::F32 => Ok(GgmlType::F32),
        Dtype::F16 => Ok(GgmlType::F16),
        Dtype::BF16 => Ok(GgmlType::BF16),
        other => Err(format!("{other:?}")),
    };
    Ok(SafetensorsInfo { dims, kind, range })
}

/// A tensor's dimensions, the contiguous one first; refused where they are too many or one is zero.
pub(crate) fn checked_dims(name: &str, dims: Vec<usize>) -> Result<Vec<usize>, ModelFileError> {
    let refuse = |dims: &[usize], problem: String| {
        let dims = dims.iter().map(|dim| *dim as u64).collect();
        ModelFileError::Dimensions {
            name: clipped(name),
            dims,
            problem,
        }
    };
    if dims.len() > MAX_DIMS {
        let problem = format!("{} of them, more than the {MAX_DIMS} that are read", dims.len());
        return Err(refuse(&[], problem));
    }
    if dims.contains(&0) {
        return Err(refuse(&dims, "a dimension is 0; the file is damaged".to_owned()));
    }
    Ok(dims)
}

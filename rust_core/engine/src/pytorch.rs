//! A file that `torch.save` wrote of a state dict, `pytorch_model.bin`: where in it each tensor lies. Nothing is run.
//!
//! The file is a zip archive (torch's form since 1.6) of a pickle and of one entry for each storage, which are stored as
//! they are, so that tensors are read from the mapped file like those of safetensors. A pickle is a program; the reader
//! here has the few instructions of a state dict, calls nothing, and refuses every other by name. Tensors that share a
//! storage share its bytes.

mod archive;
mod pickle;
mod storage;

use std::collections::BTreeMap;
use std::ops::Range;

use archive::Archive;
use pickle::{StoredTensor, read_pickle};

use crate::safetensors::{SafetensorsInfo, checked_dims};
use crate::weights::{ModelFileError, clipped};

/// The tensors of one PyTorch file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDict {
    /// Tensors by name.
    pub tensors: BTreeMap<String, SafetensorsInfo>,
}

impl StateDict {
    /// Reads the archive's directory and pickle from a whole file's bytes, and checks that each tensor lies inside them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelFileError> {
        let archive = Archive::open(bytes)?;
        if archive
            .entry("byteorder")
            .is_some_and(|order| &bytes[order] != b"little")
        {
            return Err(refused("its numbers are big-endian; expected little-endian".to_owned()));
        }
        let pickle = archive
            .entry("data.pkl")
            .ok_or_else(|| refused("it has no data.pkl".to_owned()))?;
        let mut tensors = BTreeMap::new();
        for (name, tensor) in read_pickle(&bytes[pickle])? {
            let info = placed(name, &tensor, &archive)?;
            if tensors.insert(name.to_owned(), info).is_some() {
                let (what, name) = ("tensor name", clipped(name));
                return Err(ModelFileError::Duplicate { what, name });
            }
        }
        Ok(Self { tensors })
    }
}

/// Where a tensor lies in the file. Refuses one that is not row after row, or not inside its storage.
fn placed(name: &str, tensor: &StoredTensor, archive: &Archive) -> Result<SafetensorsInfo, ModelFileError> {
    let refuse = |problem: String| refused(format!("tensor {:?} {problem}", clipped(name)));
    let dims = checked_dims(name, tensor.sizes.iter().rev().map(|size| *size as usize).collect())?;
    let mut num_values = 1u64;
    for (size, stride) in tensor.sizes.iter().zip(&tensor.strides).rev() {
        if *size != 1 && *stride != num_values {
            let problem = "does not lie row after row; save the model with contiguous tensors, or as safetensors";
            return Err(refuse(problem.to_owned()));
        }
        num_values = num_values.saturating_mul(*size);
    }
    let (storage, value_bytes) = (&tensor.storage, tensor.storage.kind.num_bytes());
    let entry = format!("data/{}", storage.key);
    let range = archive
        .entry(&entry)
        .ok_or_else(|| refuse(format!("is in {}, which the archive lacks", clipped(&entry))))?;
    if storage.num_values.checked_mul(value_bytes) != Some(range.len() as u64) {
        let (entry, has) = (clipped(&entry), range.len());
        return Err(refuse(format!(
            "is in {entry} of {has} bytes, which should hold {} numbers of {value_bytes} bytes",
            storage.num_values
        )));
    }
    let end = tensor.offset.saturating_add(num_values);
    if end > storage.num_values {
        return Err(refuse(format!(
            "ends at number {end} of its storage, which has {}; the file is damaged",
            storage.num_values
        )));
    }
    // Within the entry, whose length is one of memory.
    let within = |number: u64| range.start + (number * value_bytes) as usize;
    let range: Range<usize> = within(tensor.offset)..within(end);
    let kind = storage.kind.element_type();
    Ok(SafetensorsInfo { dims, kind, range })
}

/// The fault of a file, which says what is expected.
fn refused(reason: String) -> ModelFileError {
    ModelFileError::Pytorch { reason }
}

//! Models split over several files, as `gguf-split` of llama.cpp names and numbers them.
//!
//! `NAME-00001-of-00003.gguf` has the model's metadata; every file says which of how many it is, and has tensors of its
//! own. The names of the others follow from that of the one given, in the same folder: no name is taken from a file.

use std::path::{Path, PathBuf};

use super::{MetadataValue, Part};
use crate::weights::ModelFileError;

/// Most files of one model. The largest models there are have a hundred.
const MAX_PARTS: u64 = 1000;

/// Opens a file, and the others when it is one of a split model: all of them in their order.
pub(super) fn open_all(path: &Path) -> Result<Vec<Part>, ModelFileError> {
    let given = Part::open(path)?;
    let Some((part, count)) = split_of(&given) else {
        return Ok(vec![given]);
    };
    let others = (1..=count.min(MAX_PARTS)).map(|number| sibling(path, part, number, count));
    let paths: Option<Vec<PathBuf>> = others.collect();
    let paths = paths
        .filter(|_| part <= count && count <= MAX_PARTS)
        .ok_or_else(|| ModelFileError::SplitName { part, count }.in_file(path))?;
    drop(given);
    let parts = paths
        .iter()
        .map(|path| Part::open(path))
        .collect::<Result<Vec<_>, _>>()?;
    for (expected, part) in (1..).zip(&parts) {
        if split_of(part) != Some((expected, count)) {
            let (part, found) = (expected, split_of(part).map_or(0, |(found, _)| found));
            return Err(ModelFileError::SplitPart { part, count, found }.in_file(&paths[expected as usize - 1]));
        }
    }
    check_count(&parts, &paths[0])?;
    Ok(parts)
}

/// Which file of how many this is, counted from 1; `None` for a model in one file.
fn split_of(part: &Part) -> Option<(u64, u64)> {
    let count = number(part, "split.count").filter(|count| *count > 1)?;
    Some((number(part, "split.no").unwrap_or(0).saturating_add(1), count))
}

fn number(part: &Part, key: &str) -> Option<u64> {
    part.header.metadata.get(key).and_then(MetadataValue::as_u64)
}

/// The path of a model's file by its number, from that of another; `None` where the name is not of the usual form.
fn sibling(path: &Path, part: u64, wanted: u64, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-{part:05}-of-{count:05}.gguf"))?;
    Some(path.with_file_name(format!("{stem}-{wanted:05}-of-{count:05}.gguf")))
}

/// All tensors are there, where the first file says how many there are.
fn check_count(parts: &[Part], first: &Path) -> Result<(), ModelFileError> {
    let found: usize = parts.iter().map(|part| part.header.tensors.len()).sum();
    match number(&parts[0], "split.tensors.count") {
        Some(expected) if expected != found as u64 => {
            Err(ModelFileError::SplitTensors { found, expected }.in_file(first))
        }
        _ => Ok(()),
    }
}

//! Tensors that each layer of a kind has or none: biases, and Gemma 4's factors on the stream. Where one layer lacks what most
//! others have, it got lost, and the model without it would be another.

use std::collections::{HashMap, HashSet};

use super::names::Names;
use crate::quantised::quantization;
use crate::weights::{ModelFile, ModelFileError};

/// A factor on the stream behind a layer, and what each layer has beside it: under the names of GGUF files and of folders.
const SCALES: [(&str, &str); 2] = [
    ("layer_output_scale.weight", "attn_norm.weight"),
    ("layer_scalar", "input_layernorm.weight"),
];

/// Refuses a file in one of whose layers such a tensor is missing. Folders of weights in few bits are left alone: matrices in
/// few bits may have a bias of zeros there which others lack.
pub(super) fn refuse_lost(file: &ModelFile, names: &Names) -> Result<(), ModelFileError> {
    if quantization(file).is_some() {
        return Ok(());
    }
    let mut of_layers: HashMap<usize, HashSet<&str>> = HashMap::new();
    for name in file.tensor_names() {
        if let Some((layer, part)) = names.layer_of(name).zip(part_of(name, names)) {
            of_layers.entry(layer).or_default().insert(part);
        }
    }
    let optional: HashSet<&str> = of_layers.values().flatten().copied().collect();
    let lost = optional.into_iter().filter_map(|part| {
        let beside = beside(part)?;
        let may_have = of_layers.iter().filter(|(_, parts)| parts.contains(&*beside));
        let (have, lack): (Vec<_>, Vec<_>) = may_have.partition(|(_, parts)| parts.contains(part));
        // One that few layers have is too much there, which is told when all that is read is known.
        let layer = lack.iter().map(|(layer, _)| **layer).min()?;
        (have.len() > lack.len()).then_some((layer, part))
    });
    match lost.min() {
        None => Ok(()),
        Some((layer, part)) => Err(ModelFileError::TensorMissing {
            name: names.whole(layer, part, part).name,
        }),
    }
}

/// What a layer's tensor is called there.
fn part_of<'a>(name: &'a str, names: &Names) -> Option<&'a str> {
    let (_, after) = name.split_once(names.layers())?;
    after.split_once('.').map(|(_, part)| part)
}

/// What a layer has that has such a tensor; none of other tensors.
fn beside(part: &str) -> Option<String> {
    let scale = SCALES.iter().find(|(scale, _)| *scale == part);
    match scale {
        Some((_, norm)) => Some((*norm).to_owned()),
        None => Some(format!("{}.weight", part.strip_suffix(".bias")?)),
    }
}

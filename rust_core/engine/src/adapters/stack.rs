//! Several adapters of one request: what they add to a product adds up, so that together they are one adapter.
//!
//! `s1 B1 A1 x + s2 B2 A2 x` is the product `[s1 B1, s2 B2] [A1; A2] x`: an adapter of as many ranks as both have, of which
//! steps know nothing more. `DoRA` resizes what is there, and so does not add up.

use std::collections::BTreeMap;
use std::path::Path;

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::low_rank::UpMatrix;
use pyagent_kernels::pack::ROWS_PER_GROUP;

use super::MAX_RANK;
use super::file::{AdapterFile, Module};
use crate::config::{ModelConfig, invalid};
use crate::model::Weights;
use crate::weights::{ModelFile, ModelFileError, clipped};

/// The files of an adapter, or of several that one request names, checked against a model.
#[derive(Debug)]
pub struct AdapterStack {
    pub(super) files: Vec<ModelFile>,
    pub(super) sums: Vec<Sum>,
    pub(super) num_layers: usize,
    is_dora: bool,
}

/// What files add to one projection: each module with its file's place. There is at least one.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) parts: Vec<(usize, Module)>,
}

impl AdapterStack {
    /// Opens folders or GGUF files, and checks them, alone and together.
    pub(crate) fn open(
        paths: &[impl AsRef<Path>],
        config: &ModelConfig,
        weights: &Weights,
    ) -> Result<Self, ModelFileError> {
        let (mut files, mut is_dora) = (Vec::new(), false);
        let mut place_to_sum: BTreeMap<(usize, usize), Sum> = BTreeMap::new();
        for (at, path) in paths.iter().enumerate() {
            let opened = AdapterFile::open(path.as_ref(), config, weights)?;
            check_alone(opened.is_dora, paths.len()).map_err(|error| error.in_file(path.as_ref()))?;
            is_dora |= opened.is_dora;
            for module in opened.modules {
                let sum = place_to_sum.entry((module.layer, module.projection as usize));
                sum.or_default().parts.push((at, module));
            }
            files.push(opened.file);
        }
        let sums: Vec<Sum> = place_to_sum.into_values().collect();
        sums.iter().try_for_each(Sum::check)?;
        Ok(Self {
            files,
            sums,
            num_layers: config.num_layers,
            is_dora,
        })
    }

    /// Bytes that it takes when it is loaded.
    pub fn bytes(&self) -> usize {
        self.sums.iter().map(Sum::bytes).sum()
    }

    /// The largest rank.
    pub fn rank(&self) -> usize {
        self.sums.iter().map(Sum::rank).max().unwrap_or(0)
    }

    /// Matrices that are added to.
    pub fn num_modules(&self) -> usize {
        self.sums.len()
    }

    /// Whether it is a `DoRA`, which does not add up with others.
    pub fn is_dora(&self) -> bool {
        self.is_dora
    }
}

/// Refuses an adapter that does not add up, where there are so many.
pub(super) fn check_alone(is_dora: bool, num_files: usize) -> Result<(), ModelFileError> {
    if is_dora && num_files > 1 {
        let text = "DoRA resizes what other adapters add, so that they do not add up; name it alone";
        return Err(invalid(text.to_owned()));
    }
    Ok(())
}

impl Sum {
    pub(super) fn modules(&self) -> impl Iterator<Item = &Module> {
        self.parts.iter().map(|(_, module)| module)
    }

    /// The rank of all together.
    pub(super) fn rank(&self) -> usize {
        self.modules().map(|module| module.rank).sum()
    }

    /// In which type the rows of `A` are kept: theirs where all have the same.
    pub(super) fn kind(&self) -> GgmlType {
        let mut kinds = self.modules().map(|module| module.kind);
        let first = kinds.next().unwrap_or(GgmlType::F32);
        if kinds.all(|kind| kind == first) {
            first
        } else {
            GgmlType::F32
        }
    }

    fn check(&self) -> Result<(), ModelFileError> {
        let rank = self.rank();
        if rank <= MAX_RANK {
            return Ok(());
        }
        let name = self.modules().find_map(|module| module.tensors.a.as_deref());
        let name = clipped(name.unwrap_or_default());
        Err(invalid(format!(
            "{name:?}: together the adapters have rank {rank}; expected at most {MAX_RANK}"
        )))
    }

    fn bytes(&self) -> usize {
        let rank = self.rank();
        let number_bytes = self.kind().row_bytes(1).unwrap_or(size_of::<f32>());
        let of_module = |module: &Module| {
            let (rows, cols) = (module.rows.len(), module.cols);
            let down = rank.next_multiple_of(ROWS_PER_GROUP) * (cols * number_bytes);
            let up = UpMatrix::bytes_of(rank, rows);
            down.next_multiple_of(64) + up + module.num_resizing * rows * size_of::<f32>()
        };
        self.modules().next().map_or(0, of_module)
    }
}

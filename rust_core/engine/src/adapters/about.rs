//! What an adapter's file says of itself, without the model that it is for.

use std::collections::BTreeSet;
use std::path::Path;

use super::file::{by_module, open};
use crate::weights::{ModelFile, ModelFileError};

/// What an adapter's file says of itself.
#[derive(Debug)]
pub struct AdapterAbout {
    /// `LoRA`, `rsLoRA`, or `DoRA`.
    pub method: &'static str,
    /// The largest rank.
    pub rank: usize,
    /// The matrices that are added to, by the ends of their names, each once.
    pub targets: Vec<String>,
    /// Bytes of its tensors.
    pub tensor_bytes: usize,
}

impl AdapterAbout {
    /// Reads the header of a folder or a GGUF file.
    pub fn of(path: &Path) -> Result<Self, ModelFileError> {
        Self::read(path).map_err(|error| error.in_file(path))
    }

    fn read(path: &Path) -> Result<Self, ModelFileError> {
        let (file, settings) = open(path)?;
        let modules = by_module(&file, matches!(file, ModelFile::Gguf(_)))?;
        let mut about = Self {
            method: match (settings.is_dora, settings.is_rslora) {
                (true, _) => "DoRA",
                (_, true) => "rsLoRA",
                _ => "LoRA",
            },
            rank: 0,
            targets: Vec::new(),
            tensor_bytes: file.tensors().map(|tensor| tensor.bytes.len()).sum(),
        };
        let mut targets = BTreeSet::new();
        for (module, tensors) in &modules {
            targets.insert(module.rsplit('.').next().unwrap_or(module).to_owned());
            if let Some(name) = &tensors.a {
                about.rank = about.rank.max(file.tensor(name)?.rows());
            }
        }
        about.targets = targets.into_iter().collect();
        Ok(about)
    }
}

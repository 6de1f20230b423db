//! `pyagent._rust`: converts arguments, releases the GIL, calls the pure crates, converts back.

mod adapters;
mod cache;
mod described;
mod drafter;
mod drafting;
mod encoder;
mod engine;
mod family;
mod load_progress;
mod logits_rows;
mod memory;
mod model_files;
mod sampler_state;
mod sampling;
mod step;
mod text;
mod token_index;
mod torch_kernels;
mod torch_team;
mod vocabulary;
mod weights;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _rust {
    use super::*;

    #[pymodule_export]
    use crate::adapters::{AdapterFile, AdapterMerge, MergedTensor, describe_adapter};

    #[pymodule_export]
    use crate::drafter::describe_drafter;

    #[pymodule_export]
    use crate::cache::{BlockPool, CachedPrefix, OutOfBlocks, PoolStats};

    #[pymodule_export]
    use crate::vocabulary::Texts;

    #[pymodule_export]
    use crate::text::{Replacer, analyse_code, count_names, find_duplicates, nearest_rows};

    #[pymodule_export]
    use crate::engine::{CpuModel, ModelFileError, PromptScores, SwapHandle, available_cores, cpu_features};

    #[pymodule_export]
    use crate::family::FamilyDescription;

    #[pymodule_export]
    use crate::load_progress::LoadProgress;

    #[pymodule_export]
    use crate::described::{describe_model, most_step_bytes};

    #[pymodule_export]
    use crate::token_index::TokenIndex;

    #[pymodule_export]
    use crate::encoder::{EncoderModel, LongText, describe_encoder, late_score, model_task};

    #[pymodule_export]
    use crate::logits_rows::LogitsRows;

    #[pymodule_export]
    use crate::sampler_state::SamplerState;

    #[pymodule_export]
    use crate::sampling::sample_logits;

    #[pymodule_export]
    use crate::memory::trim_memory;

    #[pymodule_export]
    use crate::model_files::{dequantise, quantise, read_model_header, tensor_checksums};

    #[pymodule_export]
    use crate::torch_kernels::TorchKernels;

    #[pymodule_export]
    use crate::weights::{ExpertsConfig, ModelConfig, ModelFile, TensorFile};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

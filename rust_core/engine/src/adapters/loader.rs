//! What makes a model's adapters, while the model computes.

use std::path::Path;
use std::sync::Arc;

use pyagent_kernels::thread_pool::ThreadPool;

use super::{Adapter, AdapterStack};
use crate::config::{ModelConfig, invalid};
use crate::forward::most_adapter_bytes;
use crate::model::Weights;
use crate::weights::ModelFileError;

/// Makes adapters for one model. Any thread may, while the model computes.
pub struct AdapterLoader {
    config: Arc<ModelConfig>,
    weights: Arc<Weights>,
    pool: Arc<ThreadPool>,
}

impl AdapterLoader {
    /// Of a model with these weights, which computes on these threads.
    pub(crate) fn new(config: Arc<ModelConfig>, weights: Arc<Weights>, pool: Arc<ThreadPool>) -> Self {
        Self { config, weights, pool }
    }

    /// What the files of an adapter, or of several that add up, say of themselves, checked against the model.
    pub fn open(&self, paths: &[impl AsRef<Path>]) -> Result<AdapterStack, ModelFileError> {
        if self.config.encoder_decoder.is_some() {
            let text = "adapters of encoder-decoders are not implemented; merge it into the model's own weights";
            return Err(invalid(text.to_owned()));
        }
        AdapterStack::open(paths, &self.config, &self.weights)
    }

    /// Loads what was opened.
    pub fn load(&self, opened: &AdapterStack) -> Result<Adapter, ModelFileError> {
        opened.load(&self.weights, &self.pool)
    }

    /// Bytes that steps of so many tokens take for adapters of this rank, at most.
    pub fn step_bytes(&self, tokens: usize, rank: usize) -> usize {
        most_adapter_bytes(&self.config, tokens, self.pool.num_threads(), rank)
    }
}

//! How many tokens each expert has had: counted while tokens are routed, read at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::ModelConfig;

/// Tokens of each layer and expert since the model was loaded, a token once for each expert that it had.
#[derive(Debug, Default)]
pub struct ExpertLoads {
    counts: Vec<AtomicU64>,
    num_experts: usize,
}

impl ExpertLoads {
    /// Of a model that has computed nothing; empty where it has no experts.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
        let num_counts = config.all_layers().len() * num_experts;
        Self {
            counts: (0..num_counts).map(|_| AtomicU64::new(0)).collect(),
            num_experts,
        }
    }

    /// Counts tokens of an expert. One thread at a time counts.
    pub(super) fn note(&self, layer: usize, expert: usize, num_tokens: usize) {
        let count = &self.counts[layer * self.num_experts + expert];
        count.store(count.load(Ordering::Relaxed) + num_tokens as u64, Ordering::Relaxed);
    }

    /// Of each layer, each expert's tokens: zeros where a layer has no experts, and no layers in a model without any.
    pub fn layers(&self) -> Vec<Vec<u64>> {
        let layers = self.counts.chunks(self.num_experts.max(1));
        let read = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        layers.map(read).collect()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.capacity() * size_of::<AtomicU64>()
    }
}

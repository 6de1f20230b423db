//! MiniCPM's factors, where a file does not say them: on embeddings, on what blocks add to the stream, and on logits.

use super::Architecture;

/// Factor on embedding rows.
pub(crate) const EMBEDDING_SCALE: f32 = 12.0;
/// What blocks' outputs are multiplied by, times the square root of the number of layers.
pub(crate) const DEPTH_SCALE: f32 = 1.4;
/// The width of the stream for which logits are as they are.
pub(crate) const BASE_SIZE: usize = 256;

impl Architecture {
    /// Whether it is one of MiniCPM's.
    pub(crate) fn is_minicpm(self) -> bool {
        matches!(self, Self::MiniCpm | Self::MiniCpm3)
    }
}

/// Factor on what a block adds to the stream of so many layers.
pub(crate) fn residual_scale(num_layers: usize) -> f32 {
    DEPTH_SCALE / (num_layers as f32).sqrt()
}

/// What the logits of a stream so wide are divided by.
pub(crate) fn logit_divisor(hidden_size: usize) -> f32 {
    hidden_size as f32 / BASE_SIZE as f32
}

//! MiniMax-01's stream (arXiv 2501.08313, section 2.2): a block's output is added to the norm that the block reads, which takes
//! the stream's place.

use super::ModelConfig;

/// Factors on a norm that a block reads, and on what the block gives, before both are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormedStream {
    /// Of layers with attention.
    pub attention: [f32; 2],
    /// Of lightning attention.
    pub lightning: [f32; 2],
    /// Of experts.
    pub experts: [f32; 2],
}

impl NormedStream {
    pub(super) fn all(&self) -> impl Iterator<Item = f32> + use<> {
        [self.attention, self.lightning, self.experts].into_iter().flatten()
    }
}

impl ModelConfig {
    /// Factors on the norm that a block reads and on what it gives, where that norm takes the stream's place.
    pub fn normed_stream(&self, block: usize) -> Option<[f32; 2]> {
        let factors = self.normed_stream.as_ref()?;
        Some(match self.place_of(block) {
            (layer, 0) if self.recurrent(layer).is_some() => factors.lightning,
            (_, 0) => factors.attention,
            _ => factors.experts,
        })
    }
}

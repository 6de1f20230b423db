//! Falcon-H1's layers (arXiv 2507.22448): a state space and attention read the same, and both are added to the stream; then a
//! feed-forward block. Here each is two layers, of which the first is the state space alone.

use super::{Architecture, ModelConfig};

/// Factors on parts of a layer (µP). All are 1 in GGUF files, whose weights have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// On the feed-forward block's gate, before its activation.
    pub gate: f32,
    /// On what the state space gives, on what attention gives, and on what the feed-forward block gives.
    pub outputs: [f32; 3],
    /// On a state space's projections: its gate, its channels, what these are written along and read along, and steps.
    pub space: [f32; 5],
}

impl Multipliers {
    pub(super) fn all(&self) -> impl Iterator<Item = f32> + use<> {
        [self.gate].into_iter().chain(self.outputs).chain(self.space)
    }
}

impl ModelConfig {
    /// Whether two layers are one of the file's, and the second's attention reads what the first reads.
    pub fn has_paired_layers(&self) -> bool {
        self.architecture == Architecture::FalconH1
    }

    /// Whether a layer is the first half of one of the file's.
    pub fn is_first_half(&self, layer: usize) -> bool {
        self.has_paired_layers() && layer.is_multiple_of(2)
    }

    /// The file's layer that a layer is of.
    pub fn file_layer(&self, layer: usize) -> usize {
        layer / self.halves()
    }

    /// Layers that the file counts.
    pub fn num_file_layers(&self) -> usize {
        self.num_layers / self.halves()
    }

    fn halves(&self) -> usize {
        1 + usize::from(self.has_paired_layers() || self.encoder_decoder.is_some())
    }

    /// The block whose output is added only when the norm before `block` is taken, where the two lie beside each other.
    pub fn block_beside(&self, block: usize) -> Option<usize> {
        let is_beside = match self.place_of(block) {
            (layer, 0) => self.has_paired_layers() && layer % 2 == 1,
            (_, place) => self.is_parallel && place == 1,
        };
        is_beside.then(|| self.block_before(block)).flatten()
    }

    /// Factor on what a block adds to the stream.
    pub fn output_scale(&self, block: usize) -> f32 {
        if let Some([_, given]) = self.normed_stream(block) {
            return given;
        }
        let Some(multipliers) = &self.multipliers else {
            return self.residual_scale;
        };
        let (layer, place) = self.place_of(block);
        multipliers.outputs[match place {
            0 => usize::from(self.recurrent(layer).is_none()),
            _ => 2,
        }]
    }
}

//! Llama 4 in a GGUF's metadata, which says little of it: the rest is the family's.

use super::Keys;
use crate::config::{Architecture, Experts, QueryGrowth, invalid};
use crate::weights::ModelFileError;

/// The period of layers that see everything and have no rotary positions.
pub(super) const PERIOD: usize = 4;
/// Tokens of a chunk.
const CHUNK: usize = 8_192;
/// Maverick's experts, whose layers do not normalise queries and keys.
const WITHOUT_NORMS: usize = 128;

/// How queries of layers without rotary positions grow.
pub(super) const GROWTH: QueryGrowth = QueryGrowth {
    beta: 0.1,
    original: 8_192,
    offset: 1,
    is_of_unrotated: true,
};

/// Whether queries and keys are normalised.
pub(super) fn has_norms(architecture: Architecture, experts: Option<&Experts>) -> bool {
    architecture == Architecture::Llama4 && experts.is_none_or(|experts| experts.num_experts != WITHOUT_NORMS)
}

impl Keys<'_> {
    /// Tokens of a chunk, of the family that has any.
    pub(super) fn chunk_size(&self, architecture: Architecture) -> Result<Option<usize>, ModelFileError> {
        if architecture != Architecture::Llama4 {
            return Ok(None);
        }
        match self.optional_size("attention.sliding_window")? {
            None | Some(CHUNK) => Ok(Some(CHUNK)),
            Some(other) => {
                let key = self.key("attention.sliding_window");
                Err(invalid(format!(
                    "'{key}' {other} is not implemented for llama4; expected {CHUNK}"
                )))
            }
        }
    }
}

//! The memory that holds keys and values, in blocks of 16 tokens.
//!
//! Which block belongs to whom is the block pool's business (`pyagent-cache`); here are only bytes. The operating
//! system commits a block's pages when it is first written, so resident memory follows use, not the pool's size.

use memmap2::MmapMut;
use pyagent_kernels::attention::KvLayout;

use crate::runner::EngineError;

/// Keys and values of every layer, [layer][block][block bytes].
pub struct KvMemory {
    /// How a block is laid out.
    pub layout: KvLayout,
    /// Blocks per layer.
    pub num_blocks: usize,
    memory: MmapMut,
}

impl KvMemory {
    /// Reserves address space for `num_blocks` blocks in each of `num_layers` layers.
    pub fn new(layout: KvLayout, num_layers: usize, num_blocks: usize) -> Result<Self, EngineError> {
        let bytes = layout
            .block_bytes()
            .checked_mul(num_blocks)
            .and_then(|bytes| bytes.checked_mul(num_layers))
            .ok_or(EngineError::KvMemory {
                bytes: usize::MAX,
                reason: "the size overflows".to_owned(),
            })?;
        let memory = MmapMut::map_anon(bytes.max(1)).map_err(|error| EngineError::KvMemory {
            bytes,
            reason: error.to_string(),
        })?;
        Ok(Self {
            layout,
            num_blocks,
            memory,
        })
    }

    /// Where layer `layer` starts.
    pub fn layer_base(&self, layer: usize) -> *mut u8 {
        let offset = layer * self.num_blocks * self.layout.block_bytes();
        // SAFETY: `layer` is one of the layers the memory was made for, so the offset lies inside the mapping.
        unsafe { self.memory.as_ptr().cast_mut().add(offset) }
    }
}

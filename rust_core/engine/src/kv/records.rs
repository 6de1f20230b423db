//! Of each block, the decoder's output for the last token that is known: what a head that drafts goes on from. It lies in
//! the page that has the block's keys and values of the head's layer, and goes where that goes.

use std::sync::Arc;

use pyagent_kernels::attention::BLOCK_TOKENS;

use super::{KvMemory, KvPages, Place};
use crate::config::ModelConfig;

/// Bytes of a cache line, at which keys and values begin.
const ALIGNMENT: usize = 64;

/// Where a block's record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    /// Where the layer lies whose page it is in.
    layer: Place,
    /// Bytes into the page.
    offset: usize,
    /// Numbers in it.
    len: usize,
}

impl KvPages {
    /// Makes room for records, if the model has a head that drafts.
    pub(super) fn add_record(&mut self, config: &ModelConfig) {
        let Some(layer) = config.mtp_layer().map(|layer| self.place(layer)) else {
            return;
        };
        let offset = self.page_bytes.next_multiple_of(ALIGNMENT);
        let len = config.hidden_size;
        self.record = Some(RecordPlace { layer, offset, len });
        self.page_bytes = (offset + len * size_of::<f32>()).next_multiple_of(ALIGNMENT);
    }
}

impl KvMemory {
    /// A block's record, in the sequence with these tables.
    ///
    /// # Panics
    /// When there are no records, or no such block.
    ///
    /// # Safety
    /// The table's page exists, and no other thread uses this record meanwhile.
    #[expect(clippy::mut_from_ref, reason = "records are shared out between threads")]
    pub(crate) unsafe fn record(&self, tables: &[Arc<Vec<u32>>], block: usize) -> &mut [f32] {
        let RecordPlace { layer, offset, len } = self.pages.record.expect("a model with a head that drafts");
        let pages_per_block = self.pages.groups[layer.group].pages_per_block;
        let page = tables[layer.group][block * pages_per_block + layer.page_in_block];
        let start = page as usize * self.pages.page_bytes() + offset;
        assert!(
            start + len * size_of::<f32>() <= self.memory.len(),
            "a page that exists"
        );
        // SAFETY: it lies in the memory, on a cache line of its own; by contract nobody else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast_mut().add(start).cast(), len) }
    }

    /// Whether tables have the pages that a head's token at `position` sees.
    pub(crate) fn check_drafted(
        &self,
        tables: &[Arc<Vec<u32>>],
        position: usize,
        checked: &mut super::CheckedTables,
    ) -> Result<(), String> {
        let Some(RecordPlace { layer, .. }) = self.pages.record else {
            return Err("the model has no head that drafts".to_owned());
        };
        let group = &self.pages.groups[layer.group];
        let Some(table) = tables
            .get(layer.group)
            .filter(|table| table.len() >= (position / BLOCK_TOKENS + 1) * group.pages_per_block)
        else {
            return Err(format!("there is no room for position {position}"));
        };
        if !checked.keep(table, 0) {
            self.check_table(table, 0, layer.group)?;
            checked.add(table, 0);
        }
        Ok(())
    }
}

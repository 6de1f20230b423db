//! Of each block, the decoder's output for the last token that is known: what a head that drafts goes on from. It lies in
//! the page that has the block's keys and values of the head's layer, and goes where that goes.
//!
//! A sequence may go on from a part of a cached block, whose record is of a later token. It begins with the last token that
//! is cached, whose keys and values of the head's layer are there already. So a record says which token it is of.

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
    /// Numbers of an output.
    len: usize,
}

/// Bytes of a record whose output has so many numbers.
fn record_bytes(len: usize) -> usize {
    len * size_of::<f32>() + size_of::<u32>()
}

impl KvPages {
    /// Makes room for records of so many numbers each, behind the layer of a head that drafts, which is the last of its page.
    pub(super) fn add_record(&mut self, layer: usize, len: usize) {
        let block_bytes = self.layout(layer).block_bytes();
        let layer = self.place(layer);
        let offset = ((layer.layer_in_page + 1) * block_bytes).next_multiple_of(ALIGNMENT);
        self.record = Some(RecordPlace { layer, offset, len });
        let end = offset + record_bytes(len);
        self.page_bytes = self.page_bytes.max(end).next_multiple_of(ALIGNMENT);
        // A page moves as a whole: its record goes with it.
        (self.layers_per_page, self.layer_bytes) = (1, self.page_bytes);
    }

    /// Whether there is room for such a head of another file, in this layer.
    pub(crate) fn has_head(&self, layer: usize, head: &ModelConfig) -> bool {
        let place = self.places.get(layer).copied().flatten();
        place.zip(self.record).is_some_and(|(place, record)| {
            let layout = self.layout(layer);
            record.layer == place
                && record.len == head.hidden_size
                && *layout == head.kv_layout(head.num_layers, layout.dtype)
        })
    }

    /// The group in whose pages records lie, if there are any.
    pub fn record_group(&self) -> Option<usize> {
        self.record.map(|record| record.layer.group)
    }
}

impl KvMemory {
    /// Where a block's record begins, in the sequence with these tables, and how many numbers an output has.
    ///
    /// # Panics
    /// When there are no records, or no such block.
    fn record_place(&self, tables: &[Arc<Vec<u32>>], block: usize) -> (*mut f32, usize) {
        let RecordPlace { layer, offset, len } = self.pages.record.expect("a model with a head that drafts");
        let pages_per_block = self.pages.groups[layer.group].pages_per_block;
        let page = tables[layer.group][block * pages_per_block + layer.page_in_block];
        let start = page as usize * self.pages.page_bytes() + offset;
        assert!(start + record_bytes(len) <= self.memory.len(), "a page that exists");
        // SAFETY: it lies in the memory.
        (unsafe { self.memory.as_ptr().cast_mut().add(start).cast() }, len)
    }

    /// The output in a block's record, in the sequence with these tables.
    ///
    /// # Panics
    /// When there are no records, or no such block.
    ///
    /// # Safety
    /// No thread writes this record meanwhile.
    pub(crate) unsafe fn record(&self, tables: &[Arc<Vec<u32>>], block: usize) -> &[f32] {
        let (place, len) = self.record_place(tables, block);
        // SAFETY: a record of so many numbers lies there, on a cache line of its own; by contract nobody writes it.
        unsafe { std::slice::from_raw_parts(place, len) }
    }

    /// How many tokens the text of a block's record has, up to the one that it is of; 0 where none was kept.
    ///
    /// # Panics
    /// As [`Self::record`].
    ///
    /// # Safety
    /// As [`Self::record`].
    pub(crate) unsafe fn record_tokens(&self, tables: &[Arc<Vec<u32>>], block: usize) -> usize {
        let (place, len) = self.record_place(tables, block);
        // SAFETY: it follows the output's numbers; by contract nobody writes it.
        unsafe { place.add(len).cast::<u32>().read() as usize }
    }

    /// Keeps an output in a block's record: that for the last of `num_tokens` tokens.
    ///
    /// # Panics
    /// As [`Self::record`], and when the output has another size.
    ///
    /// # Safety
    /// The table's page exists, and no other thread uses this record meanwhile.
    pub(crate) unsafe fn keep_record(&self, tables: &[Arc<Vec<u32>>], block: usize, output: &[f32], num_tokens: usize) {
        let (place, len) = self.record_place(tables, block);
        // SAFETY: as for reading; by contract nobody else uses it.
        unsafe {
            std::slice::from_raw_parts_mut(place, len).copy_from_slice(output);
            place.add(len).cast::<u32>().write(num_tokens as u32);
        }
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

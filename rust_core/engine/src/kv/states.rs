//! Where recurrent layers' states lie in pages: cells of a few kilobytes, one after the other, none across two pages.

use pyagent_kernels::attention::BLOCK_TOKENS;
use pyagent_kernels::recurrent::{CELL_CHANNELS, history_len};

use super::{KvMemory, NO_PAGE};
use crate::config::ModelConfig;

/// Pages of a state at most: what the block pool takes.
const MOST_PAGES: usize = 4_096;
/// Checkpoints of a long text take this share of what its keys and values take, at most.
const KEYS_PER_CHECKPOINT: usize = 2;
/// Of models without keys and values, one block in so many is a checkpoint: every 4,096 tokens.
const BLOCKS_PER_CHECKPOINT: usize = 256;

/// Where a cell begins: which of a state's pages, and how many bytes into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    page: u32,
    offset: u32,
}

/// A layer's cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCells {
    /// The convolution's last inputs, sixteen channels each.
    pub histories: Vec<Cell>,
    /// Columns of matrices, sixteen each, head after head.
    pub matrices: Vec<Cell>,
}

/// How a state of all recurrent layers lies in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePages {
    /// Pages of a state.
    pub num_pages: usize,
    /// Of so many blocks of tokens, one keeps its state.
    pub every: usize,
    /// Numbers of a cell of a history, and of a matrix.
    pub cell_lens: [usize; 2],
    /// Of each layer, its cells; none where it has attention.
    layers: Vec<LayerCells>,
}

impl StatePages {
    /// The states of a model whose pages hold so many bytes of keys and values, and a block so many pages of them; and
    /// the bytes of a page that holds its cells too.
    pub(super) fn of(config: &ModelConfig, page_bytes: usize, pages_per_block: usize) -> Option<(Self, usize)> {
        let recurrent = config.recurrent.as_ref()?;
        let num_histories = recurrent.num_channels(config.hidden_size) / CELL_CHANNELS;
        let (num_matrices, matrix_len) = recurrent.matrix_cells();
        let cell_lens = [history_len(recurrent.taps()), matrix_len];
        let [history_bytes, matrix_bytes] = cell_lens.map(|len| len * size_of::<f32>());
        let num_layers = config
            .recurrent_layers
            .iter()
            .filter(|is_recurrent| **is_recurrent)
            .count();
        let bytes = num_layers * (num_histories * history_bytes + num_matrices * matrix_bytes);
        let largest = history_bytes.max(matrix_bytes);
        let page_bytes = page_bytes
            .max(largest)
            .max(bytes.div_ceil(MOST_PAGES / 2))
            .next_multiple_of(64);
        let mut end = (0, 0);
        let mut cells = |count: usize, bytes: usize| {
            let cell = |_| {
                if end.1 + bytes > page_bytes {
                    end = (end.0 + 1, 0);
                }
                let [page, offset] = [end.0, end.1].map(|number| number as u32);
                end.1 += bytes;
                Cell { page, offset }
            };
            (0..count).map(cell).collect()
        };
        let layers = config.recurrent_layers.iter().map(|is_recurrent| {
            if *is_recurrent {
                LayerCells {
                    histories: cells(num_histories, history_bytes),
                    matrices: cells(num_matrices, matrix_bytes),
                }
            } else {
                LayerCells::default()
            }
        });
        let layers = layers.collect();
        let num_pages = end.0 + 1;
        let has_keys = config.all_layers().any(|layer| config.has_attention(layer));
        let every = match has_keys {
            true => (KEYS_PER_CHECKPOINT * num_pages).div_ceil(pages_per_block),
            false => BLOCKS_PER_CHECKPOINT,
        };
        let states = Self {
            num_pages,
            every,
            cell_lens,
            layers,
        };
        Some((states, page_bytes))
    }

    /// A layer's cells.
    pub fn layer(&self, layer: usize) -> &LayerCells {
        &self.layers[layer]
    }

    /// Whether a table of states has those that tokens at `first..end` begin from and end at, in pages that exist.
    pub(crate) fn check(&self, table: &[u32], first: usize, end: usize, num_pages: usize) -> Result<(), String> {
        let block = |position: usize| &table[position / BLOCK_TOKENS * self.num_pages..][..self.num_pages];
        let needed = first.checked_sub(1).into_iter().chain([end - 1]);
        if let Some(position) = needed.into_iter().find(|&position| block(position)[0] == NO_PAGE) {
            return Err(format!("the state after position {position} is not there"));
        }
        let touched = first.saturating_sub(1) / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
        let pages = &table[touched.start * self.num_pages..touched.end * self.num_pages];
        let is_wrong = |pages: &[u32]| {
            let is_empty = pages[0] == NO_PAGE;
            pages
                .iter()
                .any(|&page| (page == NO_PAGE) != is_empty || (!is_empty && page as usize >= num_pages))
        };
        match pages.chunks_exact(self.num_pages).find(|pages| is_wrong(pages)) {
            Some(pages) => Err(format!(
                "the state's pages {:?} do not exist",
                &pages[..pages.len().min(4)]
            )),
            None => Ok(()),
        }
    }

    /// How tokens at `first..first + count` are cut so that each run ends where a state is kept.
    pub fn runs(&self, table: &[u32], first: usize, count: usize) -> Vec<StateRun> {
        let end = first + count;
        let mut runs = Vec::new();
        let mut start = first;
        while start < end {
            let mut to = start / BLOCK_TOKENS;
            while (to + 1) * BLOCK_TOKENS < end && table[to * self.num_pages] == NO_PAGE {
                to += 1;
            }
            let stop = end.min((to + 1) * BLOCK_TOKENS);
            runs.push(StateRun {
                tokens: start - first..stop - first,
                from: start.checked_sub(1).map(|position| position / BLOCK_TOKENS),
                to,
                is_draft: false,
            });
            start = stop;
        }
        runs
    }

    /// The same, where the last `num_drafts` tokens may be no part of the sequence: one run, which starts from the state
    /// before them and leaves it as it is.
    pub fn runs_before_drafts(&self, table: &[u32], first: usize, count: usize, num_drafts: usize) -> Vec<StateRun> {
        let num_known = count - num_drafts;
        let mut runs = self.runs(table, first, num_known);
        if num_drafts > 0 {
            let block = (first + num_known - 1) / BLOCK_TOKENS;
            runs.push(StateRun {
                tokens: num_known..count,
                from: Some(block),
                to: block,
                is_draft: true,
            });
        }
        runs
    }
}

/// Tokens of a segment that bring a state from one block's pages to another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRun {
    /// Which, counted from the segment's first.
    pub tokens: std::ops::Range<usize>,
    /// The block whose state comes before; none at the beginning of a text.
    pub from: Option<usize>,
    /// The block whose state comes after.
    pub to: usize,
    /// Whether they are drafts: what they make of the state is given up after them.
    pub is_draft: bool,
}

impl KvMemory {
    /// A cell of the state that a table keeps for `block`.
    ///
    /// # Panics
    /// When the table has no such block.
    pub(crate) fn cell(&self, states: &StatePages, table: &[u32], block: usize, cell: Cell) -> *mut f32 {
        let page = table[block * states.num_pages + cell.page as usize];
        let offset = page as usize * self.pages.page_bytes() + cell.offset as usize;
        assert!(offset < self.memory.len(), "a page that exists");
        // SAFETY: the page exists, and the cell lies in it.
        unsafe { self.memory.as_ptr().cast_mut().add(offset).cast() }
    }

    /// The cell that a run's tokens change, with the state that comes before them in it.
    ///
    /// # Safety
    /// The run is one of a table that [`KvMemory::check`] found right, and no other thread uses the cell of this block,
    /// nor changes that of the block before.
    pub(crate) unsafe fn begin(
        &self,
        states: &StatePages,
        table: &[u32],
        run: &StateRun,
        cell: Cell,
        len: usize,
    ) -> *mut f32 {
        let to = self.cell(states, table, run.to, cell);
        // SAFETY: by contract; two blocks' pages are different ones.
        unsafe {
            match run.from {
                None => to.write_bytes(0, len),
                Some(from) if from != run.to => {
                    to.copy_from_nonoverlapping(self.cell(states, table, from, cell), len);
                }
                Some(_) => {}
            }
        }
        to
    }
}

#[cfg(test)]
mod tests;

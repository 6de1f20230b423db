//! The memory that holds keys and values, in pages, and which layer lies where in them.
//!
//! Layers that see the same positions and have heads of one shape are a group. A page holds 16 tokens of some layers of a
//! group: as many as fill whole pages in every group, so that all groups can share one pool of pages. Layers that read
//! another's keys and values have none, and lie where that one does. Recurrent layers have a state
//! in its place: they are a group of their own, the last one, whose pages hold what a block's tokens left behind. Which page belongs to whom
//! is the block pool's business (`pyagent-cache`); here are only bytes. The operating system commits a page when it is
//! first written, so resident memory follows use, not the pool's size.

mod moves;
mod records;
mod states;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use memmap2::MmapMut;
use pyagent_kernels::attention::{BLOCK_TOKENS, KvLayout, KvType, LayerBlocks};

use crate::config::ModelConfig;
use crate::runner::EngineError;

pub use moves::SwappedPages;
use records::RecordPlace;
pub use states::{Cell, LayerCells, StatePages, StateRun};

/// In a table: no page, because the block slid out of every later token's sight.
pub const NO_PAGE: u32 = u32::MAX;

/// Layers that see the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Positions a token sees, its own included; `None` means all.
    pub window: Option<usize>,
    /// Pages that a block of 16 tokens takes.
    pub pages_per_block: usize,
    /// Of recurrent layers' states: one block in so many keeps its own.
    pub state_every: Option<usize>,
}

impl KvGroup {
    /// The first block that the token at `position`, or one after it, sees.
    pub fn first_block(&self, position: usize) -> usize {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first / BLOCK_TOKENS
    }
}

/// A text's blocks are counted by pages of keys and values. Of models without attention each has one, which nobody writes.
const UNUSED: KvGroup = KvGroup {
    window: None,
    pages_per_block: 1,
    state_every: None,
};

/// Where a layer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    group: usize,
    page_in_block: usize,
    layer_in_page: usize,
    /// Which of the layouts it has.
    layout: usize,
}

/// A model's groups of layers, and how pages hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// The groups, in the order of their first layers.
    pub groups: Vec<KvGroup>,
    /// Equal parts of a page, of which each holds whole layers: where all are of one shape, one.
    pub layers_per_page: usize,
    /// Bytes of such a part.
    pub layer_bytes: usize,
    /// How layers' parts of pages are laid out.
    layouts: Vec<KvLayout>,
    /// Of each layer, where it lies; none of one without attention.
    places: Vec<Option<Place>>,
    /// Of recurrent layers, where their states lie.
    pub states: Option<StatePages>,
    /// Of a head that drafts, where a block's record lies.
    record: Option<RecordPlace>,
    page_bytes: usize,
}

/// What layers of a group have in common: the positions they see, and their shape.
type Kind = (Option<usize>, KvLayout);

impl KvPages {
    /// The groups of a model whose keys and values are numbers of this type.
    pub fn of(config: &ModelConfig, dtype: KvType) -> Self {
        Self::with_head(config, None, dtype)
    }

    /// The same where a `head` of another file drafts for the model: its layer comes after all others.
    pub fn with_head(config: &ModelConfig, head: Option<&ModelConfig>, dtype: KvType) -> Self {
        let has_own = |&layer: &usize| config.has_attention(layer) && config.kv_source(layer).is_none();
        let kind = |layer| (config.window(layer), config.kv_layout(layer, dtype));
        let of_head = head.map(|head| (None, head.kv_layout(head.num_layers, dtype)));
        let kinds: Vec<Kind> = config.all_layers().filter(has_own).map(kind).chain(of_head).collect();
        let mut pages = Self::new(&kinds);
        let mut own = std::mem::take(&mut pages.places).into_iter().flatten();
        for layer in config.all_layers() {
            let place = match config.kv_source(layer) {
                Some(source) => pages.places[source],
                None => has_own(&layer).then(|| own.next()).flatten(),
            };
            pages.places.push(place);
        }
        pages.places.extend(head.map(|_| own.next()));
        pages.join_groups();
        let record = match head {
            Some(head) => Some((pages.places.len() - 1, head.hidden_size)),
            None => config.mtp_layer().map(|layer| (layer, config.hidden_size)),
        };
        if let Some((layer, len)) = record {
            pages.add_record(layer, len);
        }
        if pages.groups.is_empty() {
            pages.groups.push(UNUSED);
        }
        let per_block = pages.pages_per_block();
        if let Some((states, page_bytes)) = StatePages::of(config, pages.page_bytes, per_block) {
            pages.groups.push(KvGroup {
                window: None,
                pages_per_block: states.num_pages,
                state_every: Some(states.every),
            });
            (pages.states, pages.page_bytes) = (Some(states), page_bytes);
        }
        pages
    }

    /// Has layers that see everything be one group, as the block pool keeps them: those of each shape have pages of their own
    /// there, a head's the last ones.
    fn join_groups(&mut self) {
        let Some(first) = self.groups.iter().position(|group| group.window.is_none()) else {
            return;
        };
        let mut group = first + 1;
        while group < self.groups.len() {
            if self.groups[group].window.is_some() {
                group += 1;
                continue;
            }
            let pages_before = self.groups[first].pages_per_block;
            self.groups[first].pages_per_block += self.groups.remove(group).pages_per_block;
            for place in self.places.iter_mut().flatten() {
                if place.group == group {
                    (place.group, place.page_in_block) = (first, place.page_in_block + pages_before);
                } else if place.group > group {
                    place.group -= 1;
                }
            }
        }
    }

    /// The groups of layers of these kinds.
    fn new(layers: &[Kind]) -> Self {
        let mut kinds: Vec<(Kind, usize)> = Vec::new();
        let in_group: Vec<(usize, usize)> = layers
            .iter()
            .map(|layer| {
                let group = kinds.iter().position(|(kind, _)| kind == layer);
                let group = group.unwrap_or_else(|| {
                    kinds.push((*layer, 0));
                    kinds.len() - 1
                });
                kinds[group].1 += 1;
                (group, kinds[group].1 - 1)
            })
            .collect();
        let sizes = kinds
            .iter()
            .map(|((_, layout), layers)| (*layers, layout.block_bytes()));
        let sizes: Vec<(usize, usize)> = sizes.collect();
        let page_bytes = best_page_bytes(&sizes);
        let per_page = |group: usize| page_bytes / sizes[group].1;
        let group = |(group, &((window, _), layers)): (usize, &(Kind, usize))| KvGroup {
            window,
            pages_per_block: layers.div_ceil(per_page(group)),
            state_every: None,
        };
        let place = |(group, index): (usize, usize)| Place {
            group,
            page_in_block: index / per_page(group),
            layer_in_page: index % per_page(group),
            layout: group,
        };
        let is_filled = sizes.iter().all(|(_, bytes)| page_bytes.is_multiple_of(*bytes));
        let all_per_page = (0..sizes.len()).map(per_page);
        let layers_per_page = if is_filled {
            all_per_page.fold(0, greatest_common_divisor).max(1)
        } else {
            1
        };
        Self {
            groups: kinds.iter().enumerate().map(group).collect(),
            layers_per_page,
            layer_bytes: page_bytes / layers_per_page,
            layouts: kinds.iter().map(|((_, layout), _)| *layout).collect(),
            places: in_group.into_iter().map(place).map(Some).collect(),
            states: None,
            record: None,
            page_bytes,
        }
    }

    /// How a layer's part of a page is laid out.
    ///
    /// # Panics
    /// When there is no such layer with attention.
    pub fn layout(&self, layer: usize) -> &KvLayout {
        &self.layouts[self.place(layer).layout]
    }

    fn place(&self, layer: usize) -> Place {
        self.places[layer].expect("a layer with attention")
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes that the keys and values of a block of 16 tokens take in all groups.
    pub fn block_bytes(&self) -> usize {
        self.pages_per_block() * self.page_bytes()
    }

    /// Pages of the keys and values of a block.
    fn pages_per_block(&self) -> usize {
        let of_keys = self.groups.iter().filter(|group| group.state_every.is_none());
        of_keys.map(|group| group.pages_per_block).sum()
    }

    /// The fewest pages with which a text can be computed: a block's, and two states.
    pub fn least_pages(&self) -> usize {
        self.pages_per_block() + self.states.as_ref().map_or(0, |states| 2 * states.num_pages)
    }

    /// Of a sequence's tables, that of its states.
    pub fn state_table<'a>(&self, tables: &'a [Arc<Vec<u32>>]) -> &'a [u32] {
        &tables[self.groups.len() - 1]
    }
}

/// The bytes of a page for groups of so many layers of so many bytes: of those with which a block takes the least memory,
/// the most.
fn best_page_bytes(sizes: &[(usize, usize)]) -> usize {
    let largest = sizes.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let taken = |page: usize| -> usize {
        sizes
            .iter()
            .map(|(layers, bytes)| layers.div_ceil(page / bytes) * page)
            .sum()
    };
    let whole = sizes
        .iter()
        .flat_map(|(layers, bytes)| (1..=*layers).map(move |count| count * bytes));
    let pages = whole.filter(|page| *page >= largest);
    pages.min_by_key(|page| (taken(*page), Reverse(*page))).unwrap_or(1)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if a == 0 { b } else { greatest_common_divisor(b % a, a) }
}

/// Keys and values of every layer, [page][layer of the page][block bytes].
pub struct KvMemory {
    /// What a page holds.
    pub pages: KvPages,
    /// How many there are.
    pub num_pages: usize,
    memory: MmapMut,
}

impl KvMemory {
    /// Reserves address space for `num_pages` pages.
    pub fn new(pages: KvPages, num_pages: usize) -> Result<Self, EngineError> {
        let bytes = pages.page_bytes().checked_mul(num_pages).ok_or(EngineError::KvMemory {
            bytes: usize::MAX,
            reason: "the size overflows".to_owned(),
        })?;
        let memory = MmapMut::map_anon(bytes.max(1)).map_err(|error| EngineError::KvMemory {
            bytes,
            reason: error.to_string(),
        })?;
        Ok(Self {
            pages,
            num_pages,
            memory,
        })
    }

    /// One layer's blocks of the sequence with these tables, one table a group.
    ///
    /// # Panics
    /// When there is no such layer with attention, or no table for its group.
    pub fn layer<'a>(&self, layer: usize, tables: &'a [Arc<Vec<u32>>]) -> LayerBlocks<'a> {
        let place = self.pages.place(layer);
        let offset = place.layer_in_page * self.pages.layout(layer).block_bytes();
        LayerBlocks {
            // SAFETY: the layer is one of its page, so the offset lies in page 0, which is mapped.
            base: unsafe { self.memory.as_ptr().cast_mut().add(offset) },
            page_bytes: self.pages.page_bytes(),
            pages: &tables[place.group],
            pages_per_block: self.pages.groups[place.group].pages_per_block,
            page_in_block: place.page_in_block,
        }
    }

    /// Whether tables hold what tokens at `first..end` of a sequence see: a page that exists for each block up to the
    /// last token's, and [`NO_PAGE`] only for blocks that slid out of the first token's sight.
    ///
    /// Tables that `checked` knows are not read again, so that a step costs nothing in proportion to its contexts.
    pub fn check(
        &self,
        tables: &[Arc<Vec<u32>>],
        first: usize,
        end: usize,
        checked: &mut CheckedTables,
    ) -> Result<(), String> {
        let groups = &self.pages.groups;
        if tables.len() != groups.len() {
            return Err(format!("{} tables for {} groups of layers", tables.len(), groups.len()));
        }
        for (index, (group, table)) in groups.iter().zip(tables).enumerate() {
            let num_blocks = end.div_ceil(BLOCK_TOKENS);
            if table.len() < num_blocks * group.pages_per_block {
                let got = table.len();
                return Err(format!(
                    "{got} pages of group {index} do not cover position {}",
                    end - 1
                ));
            }
            if let (Some(_), Some(states)) = (group.state_every, &self.pages.states) {
                states.check(table, first, end, self.num_pages)?;
                continue;
            }
            let num_hidden = group.first_block(first) * group.pages_per_block;
            if !checked.keep(table, num_hidden) {
                self.check_table(table, num_hidden, index)?;
                checked.add(table, num_hidden);
            }
        }
        Ok(())
    }

    /// Whether all pages exist; of the first `num_hidden` some may be missing.
    fn check_table(&self, table: &[u32], num_hidden: usize, group: usize) -> Result<(), String> {
        let (hidden, seen) = table.split_at(num_hidden);
        let num_pages = self.num_pages as u32;
        // Counted rather than searched: the compiler makes vector instructions of it.
        let num_bad =
            count(seen, |page| page >= num_pages) + count(hidden, |page| page >= num_pages && page != NO_PAGE);
        match num_bad {
            0 => Ok(()),
            _ => Err(format!(
                "{num_bad} pages of group {group} do not exist or have slid out; there are {num_pages}"
            )),
        }
    }
}

/// The tables of the last two batches that were found right. Kept, so that nobody can change them: their owner makes a
/// copy when it changes one.
#[derive(Default)]
pub struct CheckedTables {
    now: Known,
    before: Known,
}

/// By address: the table, and how many of its first pages may be missing.
type Known = HashMap<usize, (Arc<Vec<u32>>, usize)>;

impl CheckedTables {
    /// Begins a batch: what the last one did not use is let go.
    pub fn begin(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
    }

    /// Keeps a table that is known to miss nothing but some of its first `num_hidden` pages.
    fn keep(&mut self, table: &Arc<Vec<u32>>, num_hidden: usize) -> bool {
        let address = Arc::as_ptr(table).addr();
        let is_known = |known: &Known| known.get(&address).is_some_and(|(_, hidden)| *hidden <= num_hidden);
        if is_known(&self.now) {
            return true;
        }
        let is_known = is_known(&self.before);
        if is_known && let Some((address, known)) = self.before.remove_entry(&address) {
            self.now.insert(address, known);
        }
        is_known
    }

    fn add(&mut self, table: &Arc<Vec<u32>>, num_hidden: usize) {
        self.now
            .insert(Arc::as_ptr(table).addr(), (Arc::clone(table), num_hidden));
    }
}

fn count(pages: &[u32], is_bad: impl Fn(u32) -> bool) -> u32 {
    pages.iter().map(|&page| u32::from(is_bad(page))).sum()
}

#[cfg(test)]
mod tests;

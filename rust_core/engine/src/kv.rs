//! The memory that holds keys and values, in pages, and which layer lies where in them.
//!
//! Layers that see the same positions are a group. A page holds 16 tokens of [`KvPages::layers_per_page`] layers: the
//! greatest number that divides every group, so that all groups can share one pool of pages. Which page belongs to whom
//! is the block pool's business (`pyagent-cache`); here are only bytes. The operating system commits a page when it is
//! first written, so resident memory follows use, not the pool's size.

use std::sync::Arc;

use memmap2::MmapMut;
use pyagent_kernels::attention::{KvLayout, LayerBlocks};

use crate::config::ModelConfig;
use crate::runner::EngineError;

/// In a table: no page, because the block slid out of every later token's sight.
pub const NO_PAGE: u32 = u32::MAX;

/// Layers that see the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Positions a token sees, its own included; `None` means all.
    pub window: Option<usize>,
    /// Pages that a block of 16 tokens takes.
    pub pages_per_block: usize,
}

impl KvGroup {
    /// The first block that the token at `position`, or one after it, sees.
    pub fn first_block(&self, position: usize) -> usize {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first / pyagent_kernels::attention::BLOCK_TOKENS
    }
}

/// Where a layer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    group: usize,
    page_in_block: usize,
    layer_in_page: usize,
}

/// A model's groups of layers, and how pages hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// The groups, in the order of their first layers.
    pub groups: Vec<KvGroup>,
    /// Layers that share a page.
    pub layers_per_page: usize,
    /// How a layer's part of a page is laid out.
    pub layout: KvLayout,
    places: Vec<Place>,
}

impl KvPages {
    /// The groups of a model.
    pub fn of(config: &ModelConfig, layout: KvLayout) -> Self {
        let windows: Vec<_> = (0..config.num_layers).map(|layer| config.window(layer)).collect();
        Self::new(&windows, layout)
    }

    /// The groups of layers with these windows.
    fn new(windows: &[Option<usize>], layout: KvLayout) -> Self {
        let mut kinds: Vec<(Option<usize>, usize)> = Vec::new();
        let in_group: Vec<(usize, usize)> = windows
            .iter()
            .map(|window| {
                let group = kinds.iter().position(|(kind, _)| kind == window);
                let group = group.unwrap_or_else(|| {
                    kinds.push((*window, 0));
                    kinds.len() - 1
                });
                kinds[group].1 += 1;
                (group, kinds[group].1 - 1)
            })
            .collect();
        let layers_per_page = kinds
            .iter()
            .fold(0, |gcd, (_, layers)| greatest_common_divisor(gcd, *layers));
        let group = |&(window, layers): &(Option<usize>, usize)| KvGroup {
            window,
            pages_per_block: layers / layers_per_page,
        };
        let place = |(group, index): (usize, usize)| Place {
            group,
            page_in_block: index / layers_per_page,
            layer_in_page: index % layers_per_page,
        };
        Self {
            groups: kinds.iter().map(group).collect(),
            layers_per_page,
            layout,
            places: in_group.into_iter().map(place).collect(),
        }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.layers_per_page * self.layout.block_bytes()
    }

    /// Bytes that a block of 16 tokens takes in all groups.
    pub fn block_bytes(&self) -> usize {
        let pages: usize = self.groups.iter().map(|group| group.pages_per_block).sum();
        pages * self.page_bytes()
    }
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
    /// When there is no such layer, or no table for its group.
    pub fn layer<'a>(&self, layer: usize, tables: &'a [Arc<Vec<u32>>]) -> LayerBlocks<'a> {
        let place = self.pages.places[layer];
        let offset = place.layer_in_page * self.pages.layout.block_bytes();
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
    pub fn check(&self, tables: &[Arc<Vec<u32>>], first: usize, end: usize) -> Result<(), String> {
        let groups = &self.pages.groups;
        if tables.len() != groups.len() {
            return Err(format!("{} tables for {} groups of layers", tables.len(), groups.len()));
        }
        for (index, (group, table)) in groups.iter().zip(tables).enumerate() {
            let num_blocks = end.div_ceil(pyagent_kernels::attention::BLOCK_TOKENS);
            if table.len() < num_blocks * group.pages_per_block {
                let got = table.len();
                return Err(format!(
                    "{got} pages of group {index} do not cover position {}",
                    end - 1
                ));
            }
            let hidden = group.first_block(first) * group.pages_per_block;
            let (hidden, seen) = table.split_at(hidden);
            let num_pages = self.num_pages as u32;
            // Counted rather than searched: the compiler makes vector instructions of it.
            let num_bad =
                count(seen, |page| page >= num_pages) + count(hidden, |page| page >= num_pages && page != NO_PAGE);
            if num_bad > 0 {
                return Err(format!(
                    "{num_bad} pages of group {index} do not exist or have slid out; there are {num_pages}"
                ));
            }
        }
        Ok(())
    }
}

fn count(pages: &[u32], is_bad: impl Fn(u32) -> bool) -> u32 {
    pages.iter().map(|&page| u32::from(is_bad(page))).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pyagent_kernels::attention::KvType;

    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        num_kv_heads: 1,
        head_dim: 16,
        dtype: KvType::F16,
    };

    /// Gemma 3 270M: five sliding layers, then one that sees everything, three times.
    #[test]
    fn gemma_has_pages_of_three_layers_and_six_pages_a_block() {
        let windows: Vec<_> = (0..18).map(|layer| (layer % 6 != 5).then_some(512)).collect();
        let pages = KvPages::new(&windows, LAYOUT);
        let sliding = KvGroup {
            window: Some(512),
            pages_per_block: 5,
        };
        let full = KvGroup {
            window: None,
            pages_per_block: 1,
        };
        assert_eq!((pages.groups, pages.layers_per_page), (vec![sliding, full], 3));
    }

    proptest! {
        /// No two layers of a block share bytes, and together they fill its pages.
        #[test]
        fn layers_fill_their_pages(kinds in prop::collection::vec(prop_oneof![Just(None), (1_usize..4).prop_map(Some)], 1..40)) {
            let pages = KvPages::new(&kinds, LAYOUT);
            let memory = KvMemory::new(pages.clone(), 200).expect("memory");
            let mut next = 0..;
            let tables: Vec<Arc<Vec<u32>>> = pages
                .groups
                .iter()
                .map(|group| Arc::new(next.by_ref().take(group.pages_per_block).collect()))
                .collect();
            let start = memory.memory.as_ptr() as usize;
            let mut offsets: Vec<usize> = (0..kinds.len())
                .map(|layer| {
                    let kv = memory.layer(layer, &tables);
                    assert_eq!(kinds[layer], pages.groups[pages.places[layer].group].window);
                    // SAFETY: every table has one block.
                    unsafe { kv.block(0) as usize - start }
                })
                .collect();
            offsets.sort_unstable();
            let expected: Vec<usize> = (0..kinds.len()).map(|layer| layer * LAYOUT.block_bytes()).collect();
            prop_assert_eq!(offsets, expected);
            prop_assert_eq!(pages.block_bytes(), kinds.len() * LAYOUT.block_bytes());
        }
    }

    /// Pages that a token sees must exist; those that slid out may be missing; no other number is let through.
    #[test]
    fn check_lets_through_only_what_no_token_reads() {
        let memory = KvMemory::new(KvPages::new(&[Some(20), None], LAYOUT), 4).expect("memory");
        let check = |sliding: &[u32], full: &[u32], first, end| {
            memory.check(&[sliding.to_vec().into(), full.to_vec().into()], first, end)
        };
        assert_eq!(check(&[0, 1, 2], &[0, 1, 2], 40, 48), Ok(()));
        // The token at 40 sees 21..=40: the first block is out of sight, the second is not.
        assert_eq!(check(&[NO_PAGE, 1, 2], &[0, 1, 2], 40, 48), Ok(()));
        for (sliding, full, first, end) in [
            (&[NO_PAGE, NO_PAGE, 2][..], &[0, 1, 2][..], 40, 48),
            (&[NO_PAGE, 1, 2], &[NO_PAGE, 1, 2], 40, 48),
            (&[NO_PAGE, 1, 2], &[0, 1, 2], 34, 48),
            (&[4, 1, 2], &[0, 1, 2], 40, 48),
            (&[NO_PAGE - 1, 1, 2], &[0, 1, 2], 40, 48),
            (&[0, 1, 2], &[0, 1, 4], 40, 48),
            (&[0, 1], &[0, 1, 2], 40, 48),
            (&[0, 1, 2], &[0, 1], 40, 48),
        ] {
            assert!(
                check(sliding, full, first, end).is_err(),
                "{sliding:?} {full:?} {first} {end}"
            );
        }
        assert!(memory.check(&[vec![0; 3].into()], 40, 48).is_err());
    }
}

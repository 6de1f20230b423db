//! A sequence: its token log, the entries of its whole blocks, and its tables of pages.

use std::sync::Arc;

use crate::entries::{Key, NO_ENTRY};
use crate::group::{GroupKind, Layout, NO_PAGE};
use crate::identity::Salt;
use crate::lookup::Alike;
use crate::store::Store;

/// A run of block borders from one of which another sequence is likely to go on, so that what the tokens there can see
/// is worth keeping.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    first: usize,
    last: usize,
}

/// Everything up to `entries.len()` whole blocks is in entries; further pages in the tables are its own.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) salt: Arc<Salt>,
    pub(crate) priority: i64,
    /// Chain hash of the last whole block.
    pub(crate) hash: u64,
    /// Whether its whole blocks can be found; false for good once the index was cleared under it.
    pub(crate) is_indexed: bool,
    pub(crate) entries: Vec<u32>,
    /// For each group, the pages of each block reserved; [`NO_PAGE`] where they slid out of sight.
    pub(crate) tables: Vec<Arc<Vec<u32>>>,
    /// For each class, the blocks before this one slid out of sight.
    first: Vec<usize>,
    checkpoints: Vec<Checkpoint>,
    /// Blocks whose state is worth keeping when it is computed: the prompt's last whole one, and the last that another
    /// sequence had in common with it.
    state_blocks: [Option<usize>; 2],
    /// While it has no more tokens than these, the record of its last block may be of a later one.
    pub(crate) num_unrecorded: usize,
    /// Prompt tokens found and looked up, until they are counted.
    pub(crate) uncounted: (u64, u64),
}

impl Sequence {
    /// A sequence on the first `entries` of a prompt, not yet held.
    pub(crate) fn new(layout: &Layout, prompt: &[u32], entries: &[u32], salt: Arc<Salt>, hash: u64) -> Self {
        let block_tokens = layout.block_tokens;
        let num_tokens = entries.len() * block_tokens;
        Self {
            tokens: prompt[..num_tokens].to_vec(),
            salt,
            priority: 0,
            hash,
            is_indexed: true,
            entries: entries.to_vec(),
            tables: vec![Arc::default(); layout.num_groups],
            first: (0..layout.classes.len())
                .map(|class| layout.first_block(class, num_tokens))
                .collect(),
            checkpoints: vec![Checkpoint {
                first: prompt.len().saturating_sub(1) / block_tokens,
                last: prompt.len() / block_tokens,
            }],
            state_blocks: [(prompt.len().saturating_sub(1) / block_tokens).checked_sub(1), None],
            num_unrecorded: 0,
            uncounted: (0, 0),
        }
    }

    /// Has the state kept where another sequence went another way, after so many blocks.
    pub(crate) fn expect_branch(&mut self, num_blocks: usize) {
        self.state_blocks[1] = num_blocks.checked_sub(1);
        let (first, last) = (num_blocks, num_blocks);
        self.checkpoints.push(Checkpoint { first, last });
    }

    /// Whether a block of a reservation of `num_blocks` in all gets pages in `class`: all but a state's do.
    fn takes_pages(&self, layout: &Layout, class: usize, block: usize, num_blocks: usize) -> bool {
        let GroupKind::State(every) = layout.classes[class].kind else {
            return true;
        };
        block + 1 == num_blocks || (block + 1).is_multiple_of(every) || self.state_blocks.contains(&Some(block))
    }

    /// Pages that [`Self::extend_to`] takes.
    pub(crate) fn pages_to_extend(&self, layout: &Layout, num_blocks: usize) -> usize {
        let takes = |&(class, block): &(usize, usize)| self.takes_pages(layout, class, block, num_blocks);
        let blocks = self.num_reserved(layout)..num_blocks;
        let new = (0..layout.num_groups).flat_map(|class| blocks.clone().map(move |block| (class, block)));
        let new: usize = new
            .filter(takes)
            .map(|(class, _)| layout.classes[class].row.len())
            .sum();
        let late = self
            .lacking_states(layout, num_blocks)
            .map(|class| layout.classes[class].row.len());
        new + late.sum::<usize>()
    }

    /// Classes of states that lack pages in the last of so many blocks, which is reserved: an earlier reservation went
    /// further.
    fn lacking_states(&self, layout: &Layout, num_blocks: usize) -> impl Iterator<Item = usize> + use<> {
        let is_late = num_blocks > self.entries.len() && num_blocks <= self.num_reserved(layout);
        let lacks = |&class: &usize| {
            is_late && layout.classes[class].kind.is_state() && self.pages(layout, class, num_blocks - 1).is_none()
        };
        (0..layout.num_groups).filter(lacks).collect::<Vec<_>>().into_iter()
    }

    /// Reserves blocks up to so many, with these pages of its own.
    pub(crate) fn extend_to(&mut self, layout: &Layout, num_blocks: usize, pages: Vec<u32>) {
        let mut pages = pages.into_iter();
        for class in self.lacking_states(layout, num_blocks) {
            let own: Vec<u32> = pages.by_ref().take(layout.classes[class].row.len()).collect();
            self.set_pages(class, num_blocks - 1, &own);
        }
        let reserved = self.num_reserved(layout);
        for class in 0..layout.num_groups {
            for block in reserved..num_blocks {
                let row = layout.classes[class].row.len();
                let row = if self.takes_pages(layout, class, block, num_blocks) {
                    row
                } else {
                    0
                };
                let own: Vec<u32> = pages.by_ref().take(row).collect();
                self.push_block(layout, class, (!own.is_empty()).then_some(&own));
            }
        }
    }

    /// Blocks that the tables have room for.
    pub(crate) fn num_reserved(&self, layout: &Layout) -> usize {
        self.tables[0].len() / layout.classes[0].row.len()
    }

    /// The pages of `block` in `class`; none when they slid out of sight.
    pub(crate) fn pages(&self, layout: &Layout, class: usize, block: usize) -> Option<&[u32]> {
        let num_pages = layout.classes[class].row.len();
        let table = self.tables.get(class)?;
        let pages = &table[block * num_pages..(block + 1) * num_pages];
        (pages[0] != NO_PAGE).then_some(pages)
    }

    fn set_pages(&mut self, class: usize, block: usize, pages: &[u32]) {
        let table = Arc::make_mut(&mut self.tables[class]);
        table[block * pages.len()..(block + 1) * pages.len()].copy_from_slice(pages);
    }

    /// Adds a block's row of pages to the tables.
    pub(crate) fn push_block(&mut self, layout: &Layout, class: usize, pages: Option<&[u32]>) {
        let Some(table) = self.tables.get_mut(class) else {
            return;
        };
        let table = Arc::make_mut(table);
        match pages {
            Some(pages) => table.extend_from_slice(pages),
            None => table.extend(std::iter::repeat_n(NO_PAGE, layout.classes[class].row.len())),
        }
    }

    /// Adds a block of its own.
    pub(crate) fn push_row(&mut self, layout: &Layout, row: &[u32]) {
        for class in 0..layout.num_groups {
            self.push_block(layout, class, Some(&row[layout.classes[class].row.clone()]));
        }
    }

    /// The pages of the block that is not whole; none when there is no such block.
    pub(crate) fn partial_row(&self, layout: &Layout) -> Vec<u32> {
        let whole = self.entries.len();
        if self.tokens.len() == whole * layout.block_tokens {
            return Vec::new();
        }
        let pages = |class| self.pages(layout, class, whole).unwrap_or_default().iter().copied();
        (0..layout.num_groups).flat_map(pages).collect()
    }

    /// Whether it has room for what is in entries, and no more.
    pub(crate) fn is_at_border(&self, layout: &Layout) -> bool {
        self.num_reserved(layout) == self.entries.len()
    }

    /// Leaves out what is not whole.
    pub(crate) fn truncate_to_whole(&mut self, layout: &Layout) {
        for (table, class) in self.tables.iter_mut().zip(&layout.classes) {
            Arc::make_mut(table).truncate(self.entries.len() * class.row.len());
        }
    }

    /// Uses the entries of the sequence it is a copy of.
    pub(crate) fn hold_shared(&self, store: &mut Store) {
        for class in 0..store.layout.classes.len() {
            for (block, &entry) in self.entries.iter().enumerate().skip(self.first[class]) {
                if class == store.layout.num_groups || self.pages(&store.layout, class, block).is_some() {
                    store.hold(entry, class);
                }
            }
        }
    }

    /// Uses the entries it was made on, from the first one in sight.
    pub(crate) fn hold_entries(&mut self, store: &mut Store) {
        self.entries
            .iter()
            .for_each(|&entry| store.note_hit(entry, self.priority));
        for class in 0..store.layout.classes.len() {
            for block in 0..self.entries.len() {
                let entry = self.entries[block];
                if block < self.first[class] {
                    self.push_block(&store.layout, class, None);
                    continue;
                }
                store.hold(entry, class);
                store.hit(entry, class, self.priority);
                let pages = store.pages(entry, class);
                self.push_block(&store.layout, class, pages);
            }
        }
    }

    /// Makes an entry of the next whole block, or joins the one that is known.
    pub(crate) fn register(&mut self, store: &mut Store) {
        let block = self.entries.len();
        let block_tokens = store.layout.block_tokens;
        let tokens = &self.tokens[block * block_tokens..(block + 1) * block_tokens];
        let parent = self.entries.last().copied().unwrap_or(NO_ENTRY);
        let mut key = Key {
            hash: 0,
            parent,
            salt: Arc::clone(&self.salt),
        };
        if !self.is_indexed {
            key.parent = NO_ENTRY;
            let entry = store.new_entry(key, tokens, false);
            return self.fill(store, entry);
        }
        key.hash = store.hasher.block(self.hash, tokens);
        self.hash = key.hash;
        if let Some(known) = store.entries.find(&key, tokens) {
            return self.fill(store, known);
        }
        store.supersede(parent, tokens, &self.salt);
        if store.entries.children(parent).next().is_some() {
            let (first, last) = (block, block);
            self.checkpoints.push(Checkpoint { first, last });
        }
        let entry = store.new_entry(key, tokens, true);
        store.note_use(entry, self.priority);
        self.fill(store, entry);
    }

    /// Makes an entry of what is not whole, if a block that is known does not begin with it.
    fn register_tail(&mut self, store: &mut Store) {
        let tokens = &self.tokens[self.entries.len() * store.layout.block_tokens..];
        let parent = self.entries.last().copied().unwrap_or(NO_ENTRY);
        let salt = Arc::clone(&self.salt);
        let is_known = |part: Alike| part.num_tokens == tokens.len() && store.stands_for(part);
        let is_unrecorded = store.layout.has_records && self.tokens.len() <= self.num_unrecorded;
        if tokens.is_empty() || is_unrecorded || !self.is_indexed || store.alike(parent, tokens, &salt).any(is_known) {
            return;
        }
        let hash = store.hasher.block(self.hash, tokens);
        let key = Key { hash, parent, salt };
        store.supersede(parent, tokens, &key.salt);
        let known = store.entries.find(&key, tokens);
        let tail = known.unwrap_or_else(|| store.new_entry(key, tokens, true));
        store.note_use(tail, self.priority);
        self.fill(store, tail);
    }

    /// Gives `entry` what it lacks of the next block's pages, and takes the entry's in place of the others.
    fn fill(&mut self, store: &mut Store, entry: u32) {
        let block = self.entries.len();
        self.entries.push(entry);
        for class in 0..store.layout.classes.len() {
            let own = self.pages(&store.layout, class, block).map(<[u32]>::to_vec);
            let Some(own) = own.or_else(|| (class == store.layout.num_groups).then(Vec::new)) else {
                continue; // restored without what was out of sight
            };
            match store.pages(entry, class).map(<[u32]>::to_vec) {
                Some(known) => {
                    store.hold(entry, class);
                    self.set_pages(class, block, &known);
                    own.into_iter().for_each(|page| store.empty.give(page));
                }
                None => store.attach(entry, class, &own, self.priority),
            }
        }
    }

    /// Lets go of whole blocks that no token from the last block border on can see.
    pub(crate) fn slide(&mut self, store: &mut Store) {
        let whole = self.entries.len();
        let border = whole * store.layout.block_tokens;
        for class in store.layout.sliding() {
            let first = store.layout.first_block(class, border).min(whole);
            for block in self.first[class]..first {
                self.let_go(store, class, block);
            }
            self.first[class] = self.first[class].max(first);
        }
    }

    fn let_go(&mut self, store: &mut Store, class: usize, block: usize) {
        if self.pages(&store.layout, class, block).is_none() {
            return;
        }
        let nothing = vec![NO_PAGE; store.layout.classes[class].row.len()];
        self.set_pages(class, block, &nothing);
        let demote = !self.is_checkpointed(&store.layout, class, block);
        store.let_go(self.entries[block], class, demote);
    }

    fn is_checkpointed(&self, layout: &Layout, class: usize, block: usize) -> bool {
        if let GroupKind::State(every) = layout.classes[class].kind
            && (block + 1).is_multiple_of(every)
        {
            return true;
        }
        self.checkpoints.iter().any(|checkpoint| {
            let in_sight_from = layout.first_block(class, checkpoint.first * layout.block_tokens);
            (in_sight_from..checkpoint.last).contains(&block)
        })
    }

    /// Gives everything back: what is reserved first, then tails before heads, windows before what sees everything.
    ///
    /// A window without the tail it belongs to is of no use, and a child without its parent neither.
    pub(crate) fn release(mut self, store: &mut Store) {
        self.register_tail(store);
        let layout = &store.layout;
        let (whole, reserved) = (self.entries.len(), self.num_reserved(layout));
        for class in 0..layout.num_groups {
            for block in whole..reserved {
                for &page in self.pages(layout, class, block).unwrap_or_default() {
                    store.empty.give(page);
                }
            }
        }
        for &entry in &self.entries {
            store.note_end(entry, self.tokens.len());
        }
        for class in store.layout.sliding() {
            for block in (self.first[class].min(whole)..whole).rev() {
                if self.pages(&store.layout, class, block).is_some() {
                    store.let_go(self.entries[block], class, false);
                }
            }
        }
        let chain = store.layout.chain;
        while let Some(entry) = self.entries.pop() {
            store.let_go(entry, chain, false);
        }
    }
}

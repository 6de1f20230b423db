//! The pool's memory as a whole: how much of it may be used, what can be given back, and sequences coming back from swap.

use crate::error::CacheError;
use crate::group::NO_PAGE;
use crate::identity::Salt;
use crate::pool::{AddOptions, BlockPool};

impl BlockPool {
    /// Pages that may be in use or cached now.
    pub fn limit(&self) -> usize {
        self.store.limit
    }

    /// Allows so many pages from now on, and evicts what is cached beyond; returns the pages in use beyond.
    ///
    /// # Errors
    /// [`CacheError::BadLimit`] for more than the pool has.
    pub fn set_limit(&mut self, num_pages: usize) -> Result<usize, CacheError> {
        let store = &mut self.store;
        if num_pages > store.num_pages {
            return Err(CacheError::BadLimit {
                limit: num_pages,
                num_pages: store.num_pages,
            });
        }
        store.tick();
        store.limit = num_pages;
        store.policy.resize(num_pages);
        while store.num_used() > num_pages && store.evict() {}
        Ok(store.num_used().saturating_sub(num_pages))
    }

    /// Pages that became empty since the last call; the memory behind them can be given back before they are reserved.
    pub fn take_freed(&mut self) -> Vec<u32> {
        self.store.empty.cool()
    }

    /// The most pages that a sequence of `num_tokens` holds at once when each step adds up to `step_tokens`.
    pub fn most_pages(&self, num_tokens: usize, step_tokens: usize) -> usize {
        self.store.layout.most_pages(num_tokens, step_tokens)
    }

    /// The pages that a sequence needs to go on later, group by group: computed blocks in sight of the next token.
    ///
    /// # Errors
    /// [`CacheError::UnknownSequence`].
    pub fn pages_in_use(&self, seq: u64) -> Result<Vec<u32>, CacheError> {
        let layout = &self.store.layout;
        let sequence = self.sequence(seq)?;
        let blocks = sequence.tokens.len().div_ceil(layout.block_tokens);
        let pages = |class| {
            let first = layout.first_needed(class, sequence.tokens.len());
            (first..blocks).flat_map(move |block| sequence.pages(layout, class, block).unwrap_or_default())
        };
        Ok((0..layout.num_groups).flat_map(pages).copied().collect())
    }

    /// Starts a sequence whose `tokens` were computed before, from what is cached and what was saved.
    ///
    /// Returns how many tokens are cached, and a page for each of those that [`BlockPool::pages_in_use`] named when
    /// it was saved: [`NO_PAGE`] where the cache has the content. Once the saved content is in these pages, the tokens
    /// that are not cached are to be committed; until then nothing of it can be found.
    ///
    /// # Errors
    /// As [`BlockPool::add`], and [`CacheError::OutOfPages`]; then nothing is changed.
    pub fn restore(
        &mut self,
        seq: u64,
        tokens: &[u32],
        salt: &Salt,
        options: AddOptions,
    ) -> Result<(usize, Vec<u32>), CacheError> {
        self.check_new(seq, tokens)?;
        let mut sequence = self.start(tokens, tokens, salt, options.priority);
        sequence.num_unrecorded = tokens.len();
        let layout = &self.store.layout;
        let cached = sequence.entries.len();
        let blocks = tokens.len().div_ceil(layout.block_tokens);
        let firsts: Vec<usize> = (0..layout.num_groups)
            .map(|class| layout.first_needed(class, tokens.len()))
            .collect();
        let rows = layout.classes.iter().map(|class| class.row.len());
        let missing = rows
            .zip(&firsts)
            .map(|(row, &first)| (blocks - cached.max(first)) * row)
            .sum();
        let mut pages = match self.store.allocate(missing) {
            Ok(pages) => pages.into_iter(),
            Err(error) => {
                sequence.release(&mut self.store);
                return Err(error);
            }
        };
        let mut slots = Vec::new();
        for (class, &first) in firsts.iter().enumerate() {
            let row = self.store.layout.classes[class].row.len();
            slots.extend(std::iter::repeat_n(NO_PAGE, cached.saturating_sub(first) * row));
            for block in cached..blocks {
                let own: Vec<u32> = pages.by_ref().take(if block < first { 0 } else { row }).collect();
                sequence.push_block(&self.store.layout, class, (!own.is_empty()).then_some(&own));
                slots.extend(own);
            }
        }
        self.sequences.insert(seq, sequence);
        Ok((cached * self.block_tokens(), slots))
    }
}

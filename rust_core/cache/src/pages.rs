//! Pages without content: handed out warm ones first, so that the memory behind cold ones can be given back.

/// Empty pages. Every operation is O(1) or in proportion to the pages it returns.
#[derive(Debug)]
pub(crate) struct EmptyPages {
    /// Written before; the last one freed is handed out first.
    warm: Vec<u32>,
    /// Never written, or their memory was given back; the lowest is handed out first.
    cold: Vec<u32>,
}

impl EmptyPages {
    /// All pages below `num_pages`, cold. `None` when there is no memory for them.
    pub(crate) fn all(num_pages: u32) -> Option<Self> {
        let mut cold = Vec::new();
        cold.try_reserve_exact(num_pages as usize).ok()?;
        cold.extend((0..num_pages).rev());
        Some(Self { warm: Vec::new(), cold })
    }

    pub(crate) fn len(&self) -> usize {
        self.warm.len() + self.cold.len()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.warm.pop().or_else(|| self.cold.pop())
    }

    pub(crate) fn give(&mut self, page: u32) {
        self.warm.push(page);
    }

    /// The warm pages, which count as cold from now on.
    pub(crate) fn cool(&mut self) -> Vec<u32> {
        let freed = std::mem::take(&mut self.warm);
        self.cold.extend(&freed);
        freed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.warm.iter().chain(&self.cold).copied()
    }
}

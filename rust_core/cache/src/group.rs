//! Groups of layers that keep the same tokens, and where their pages stand in a block's row of pages.
//!
//! A block of tokens needs pages in every group; its row lists them, group after group.

use std::ops::Range;

use crate::error::CacheError;

/// In place of a page: none is there.
pub const NO_PAGE: u32 = u32::MAX;

/// Which earlier tokens a layer can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    /// All of them.
    Full,
    /// All of them too; a block's pages have a record besides, of what its last known token left behind. From it the next
    /// token goes on, unless that is computed once more.
    Recorded,
    /// The last so many, itself included.
    Window(usize),
    /// Those since the last multiple of so many.
    Chunk(usize),
    /// What all of them left behind: a recurrent layer's state. A block's pages hold the state after its last token; one
    /// block in so many keeps it as a checkpoint, the others give it up once the next has its own.
    State(usize),
}

impl GroupKind {
    /// The first token that the one at `position` can see.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full | Self::Recorded => 0,
            Self::Window(size) => (position + 1).saturating_sub(size),
            Self::Chunk(size) => position / size * size,
            Self::State(_) => position.saturating_sub(1),
        }
    }

    /// Whether it sees all tokens, and has pages for all.
    fn sees_all(self) -> bool {
        matches!(self, Self::Full | Self::Recorded)
    }

    /// Whether pages hold the state after a block's tokens, which stands for all of them or for none.
    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::State(_))
    }
}

/// Layers that keep the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// What they see.
    pub kind: GroupKind,
    /// Pages that a block of tokens takes in these layers.
    pub pages_per_block: usize,
}

impl Group {
    /// One page a block, all tokens seen.
    pub const FULL: Self = Self {
        kind: GroupKind::Full,
        pages_per_block: 1,
    };
}

/// One group's part of a block's row of pages.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) kind: GroupKind,
    pub(crate) row: Range<usize>,
}

/// The groups of a pool.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) block_tokens: usize,
    /// The groups as given; when none of them is full, one more of no pages, whose units only hold chains together.
    pub(crate) classes: Vec<Class>,
    /// The full class: who uses an entry at all uses this unit of it, and no entry is evicted before its children.
    pub(crate) chain: usize,
    pub(crate) num_groups: usize,
    /// Pages of a block in all groups.
    pub(crate) width: usize,
    /// Whether some class keeps states.
    pub(crate) has_states: bool,
    /// Whether pages of some class have a record of a block's last token.
    pub(crate) has_records: bool,
}

impl Layout {
    pub(crate) fn new(block_tokens: usize, groups: &[Group]) -> Result<Self, CacheError> {
        check(groups).map_err(|reason| CacheError::BadGroups { reason })?;
        let mut classes: Vec<Class> = Vec::new();
        let mut width = 0;
        for group in groups {
            let row = width..width + group.pages_per_block;
            width = row.end;
            classes.push(Class { kind: group.kind, row });
        }
        let full = groups.iter().position(|group| group.kind.sees_all());
        if full.is_none() {
            let (kind, row) = (GroupKind::Full, width..width);
            classes.push(Class { kind, row });
        }
        Ok(Self {
            block_tokens,
            chain: full.unwrap_or(groups.len()),
            num_groups: groups.len(),
            classes,
            width,
            has_states: groups.iter().any(|group| group.kind.is_state()),
            has_records: groups.iter().any(|group| group.kind == GroupKind::Recorded),
        })
    }

    /// The first block that the token at `position` can see in `class`.
    pub(crate) fn first_block(&self, class: usize, position: usize) -> usize {
        self.classes[class].kind.first_visible(position) / self.block_tokens
    }

    /// The first block of `class` whose pages a sequence of so many tokens needs to go on.
    pub(crate) fn first_needed(&self, class: usize, num_tokens: usize) -> usize {
        if self.classes[class].kind.is_state() {
            self.first_block(class, num_tokens)
        } else {
            self.first_block(class, num_tokens / self.block_tokens * self.block_tokens)
        }
    }

    /// Classes whose pages slide out of sight.
    pub(crate) fn sliding(&self) -> impl Iterator<Item = usize> + use<> {
        let chain = self.chain;
        (0..self.classes.len()).filter(move |&class| class != chain)
    }

    /// Pages that a sequence of `num_tokens` can hold at once when each step adds up to `step_tokens`.
    pub(crate) fn most_pages(&self, num_tokens: usize, step_tokens: usize) -> usize {
        let blocks = num_tokens.div_ceil(self.block_tokens);
        let most = |class: &Class| match class.kind {
            GroupKind::Full | GroupKind::Recorded => blocks,
            GroupKind::Window(size) | GroupKind::Chunk(size) => {
                let in_sight = size.saturating_add(step_tokens) / self.block_tokens;
                blocks.min(in_sight.saturating_add(3))
            }
            // Of a step: its last block, checkpoints, and the two that the prompt asks for; and those it began from.
            GroupKind::State(every) => {
                let checkpoints = step_tokens.div_ceil(self.block_tokens) / every;
                blocks.min(checkpoints.saturating_add(5))
            }
        };
        self.classes.iter().map(|class| most(class) * class.row.len()).sum()
    }
}

/// Pages of a block in a group at most.
const MOST_PAGES: usize = 4096;

fn check(groups: &[Group]) -> Result<(), &'static str> {
    let num_full = groups.iter().filter(|group| group.kind.sees_all()).count();
    let sees_nothing = |group: &Group| {
        matches!(
            group.kind,
            GroupKind::Window(0) | GroupKind::Chunk(0) | GroupKind::State(0)
        )
    };
    if groups.is_empty() || groups.len() > 16 || num_full > 1 {
        return Err("expected 1 to 16 of them, one of which may see everything");
    }
    if groups
        .iter()
        .any(|group| !(1..=MOST_PAGES).contains(&group.pages_per_block))
    {
        return Err("expected 1 to 4096 pages a block");
    }
    if groups.iter().any(sees_nothing) {
        return Err("expected windows, chunks and checkpoints of at least one");
    }
    Ok(())
}

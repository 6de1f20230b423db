//! The order in which free blocks are handed out again: a doubly linked list through an array.

const OUTSIDE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// Free blocks, first to be reused at the front. Every operation is O(1).
///
/// The slot after the last block is the list's head; an unlinked block points [`OUTSIDE`].
#[derive(Debug)]
pub(crate) struct FreeList {
    links: Vec<Link>,
    len: usize,
}

impl FreeList {
    /// A list of all blocks below `num_blocks`, in order. `None` when there is no memory for it.
    pub(crate) fn full(num_blocks: u32) -> Option<Self> {
        let slots = num_blocks as usize + 1;
        let mut links = Vec::new();
        links.try_reserve_exact(slots).ok()?;
        links.resize(
            slots,
            Link {
                prev: OUTSIDE,
                next: OUTSIDE,
            },
        );
        links[num_blocks as usize] = Link {
            prev: num_blocks,
            next: num_blocks,
        };
        let mut list = Self { links, len: 0 };
        (0..num_blocks).for_each(|block| list.push_back(block));
        Some(list)
    }

    fn head(&self) -> u32 {
        (self.links.len() - 1) as u32
    }

    /// Number of free blocks.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether `block` is free.
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.links[block as usize].next != OUTSIDE
    }

    fn insert_before(&mut self, next: u32, block: u32) {
        debug_assert!(!self.contains(block));
        let prev = self.links[next as usize].prev;
        self.links[block as usize] = Link { prev, next };
        self.links[prev as usize].next = block;
        self.links[next as usize].prev = block;
        self.len += 1;
    }

    /// Makes `block` the next one to be reused.
    pub(crate) fn push_front(&mut self, block: u32) {
        self.insert_before(self.links[self.head() as usize].next, block);
    }

    /// Makes `block` the last one to be reused.
    pub(crate) fn push_back(&mut self, block: u32) {
        self.insert_before(self.head(), block);
    }

    /// Takes `block` out of the list; it must be free.
    pub(crate) fn remove(&mut self, block: u32) {
        debug_assert!(self.contains(block));
        let Link { prev, next } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[block as usize] = Link {
            prev: OUTSIDE,
            next: OUTSIDE,
        };
        self.len -= 1;
    }

    /// Takes the front block.
    pub(crate) fn pop_front(&mut self) -> Option<u32> {
        let block = self.links[self.head() as usize].next;
        (block != self.head()).then(|| {
            self.remove(block);
            block
        })
    }

    /// The free blocks, front first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let next = |block: u32| Some(self.links[block as usize].next).filter(|&next| next != self.head());
        std::iter::successors(next(self.head()), move |&block| next(block)).take(self.links.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks leave from the front, in the order of the back, whatever is taken from the middle.
    #[test]
    fn list_keeps_order_through_removals() {
        let mut list = FreeList::full(4).expect("four links");
        list.remove(2);
        list.push_front(2);
        list.remove(0);
        list.push_back(0);
        assert_eq!(list.iter().collect::<Vec<_>>(), [2, 1, 3, 0]);
        assert_eq!(
            std::iter::from_fn(|| list.pop_front()).collect::<Vec<_>>(),
            [2, 1, 3, 0]
        );
        assert_eq!((list.len(), list.contains(0)), (0, false));
    }
}

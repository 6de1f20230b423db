//! Doubly linked lists of small numbers through one array: the order of eviction wherever it is one of recency.

const OUTSIDE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
    list: u32,
}

/// `N` disjoint lists of numbers below a bound. Every operation is O(1).
///
/// The slots after the last number are the lists' heads; a number in no list points [`OUTSIDE`].
#[derive(Debug)]
pub(crate) struct Lists<const N: usize> {
    links: Vec<Link>,
    lens: [usize; N],
}

impl<const N: usize> Lists<N> {
    /// Empty lists of numbers below `bound`.
    pub(crate) fn new(bound: u32) -> Self {
        let outside = Link {
            prev: OUTSIDE,
            next: OUTSIDE,
            list: 0,
        };
        let mut links = vec![outside; bound as usize + N];
        for list in 0..N as u32 {
            let head = bound + list;
            links[head as usize] = Link {
                prev: head,
                next: head,
                list,
            };
        }
        Self { links, lens: [0; N] }
    }

    fn head(&self, list: usize) -> u32 {
        (self.links.len() - N + list) as u32
    }

    pub(crate) fn len(&self, list: usize) -> usize {
        self.lens[list]
    }

    /// Whether `number` is in one of the lists.
    pub(crate) fn contains(&self, number: u32) -> bool {
        let bound = self.links.len() - N;
        (number as usize) < bound && self.links[number as usize].next != OUTSIDE
    }

    /// Makes `number`, which must be in no list, the last of `list`.
    pub(crate) fn push_back(&mut self, list: usize, number: u32) {
        debug_assert!(!self.contains(number));
        let next = self.head(list);
        let prev = self.links[next as usize].prev;
        let list_id = list as u32;
        self.links[number as usize] = Link {
            prev,
            next,
            list: list_id,
        };
        self.links[prev as usize].next = number;
        self.links[next as usize].prev = number;
        self.lens[list] += 1;
    }

    /// Takes `number` out of its list; returns whether it was in one.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let Link { prev, next, list } = self.links[number as usize];
        if next == OUTSIDE {
            return false;
        }
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[number as usize].next = OUTSIDE;
        self.lens[list as usize] -= 1;
        true
    }

    /// The first number of `list`.
    pub(crate) fn front(&self, list: usize) -> Option<u32> {
        let first = self.links[self.head(list) as usize].next;
        (first != self.head(list)).then_some(first)
    }

    pub(crate) fn pop_front(&mut self, list: usize) -> Option<u32> {
        let first = self.front(list)?;
        self.remove(first);
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers leave each list from its front, in the order of the back, whatever is taken from the middle.
    #[test]
    fn lists_keep_order_through_removals() {
        let mut lists = Lists::<2>::new(6);
        (0..4).for_each(|number| lists.push_back(0, number));
        (4..6).for_each(|number| lists.push_back(1, number));
        assert!(lists.remove(2) && !lists.remove(2));
        lists.push_back(1, 2);
        lists.remove(0);
        lists.push_back(0, 0);
        assert_eq!((lists.len(0), lists.len(1), lists.front(1)), (3, 3, Some(4)));
        let drained = |lists: &mut Lists<2>, list| std::iter::from_fn(|| lists.pop_front(list)).collect::<Vec<_>>();
        assert_eq!(drained(&mut lists, 0), [1, 3, 0]);
        assert_eq!(drained(&mut lists, 1), [4, 5, 2]);
        assert_eq!((lists.len(0), lists.contains(3)), (0, false));
    }
}

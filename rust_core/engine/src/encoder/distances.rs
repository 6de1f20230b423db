//! What is added to the scores of attention by how far a key lies behind its query: what ALiBi says, or a table's numbers.

use pyagent_kernels::attention::distance_row_len;

/// Rows of MPNet's table.
pub(super) const NUM_BUCKETS: usize = 32;
/// Its buckets.
const MPNET: Buckets = Buckets {
    count: NUM_BUCKETS,
    farthest: 128,
    is_causal: false,
};
/// Distances are made for so many tokens more at once.
const STEP: usize = 256;

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DistanceKind {
    /// Each head's rate times the distance is taken off (Press et al. 2021, arXiv 2108.12409).
    Alibi,
    /// A table has a row for each range of distances (Raffel et al. 2019, arXiv 1910.10683, section 2.1).
    Buckets,
}

/// The ranges of distances that share a row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    /// Rows of the table.
    pub(crate) count: usize,
    /// From this distance on, all share the last one.
    pub(crate) farthest: usize,
    /// Whether no key lies behind its query; otherwise half of the rows are of those that do.
    pub(crate) is_causal: bool,
}

/// What is added by distance, in each head, for texts of so many tokens.
pub(crate) struct Distances {
    num_heads: usize,
    buckets: Buckets,
    /// A number for each bucket and head; empty of ALiBi.
    table: Vec<f32>,
    num_tokens: usize,
    /// A row for each head.
    rows: Vec<f32>,
}

impl Distances {
    /// `table` has a row of numbers, one for each head, for each bucket; ALiBi has none.
    pub(super) fn new(num_heads: usize, table: Option<Vec<f32>>) -> Self {
        Self::of_table(num_heads, MPNET, table.unwrap_or_default())
    }

    /// A table of such buckets has a row of numbers, one for each head, for each.
    pub(crate) fn of_table(num_heads: usize, buckets: Buckets, table: Vec<f32>) -> Self {
        Self {
            num_heads,
            buckets,
            table,
            num_tokens: 0,
            rows: Vec::new(),
        }
    }

    /// Has the numbers of texts of so many tokens.
    pub(crate) fn grow_to(&mut self, num_tokens: usize) {
        if num_tokens <= self.num_tokens {
            return;
        }
        self.num_tokens = num_tokens.next_multiple_of(STEP);
        let length = distance_row_len(self.num_tokens);
        let before = self.num_tokens - 1;
        let rows = (0..self.num_heads).flat_map(|head| (0..length).map(move |at| (head, at)));
        self.rows = rows
            .map(|(head, at)| match self.table.is_empty() {
                true => (-slope(head, self.num_heads) * at.abs_diff(before) as f64) as f32,
                false => self.table[self.buckets.row(at.abs_diff(before), at > before) * self.num_heads + head],
            })
            .collect();
    }

    /// A head's number of distance 0; those before and behind it lie around it.
    pub(crate) fn of_head(&self, head: usize) -> *const f32 {
        let length = distance_row_len(self.num_tokens);
        self.rows[head * length + self.num_tokens - 1..].as_ptr()
    }

    /// Bytes of the rows that there are.
    pub(crate) fn held_bytes(&self) -> usize {
        self.rows.len() * size_of::<f32>()
    }

    /// Bytes of the rows for texts of so many tokens.
    pub(super) fn bytes(num_heads: usize, num_tokens: usize) -> usize {
        num_heads * distance_row_len(num_tokens.next_multiple_of(STEP)) * 4
    }
}

/// A head's rate: powers of `2^(-8/n)` for a power of two of heads; what is more has every second one of twice as many.
fn slope(head: usize, num_heads: usize) -> f64 {
    let whole = 1 << num_heads.ilog2();
    let power = if head < whole {
        8.0 * (head + 1) as f64 / whole as f64
    } else {
        4.0 * (2 * (head - whole) + 1) as f64 / whole as f64
    };
    (-power).exp2()
}

impl Buckets {
    /// The row of a distance: where keys lie behind too, half are of those, and of each half the first ones are of one
    /// distance each, the others of ranges that grow by a factor. In single precision, as the models were trained.
    pub(crate) fn row(self, distance: usize, is_behind: bool) -> usize {
        let (count, first, distance) = match (self.is_causal, is_behind) {
            (true, false) => (self.count, 0, distance),
            (true, true) => (self.count, 0, 0), // nobody sees it
            (false, false) => (self.count / 2, 0, distance),
            (false, true) => (self.count / 2, self.count / 2, distance),
        };
        let exact = count / 2;
        if distance < exact {
            return first + distance;
        }
        let growth = (self.farthest as f64 / exact as f64).ln() as f32;
        let range = (distance as f32 / exact as f32).ln() / growth * (count - exact) as f32;
        first + (exact + range as usize).min(count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates of the paper, and of a number of heads that is no power of two.
    #[test]
    fn rates_are_those_of_the_paper() {
        let of = |heads: usize| (0..heads).map(|head| slope(head, heads)).collect::<Vec<_>>();
        assert_eq!(of(8), [1, 2, 3, 4, 5, 6, 7, 8].map(|power| f64::from(-power).exp2()));
        let twelve = of(12);
        assert_eq!(twelve[..8], of(8));
        assert_eq!(twelve[8..], [0.5, 1.5, 2.5, 3.5].map(|power: f64| (-power).exp2()));
    }

    /// Single distances, then ranges that double with every two buckets, on each side.
    #[test]
    fn buckets_grow_with_distance() {
        let before: Vec<usize> = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 63, 64, 127, 128, 9_000]
            .map(|distance| MPNET.row(distance, false))
            .to_vec();
        assert_eq!(before, [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 13, 14, 15, 15, 15]);
        assert_eq!(MPNET.row(1, true), 17);
        assert_eq!(MPNET.row(9_000, true), 31);
    }

    /// Rows are longer where texts are, and what they say of a distance stays.
    #[test]
    fn rows_grow_with_texts() {
        let mut distances = Distances::new(2, None);
        let at = |distances: &Distances, head: usize, distance: isize| {
            // SAFETY: the row has the distances of one text's tokens.
            unsafe { *distances.of_head(head).offset(distance) }
        };
        distances.grow_to(3);
        assert_eq!((at(&distances, 0, 2), at(&distances, 1, -2)), (-0.125, -0.007_812_5));
        distances.grow_to(400);
        assert_eq!((at(&distances, 0, 2), at(&distances, 1, -399)), (-0.125, -1.558_593_8));
    }
}

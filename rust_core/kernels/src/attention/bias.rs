//! What is added to scaled scores by how far a key lies behind its query: a table, or a slope (`ALiBi`).
//!
//! Lies as the kernel reads it: the sixteen keys of a block are at falling distances, so a table's rows run from the
//! farthest distance to 0, and a block's sixteen numbers follow each other wherever the query is.

use std::ops::RangeInclusive;

use super::BLOCK_TOKENS;
use crate::lanes::{LANES, Lanes};

/// Numbers before and behind a row of a table: a block may begin farther than its last distance, and end behind the query.
const PADDING: usize = LANES - 1;
const LANE_INDICES: [f32; LANES] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];

/// Why numbers cannot be added to scores.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ScoreBiasError {
    /// Not a row for each head.
    #[error("{numbers} numbers for {heads} heads; expected as many for each head, one for each distance from 0 on")]
    Shape {
        /// How many there are.
        numbers: usize,
        /// Heads they are for.
        heads: usize,
    },
    /// Something that makes a score no number.
    #[error(
        "the number of head {head} at distance {distance} is {number}; expected a finite one, or -inf to mask the key"
    )]
    Number {
        /// The head.
        head: usize,
        /// The distance; 1 of a slope.
        distance: usize,
        /// What is there.
        number: f32,
    },
    /// A token that sees no key at all, if it is the first.
    #[error("head {head} masks distance 0; expected a finite number: a text's first token sees itself alone")]
    MasksItself {
        /// The head.
        head: usize,
    },
}

/// What is added to the scores of a layer's query heads.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreBias {
    numbers: Numbers,
}

#[derive(Clone, Debug, PartialEq)]
enum Numbers {
    /// `[head][padding, farthest distance ... 0, padding]`.
    Table { rows: Vec<f32>, num_distances: usize },
    /// Of each head what is added for each position of distance.
    Slopes(Vec<f32>),
}

/// What is added to the scores of some neighbouring heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadsBias<'a> {
    bias: &'a ScoreBias,
    first_head: usize,
}

impl ScoreBias {
    /// Adds to a score what `table`, `[num_heads][distances]`, has at its key's distance, the last for all that are farther;
    /// `-inf` masks the key.
    ///
    /// # Errors
    /// When the table has not a row for each head, masks distance 0, or holds NaN or infinity.
    pub fn from_table(table: &[f32], num_heads: usize) -> Result<Self, ScoreBiasError> {
        let num_distances = table.len().checked_div(num_heads).unwrap_or(0);
        if num_distances == 0 || num_distances * num_heads != table.len() {
            let (numbers, heads) = (table.len(), num_heads);
            return Err(ScoreBiasError::Shape { numbers, heads });
        }
        let mut rows = Vec::with_capacity(num_heads * row_len(num_distances));
        for (head, numbers) in table.chunks_exact(num_distances).enumerate() {
            let is_wrong = |number: &f32| number.is_nan() || *number == f32::INFINITY;
            if let Some(distance) = numbers.iter().position(is_wrong) {
                let number = numbers[distance];
                return Err(ScoreBiasError::Number { head, distance, number });
            }
            if numbers[0] == f32::NEG_INFINITY {
                return Err(ScoreBiasError::MasksItself { head });
            }
            rows.extend([numbers[num_distances - 1]; PADDING]);
            rows.extend(numbers.iter().rev());
            rows.extend([0.0; PADDING]);
        }
        let numbers = Numbers::Table { rows, num_distances };
        Ok(Self { numbers })
    }

    /// Adds to a score its head's slope times its key's distance; slopes of `ALiBi` are negative here.
    ///
    /// # Errors
    /// When a slope is not finite.
    pub fn from_slopes(slopes: Vec<f32>) -> Result<Self, ScoreBiasError> {
        match slopes.iter().position(|slope| !slope.is_finite()) {
            None => Ok(Self {
                numbers: Numbers::Slopes(slopes),
            }),
            Some(head) => Err(ScoreBiasError::Number {
                head,
                distance: 1,
                number: slopes[head],
            }),
        }
    }

    /// Query heads it is for.
    pub fn num_heads(&self) -> usize {
        match &self.numbers {
            Numbers::Table { rows, num_distances } => rows.len() / row_len(*num_distances),
            Numbers::Slopes(slopes) => slopes.len(),
        }
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        let (Numbers::Table { rows: numbers, .. } | Numbers::Slopes(numbers)) = &self.numbers;
        size_of_val(numbers.as_slice())
    }

    /// The part of the heads from `first_head` on.
    pub fn of_heads(&self, first_head: usize) -> HeadsBias<'_> {
        HeadsBias { bias: self, first_head }
    }
}

impl HeadsBias<'_> {
    /// Whether there are so many heads.
    pub(super) fn has(self, num_heads: usize) -> bool {
        self.first_head + num_heads <= self.bias.num_heads()
    }

    /// Adds a head's numbers to the scores that a query has in some blocks, none of which begins behind it.
    ///
    /// # Safety
    /// There is such a head, `line` gives sixteen scores of each block, and the CPU has the set of `L`.
    #[inline(always)]
    pub(super) unsafe fn add<L: Lanes>(
        self,
        head: usize,
        query: usize,
        blocks: RangeInclusive<usize>,
        line: impl Fn(usize) -> *mut f32,
    ) {
        let head = self.first_head + head;
        // SAFETY: by contract; a table's row has sixteen numbers from each of these places on.
        unsafe {
            match &self.bias.numbers {
                Numbers::Table { rows, num_distances } => {
                    let row = rows.as_ptr().add(head * row_len(*num_distances));
                    for block in blocks {
                        let start = (num_distances - 1 + PADDING).saturating_sub(query - block * BLOCK_TOKENS);
                        let line = line(block);
                        L::load(line).add(L::load(row.add(start))).store(line);
                    }
                }
                Numbers::Slopes(slopes) => {
                    let (slope, indices) = (L::splat(*slopes.get_unchecked(head)), L::load(LANE_INDICES.as_ptr()));
                    for block in blocks {
                        let distances = L::splat((query - block * BLOCK_TOKENS) as f32).sub(indices);
                        let line = line(block);
                        slope.fma(distances, L::load(line)).store(line);
                    }
                }
            }
        }
    }
}

const fn row_len(num_distances: usize) -> usize {
    num_distances + 2 * PADDING
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that would make a score no number, or leave a token nothing to see, is refused by head and distance.
    #[test]
    fn tables_that_leave_no_score_are_refused() {
        let table = |numbers: &[f32], heads| ScoreBias::from_table(numbers, heads).unwrap_err().to_string();
        assert!(table(&[0.0; 5], 2).starts_with("5 numbers for 2 heads"));
        assert!(table(&[], 2).starts_with("0 numbers for 2 heads"));
        assert!(table(&[0.0], 0).starts_with("1 numbers for 0 heads"));
        assert!(table(&[0.0, 1.0, 0.0, f32::NAN], 2).starts_with("the number of head 1 at distance 1 is NaN"));
        assert!(table(&[0.0, f32::INFINITY], 1).starts_with("the number of head 0 at distance 1 is inf"));
        assert!(table(&[0.0, 1.0, f32::NEG_INFINITY, 0.0], 2).starts_with("head 1 masks distance 0"));
        assert!(ScoreBias::from_slopes(vec![-0.5, f32::NEG_INFINITY]).is_err());
        assert!(ScoreBias::from_table(&[0.0, f32::NEG_INFINITY], 1).is_ok());
    }
}

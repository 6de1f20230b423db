//! How a product is cut into pieces for the threads.

use std::ops::Range;

/// Rows that one piece of a product covers at most: what is made of them stays in the caches for the next stage.
pub(super) const PRODUCT_TILE: usize = 64;
/// Rows that fill a tile of registers: for fewer, reading the weights once for each thread costs more than it saves.
const LEAST_OWN_ROWS: usize = 8;
/// Pieces of a product for each thread.
pub(super) const PIECES_PER_THREAD: usize = 8;

/// How a product is cut into pieces: some rows by some of `num_units` equal units of columns.
pub(super) struct Tiling {
    num_rows: usize,
    num_units: usize,
    pub(super) num_tiles: usize,
    pub(super) num_columns: usize,
}

impl Tiling {
    pub(super) fn new(num_rows: usize, num_units: usize, most_units: usize, num_threads: usize) -> Self {
        // With rows enough each thread has some of its own in every stage, so that what one stage gives the next stays in
        // the caches of one core; weights are read by all.
        let own = (num_rows / LEAST_OWN_ROWS).clamp(1, num_threads);
        let num_tiles = if num_rows == 0 {
            0
        } else {
            num_rows.div_ceil(PRODUCT_TILE).max(own)
        };
        // Several pieces per thread, so that one the operating system holds up does not hold up the rest.
        let wanted = (num_threads * PIECES_PER_THREAD).div_ceil(num_tiles.max(1));
        Self {
            num_rows,
            num_units,
            num_tiles,
            num_columns: wanted.max(num_units.div_ceil(most_units)).min(num_units),
        }
    }

    pub(super) fn num_pieces(&self) -> usize {
        self.num_tiles * self.num_columns
    }

    /// The same columns in one tile of all rows.
    pub(super) fn of_columns(self, num_threads: usize) -> Self {
        let wanted = (num_threads * PIECES_PER_THREAD).min(self.num_units);
        Self {
            num_tiles: self.num_tiles.min(1),
            num_columns: self.num_columns.max(wanted),
            ..self
        }
    }

    /// The rows and units of a piece.
    pub(super) fn ranges(&self, piece: usize) -> (Range<usize>, Range<usize>) {
        let (tile, column) = (piece / self.num_columns, piece % self.num_columns);
        let rows = part(self.num_rows, self.num_tiles, tile);
        (rows, part(self.num_units, self.num_columns, column))
    }
}

/// Part `index` of `count` nearly equal parts of `0..total`.
pub(super) fn part(total: usize, count: usize, index: usize) -> Range<usize> {
    index * total / count..(index + 1) * total / count
}

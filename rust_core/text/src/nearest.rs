//! Exact nearest-neighbour search over a file of vectors: every row is compared, in `f64`.
//!
//! The file holds rows of `f32`, little-endian, without a header. A row that begins with NaN is deleted. The file is
//! read in pieces and never mapped: another process may write it meanwhile.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::thread;

const PIECE_BYTES: usize = 1 << 18;
const LANES: usize = 8;
const ROWS_A_THREAD: usize = 4096;

/// A row and its dot product with the query; greater is nearer, equal ones by the smaller row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbour {
    /// The row's place in the file.
    pub row: usize,
    /// Its dot product with the query.
    pub score: f64,
}

impl Eq for Neighbour {}

impl Ord for Neighbour {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.row.cmp(&other.row))
    }
}

impl PartialOrd for Neighbour {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Return the `count` rows nearest to `query`, nearest first. A row that the file holds in part is passed over.
///
/// # Errors
///
/// Those of opening and reading the file.
pub fn nearest_rows(path: &Path, query: &[f32], count: usize, threads: usize) -> io::Result<Vec<Neighbour>> {
    let row_bytes = size_of_val(query);
    if row_bytes == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let length = usize::try_from(File::open(path)?.metadata()?.len()).map_err(io::Error::other)?;
    let num_rows = length / row_bytes;
    let threads = threads.clamp(1, num_rows.div_ceil(ROWS_A_THREAD).max(1));
    let share = num_rows.div_ceil(threads);
    let found: Vec<io::Result<BinaryHeap<Neighbour>>> = thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|part| (part * share, num_rows.min((part + 1) * share)))
            .map(|(first, end)| scope.spawn(move || scan(path, query, count, first, end)))
            .collect();
        parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|_| Err(io::Error::other("a scan ended"))))
            .collect()
    });
    let mut nearest = Vec::new();
    for part in found {
        nearest.extend(part?);
    }
    nearest.sort_unstable();
    nearest.truncate(count);
    Ok(nearest)
}

/// Return the nearest of the rows from `first` up to `end`; the heap's top is the farthest of them.
fn scan(path: &Path, query: &[f32], count: usize, first: usize, end: usize) -> io::Result<BinaryHeap<Neighbour>> {
    let row_bytes = size_of_val(query);
    let rows_a_piece = (PIECE_BYTES / row_bytes).max(1);
    let query: Vec<f64> = query.iter().copied().map(f64::from).collect();
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start((first * row_bytes) as u64))?;
    let mut piece = vec![0_u8; rows_a_piece * row_bytes];
    let mut heap = BinaryHeap::with_capacity(count.min(end.saturating_sub(first)) + 1);
    let mut row = first;
    while row < end {
        let num_rows = rows_a_piece.min(end - row);
        let piece = &mut piece[..num_rows * row_bytes];
        file.read_exact(piece)?;
        for (place, bytes) in piece.chunks_exact(row_bytes).enumerate() {
            keep(
                &mut heap,
                count,
                Neighbour {
                    row: row + place,
                    score: dot(bytes, &query),
                },
            );
        }
        row += num_rows;
    }
    Ok(heap)
}

fn keep(heap: &mut BinaryHeap<Neighbour>, count: usize, found: Neighbour) {
    if found.score.is_nan() {
        return;
    }
    if heap.len() < count {
        heap.push(found);
    } else if heap.peek().is_some_and(|farthest| found < *farthest) {
        heap.pop();
        heap.push(found);
    }
}

/// Several sums side by side, in an order that does not depend on the machine.
fn dot(row: &[u8], query: &[f64]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let mut rows = row.chunks_exact(LANES * size_of::<f32>());
    let mut queries = query.chunks_exact(LANES);
    for (bytes, part) in rows.by_ref().zip(queries.by_ref()) {
        for lane in 0..LANES {
            sums[lane] += f64::from(float(&bytes[lane * 4..])) * part[lane];
        }
    }
    for (lane, (bytes, part)) in rows.remainder().chunks_exact(4).zip(queries.remainder()).enumerate() {
        sums[lane] += f64::from(float(bytes)) * part;
    }
    sums.iter().sum()
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn written(rows: &[Vec<f32>]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for value in rows.iter().flatten() {
            file.write_all(&value.to_le_bytes()).unwrap();
        }
        file.flush().unwrap();
        file
    }

    fn plainly(rows: &[Vec<f32>], query: &[f32], count: usize) -> Vec<usize> {
        let score = |row: &Vec<f32>| -> f64 { row.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
        let mut order: Vec<usize> = (0..rows.len()).filter(|&row| !rows[row][0].is_nan()).collect();
        order.sort_by(|&a, &b| score(&rows[b]).total_cmp(&score(&rows[a])).then(a.cmp(&b)));
        order.truncate(count);
        order
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the width, the count and the threads, the rows are those of a plain sort. Whole numbers sum exactly.
        #[test]
        fn rows_are_those_of_a_plain_sort(
            width in 1_usize..40, seed in prop::collection::vec(-50_i8..50, 40..4000), count in 0_usize..20,
            threads in 1_usize..4, deleted in 0_usize..20,
        ) {
            let mut rows: Vec<Vec<f32>> =
                seed.chunks_exact(width).map(|row| row.iter().map(|&v| f32::from(v)).collect()).collect();
            let query: Vec<f32> = seed[..width].iter().map(|&v| f32::from(v)).collect();
            if let Some(row) = rows.get_mut(deleted) {
                row[0] = f32::NAN;
            }
            let file = written(&rows);
            let found = nearest_rows(file.path(), &query, count, threads).unwrap();
            let rows_found: Vec<usize> = found.iter().map(|one| one.row).collect();
            prop_assert_eq!(rows_found, plainly(&rows, &query, count));
        }
    }

    /// Several threads find what one finds, and half a row at the end is none.
    #[test]
    fn threads_and_a_torn_end_change_nothing() {
        let rows: Vec<Vec<f32>> = (0..10_000)
            .map(|n| vec![(n % 977) as f32, 1.0, (n % 31) as f32])
            .collect();
        let mut file = written(&rows);
        file.write_all(&[1, 2, 3]).unwrap();
        file.flush().unwrap();
        let query = [0.5, 1.0, 2.0];
        let alone = nearest_rows(file.path(), &query, 10, 1).unwrap();
        assert_eq!(alone, nearest_rows(file.path(), &query, 10, 3).unwrap());
        assert_eq!(
            alone.iter().map(|one| one.row).collect::<Vec<_>>(),
            plainly(&rows, &query, 10)
        );
    }
}

//! Weights in the order the kernels read them: groups of 16 rows, blocks of 32 columns.
//!
//! Packing moves integers and scales, it never rounds: a row read back equals [`crate::ggml::dequantise`] of
//! the source, bit for bit. Knows nothing of activations or threads, but lets several threads pack one matrix.

mod columns;
pub(crate) mod format;
pub(crate) mod memory;
mod planes;
mod rows;
pub(crate) mod scaled;

use std::ops::Range;

use crate::ggml::{GgmlError, GgmlType};
use format::{GROUP_ROWS, header_bytes, with_format};
use memory::Memory;

pub use format::{BLOCK_COLS, GROUP_ROWS as ROWS_PER_GROUP};

/// Why a matrix cannot be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The columns do not fit the type's blocks.
    #[error(transparent)]
    Type(#[from] GgmlError),
    /// The matrix has no elements.
    #[error("a matrix of {rows} rows and {cols} columns has no elements: both must be at least 1")]
    Empty {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The matrix has more bytes than the machine can address.
    #[error("a matrix of {rows} rows and {cols} columns is larger than this machine can address")]
    TooLarge {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The bytes are not those of the matrix.
    #[error(
        "{rows} rows of {cols} columns of {kind} take {expected} bytes, got {got}",
        kind = .kind.name()
    )]
    ByteLength {
        /// Element type.
        kind: GgmlType,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes these take.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
}

/// A weight matrix of `rows` outputs and `cols` inputs, packed for [`crate::matmul::matmul`].
#[derive(Debug)]
pub struct PackedMatrix {
    kind: GgmlType,
    rows: usize,
    cols: usize,
    /// Bytes of scales at the start of each group (0 for plain types and `E4M3`).
    header_bytes: usize,
    group_bytes: usize,
    memory: Memory,
}

impl PackedMatrix {
    /// Packs row-major `bytes` of `kind`.
    pub fn pack(kind: GgmlType, bytes: &[u8], rows: usize, cols: usize) -> Result<Self, PackError> {
        let matrix = Self::allocate(kind, rows, cols)?;
        matrix.check_source(bytes)?;
        // SAFETY: nobody else has the matrix yet.
        unsafe { matrix.pack_groups(bytes, 0..matrix.num_groups()) };
        Ok(matrix)
    }

    /// A matrix whose content is unspecified until [`Self::pack_groups`] has filled each group.
    pub fn allocate(kind: GgmlType, rows: usize, cols: usize) -> Result<Self, PackError> {
        if rows == 0 || cols == 0 {
            return Err(PackError::Empty { rows, cols });
        }
        let too_large = PackError::TooLarge { rows, cols };
        let row_bytes = kind.row_bytes(cols)?;
        // The source fits in memory with room to spare, so the sums below cannot overflow.
        rows.checked_next_multiple_of(GROUP_ROWS)
            .and_then(|rows| rows.checked_mul(row_bytes))
            .filter(|bytes| *bytes < isize::MAX as usize / 4)
            .ok_or(too_large.clone())?;
        let (header_bytes, group_bytes) = group_layout(kind, cols);
        let memory = Memory::uninitialised(rows.div_ceil(GROUP_ROWS) * group_bytes);
        Ok(Self {
            kind,
            rows,
            cols,
            header_bytes,
            group_bytes,
            memory: memory.ok_or(too_large)?,
        })
    }

    /// Whether `bytes` are as many as the matrix has in the file.
    pub fn check_source(&self, bytes: &[u8]) -> Result<(), PackError> {
        let (kind, rows, cols) = (self.kind, self.rows, self.cols);
        let expected = kind.row_bytes(cols)? * rows;
        let got = bytes.len();
        if got == expected {
            return Ok(());
        }
        Err(PackError::ByteLength {
            kind,
            rows,
            cols,
            expected,
            got,
        })
    }

    /// Fills `groups` from `bytes`, the whole matrix in row-major order.
    ///
    /// # Safety
    /// While this runs nobody may read these groups, nor fill them.
    ///
    /// # Panics
    /// If `bytes` fails [`Self::check_source`] or a group does not exist.
    pub unsafe fn pack_groups(&self, bytes: &[u8], groups: Range<usize>) {
        if let Err(error) = self.check_source(bytes) {
            panic!("{error}");
        }
        assert!(groups.end <= self.num_groups(), "group past the matrix");
        let row_bytes = bytes.len() / self.rows;
        for group in groups {
            let first = group * GROUP_ROWS;
            let num_rows = GROUP_ROWS.min(self.rows - first);
            let source = &bytes[first * row_bytes..(first + num_rows) * row_bytes];
            // SAFETY: the group lies inside the memory and, by contract, is ours alone. Bytes need no
            // initialisation to be overwritten, and they are only written through this slice before
            // they are read: `pack_*` fill all but alignment padding, which is filled here.
            let target = unsafe {
                let start = self.group_ptr(group).cast_mut();
                start.write_bytes(0, self.group_bytes);
                std::slice::from_raw_parts_mut(start, self.group_bytes)
            };
            match self.kind {
                GgmlType::F32 => planes::pack_plain::<4>(source, row_bytes, target),
                GgmlType::F16 | GgmlType::BF16 => {
                    planes::pack_plain::<2>(source, row_bytes, target);
                }
                GgmlType::E4M3 => scaled::pack(source, row_bytes, target),
                kind => with_format!(kind, F => {
                    let (header, ints) = target.split_at_mut(self.header_bytes);
                    planes::pack_quantised::<F>(source, row_bytes, header, ints);
                }),
            }
        }
    }

    /// Element type of the weights.
    pub fn kind(&self) -> GgmlType {
        self.kind
    }

    /// Outputs of the matrix.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of the matrix.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Groups of 16 rows, the last one perhaps with fewer.
    pub fn num_groups(&self) -> usize {
        self.rows.div_ceil(GROUP_ROWS)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Whether the weights are integers, so that activations are needed in their quantised form.
    pub fn is_quantised(&self) -> bool {
        self.kind.is_quantised()
    }

    #[inline]
    pub(crate) fn group_ptr(&self, group: usize) -> *const u8 {
        debug_assert!(group < self.num_groups());
        // SAFETY: the memory has `num_groups` groups.
        unsafe { self.memory.as_ptr().add(group * self.group_bytes) }
    }

    #[inline]
    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    pub(crate) fn group(&self, group: usize) -> &[u8] {
        assert!(group < self.num_groups(), "group past the matrix");
        // SAFETY: the group lies inside the memory; once filled it is not written any more.
        unsafe { std::slice::from_raw_parts(self.group_ptr(group), self.group_bytes) }
    }
}

/// Header bytes and all bytes of a group.
fn group_layout(kind: GgmlType, cols: usize) -> (usize, usize) {
    match kind {
        GgmlType::F32 => (0, cols * 4 * GROUP_ROWS),
        GgmlType::F16 | GgmlType::BF16 => (0, (cols * 2 * GROUP_ROWS).next_multiple_of(64)),
        GgmlType::E4M3 => (0, cols / scaled::SCALED_COLS * scaled::SCALED_BYTES),
        kind => with_format!(kind, F => {
            let num_blocks = cols / BLOCK_COLS;
            let header = header_bytes::<F>(num_blocks);
            (header, header + num_blocks * <F as format::Format>::INT_BYTES)
        }),
    }
}

#[cfg(test)]
mod tests;

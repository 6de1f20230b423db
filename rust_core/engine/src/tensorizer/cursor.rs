//! Bytes that are taken from the front, none that are not there.

use super::{MAX_DIMS, damaged};
use crate::weights::ModelFileError;

/// What is left to read.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn bytes(&mut self, num_bytes: usize) -> Result<&'a [u8], ModelFileError> {
        let cut = || damaged("the file is cut short: what is said of its tensors ends too early");
        let (taken, rest) = self.0.split_at_checked(num_bytes).ok_or_else(cut)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of at most eight bytes, the low one first.
    pub(super) fn number(&mut self, num_bytes: usize) -> Result<u64, ModelFileError> {
        let bytes = self.bytes(num_bytes)?;
        Ok(bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    }

    /// Bytes behind their number, which has so many bytes itself.
    pub(super) fn text(&mut self, length_bytes: usize) -> Result<&'a [u8], ModelFileError> {
        let length = self.number(length_bytes)? as usize;
        self.bytes(length)
    }

    /// Dimensions behind their number.
    pub(super) fn shape(&mut self, is_long: bool) -> Result<Vec<u64>, ModelFileError> {
        let num_dims = self.number(1)? as usize;
        if num_dims > MAX_DIMS {
            return Err(damaged(&format!(
                "a tensor has {num_dims} dimensions; at most {MAX_DIMS} are read"
            )));
        }
        (0..num_dims)
            .map(|_| self.number(if is_long { 8 } else { 4 }))
            .collect()
    }
}

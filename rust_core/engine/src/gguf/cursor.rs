//! Reads little-endian fields from bytes that may end, or lie, anywhere.

use crate::weights::ModelFileError;

/// A place in a header. Each read either succeeds and moves on, or says what was missing where.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    pub(super) fn available(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The next `needed` bytes.
    pub(super) fn take(&mut self, needed: u64, what: &'static str) -> Result<&'a [u8], ModelFileError> {
        let (offset, available) = (self.offset, self.available());
        match usize::try_from(needed) {
            Ok(length) if length <= available => {
                self.offset += length;
                Ok(&self.bytes[offset..offset + length])
            }
            _ => Err(ModelFileError::HeaderTruncated {
                what,
                offset,
                needed,
                available,
            }),
        }
    }

    /// The next `N` bytes, for `from_le_bytes`.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ModelFileError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, ModelFileError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, ModelFileError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of items of at least `min_bytes` each, refused if they cannot fit in what is left.
    ///
    /// So nothing is ever allocated for items that are not there.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: usize,
        what: &'static str,
    ) -> Result<usize, ModelFileError> {
        let limit = self.available() / min_bytes;
        match usize::try_from(count) {
            Ok(count) if count <= limit => Ok(count),
            _ => {
                let (offset, available) = (self.offset, self.available());
                Err(ModelFileError::Count {
                    what,
                    count,
                    offset,
                    available,
                    limit,
                })
            }
        }
    }

    /// A length of 64 bits and as many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a str, ModelFileError> {
        let length = self.u64(what)?;
        let offset = self.offset;
        std::str::from_utf8(self.take(length, what)?).map_err(|_| ModelFileError::Utf8 { what, offset })
    }

    /// A string of at most `limit` bytes.
    pub(super) fn name(&mut self, limit: u64, what: &'static str) -> Result<&'a str, ModelFileError> {
        let offset = self.offset;
        let name = self.string(what)?;
        let length = name.len() as u64;
        if length > limit {
            return Err(ModelFileError::Length {
                what,
                offset,
                length,
                limit,
            });
        }
        Ok(name)
    }
}

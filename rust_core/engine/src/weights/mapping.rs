//! A file in memory without being read: the one place where files are mapped.
//!
//! The length is taken once, when the file is mapped. If another program truncates the file afterwards, reading the
//! lost part ends this process with SIGBUS; if it rewrites the file in place, the bytes change under the reader.
//! Neither can be prevented from here: replace model files by renaming a new one over them, never in place.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::ModelFileError;

/// A regular file, mapped read-only.
#[derive(Debug)]
pub(crate) struct Mapping {
    path: PathBuf,
    map: Mmap,
}

impl Mapping {
    /// Maps a regular file. Errors say which file.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelFileError> {
        let map = Self::map(path).map_err(|error| error.in_file(path))?;
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }

    fn map(path: &Path) -> Result<Mmap, ModelFileError> {
        // Before opening: to open a pipe would wait for its writer.
        let facts = path.metadata().map_err(|source| ModelFileError::Io {
            action: "find the file",
            source,
        })?;
        if !facts.is_file() {
            let got = if facts.is_dir() {
                "a folder"
            } else {
                "something that is not a regular file"
            };
            return Err(ModelFileError::NotAModel { got: got.to_owned() });
        }
        let file = File::open(path).map_err(|source| ModelFileError::Io {
            action: "open the file",
            source,
        })?;
        // SAFETY: the map is read-only and only ever lent as bytes, for which any value is valid; every length read
        // from it is checked before use. What other programs may do to the file is said at the top of this module.
        unsafe { Mmap::map(&file) }.map_err(|source| ModelFileError::Io {
            action: "map the file",
            source,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives the memory of these bytes back to the system; reading them again reads the file again.
    ///
    /// The system does it by whole pages. A range outside the file and a refusal are ignored: this is a hint.
    pub(crate) fn drop_pages(&self, range: Range<usize>) {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        if !range.is_empty() && range.end <= self.map.len() {
            // SAFETY: the map is shared and read-only, so the pages hold nothing but the file's content, and slices
            // of them that are alive read the same bytes again from the file.
            let _ = unsafe {
                self.map
                    .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(any(target_os = "linux", target_os = "macos")))]
        let _ = range;
    }
}

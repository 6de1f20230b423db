//! A file in memory without being read: the one place where files are mapped.
//!
//! What is read once and whole is copied by the system instead: a page that is mapped costs more than its copy.
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
    file: File,
    map: Mmap,
}

impl Mapping {
    /// Maps a regular file. Errors say which file.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelFileError> {
        let (file, map) = Self::map(path).map_err(|error| error.in_file(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            map,
        })
    }

    fn map(path: &Path) -> Result<(File, Mmap), ModelFileError> {
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
        let map = unsafe { Mmap::map(&file) }.map_err(|source| ModelFileError::Io {
            action: "map the file",
            source,
        })?;
        Ok((file, map))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Copies bytes of the file, without mapping them. An error where the file has become shorter.
    pub(crate) fn read(&self, range: Range<usize>, out: &mut [u8]) -> Result<(), ModelFileError> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileExt;

            let read = self.file.read_exact_at(out, range.start as u64);
            read.map_err(|source| {
                let action = "read the file";
                let is_short = source.kind() == std::io::ErrorKind::UnexpectedEof;
                let short = || std::io::Error::other("it has become shorter since it was opened");
                let source = if is_short { short() } else { source };
                ModelFileError::Io { action, source }.in_file(&self.path)
            })
        }
        #[cfg(not(unix))]
        {
            let _ = &self.file;
            out.copy_from_slice(&self.map[range]);
            Ok(())
        }
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

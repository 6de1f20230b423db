//! Pages that are copied, swapped out to a file, read for another engine or written from one, or given back to the system.
//!
//! Every page number is checked before anything is done; on an error about a number nothing was. Whose pages they are,
//! and that no step computes with them meanwhile, is the caller's business: `&mut KvMemory` keeps steps away.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::path::Path;

use super::{KvMemory, NO_PAGE};
use crate::runner::EngineError;

/// The content of some pages, in a file without a name: when this is dropped, its space is free again.
#[derive(Debug)]
pub struct SwappedPages {
    file: File,
    num_pages: usize,
    page_bytes: usize,
}

impl SwappedPages {
    /// Pages in the file.
    pub fn num_pages(&self) -> usize {
        self.num_pages
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.num_pages * self.page_bytes
    }
}

impl KvMemory {
    /// Copies the content of pages: (from, to), in this order.
    pub fn copy(&mut self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        for &(from, to) in pairs {
            self.check_pages(&[from, to])?;
        }
        let size = self.pages.page_bytes();
        for &(from, to) in pairs {
            let start = from as usize * size;
            self.memory.copy_within(start..start + size, to as usize * size);
        }
        Ok(())
    }

    /// Writes the content of pages to a new file in `folder`, which must exist.
    pub fn swap_out(&self, pages: &[u32], folder: &Path) -> Result<SwappedPages, EngineError> {
        self.check_pages(pages)?;
        let failed = |reason: std::io::Error| EngineError::Swap {
            action: "written to",
            folder: folder.to_owned(),
            reason,
        };
        let mut file = tempfile::tempfile_in(folder).map_err(failed)?;
        for &page in pages {
            file.write_all(self.page(page)).map_err(failed)?;
        }
        Ok(SwappedPages {
            file,
            num_pages: pages.len(),
            page_bytes: self.pages.page_bytes(),
        })
    }

    /// Reads the content of swapped pages into `pages`, of which [`NO_PAGE`] are left out. The file may be read again.
    pub fn swap_in(&mut self, swapped: &SwappedPages, pages: &[u32], folder: &Path) -> Result<(), EngineError> {
        let size = self.pages.page_bytes();
        if (swapped.num_pages, swapped.page_bytes) != (pages.len(), size) {
            let (count, bytes) = (swapped.num_pages, swapped.page_bytes);
            return Err(EngineError::Pages(format!(
                "{count} pages of {bytes} bytes were swapped out; {} of {size} cannot take them",
                pages.len()
            )));
        }
        let wanted = || pages.iter().enumerate().filter(|(_, page)| **page != NO_PAGE);
        for (_, &page) in wanted() {
            self.check_pages(&[page])?;
        }
        let failed = |reason: std::io::Error| EngineError::Swap {
            action: "read from",
            folder: folder.to_owned(),
            reason,
        };
        let mut file = &swapped.file;
        for (index, &page) in wanted() {
            let from = std::io::SeekFrom::Start((index * size) as u64);
            file.seek(from).map_err(failed)?;
            let start = page as usize * size;
            file.read_exact(&mut self.memory[start..start + size]).map_err(failed)?;
        }
        Ok(())
    }

    /// Copies some layers of pages, one page's after the other's, to bytes as long as [`Self::layers_bytes`] says.
    pub fn read_layers(&self, pages: &[u32], layers: &Range<usize>, bytes: &mut [u8]) -> Result<(), EngineError> {
        let part = self.check_part(pages, layers, bytes.len())?;
        for (&page, bytes) in pages.iter().zip(bytes.chunks_exact_mut(part.len())) {
            bytes.copy_from_slice(&self.page(page)[part.clone()]);
        }
        Ok(())
    }

    /// Copies what [`Self::read_layers`] gave of as many pages to these.
    pub fn write_layers(&mut self, pages: &[u32], layers: &Range<usize>, bytes: &[u8]) -> Result<(), EngineError> {
        let part = self.check_part(pages, layers, bytes.len())?;
        let size = self.pages.page_bytes();
        for (&page, bytes) in pages.iter().zip(bytes.chunks_exact(part.len())) {
            let start = page as usize * size;
            self.memory[start + part.start..start + part.end].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Bytes of some layers of so many pages.
    pub fn layers_bytes(&self, num_pages: usize, layers: &Range<usize>) -> usize {
        num_pages
            .saturating_mul(layers.len())
            .saturating_mul(self.pages.layer_bytes)
    }

    /// Where in a page some of its layers lie, if the pages exist and their layers have so many bytes.
    fn check_part(&self, pages: &[u32], layers: &Range<usize>, num_bytes: usize) -> Result<Range<usize>, EngineError> {
        self.check_pages(pages)?;
        if layers.is_empty() || layers.end > self.pages.layers_per_page {
            let count = self.pages.layers_per_page;
            return Err(EngineError::Pages(format!(
                "a page has no layers {layers:?}; it has {count}"
            )));
        }
        let expected = self.layers_bytes(pages.len(), layers);
        if num_bytes != expected {
            let count = pages.len();
            return Err(EngineError::Pages(format!(
                "layers {layers:?} of {count} pages have {expected} bytes, got {num_bytes}"
            )));
        }
        let size = self.pages.layer_bytes;
        Ok(layers.start * size..layers.end * size)
    }

    /// Gives the memory of pages back to the system. They read as zeros and may be used again.
    pub fn give_back(&mut self, pages: &[u32]) -> Result<(), EngineError> {
        self.check_pages(pages)?;
        let mut pages = pages.to_vec();
        pages.sort_unstable();
        pages.dedup();
        let size = self.pages.page_bytes();
        // Neighbours go together: the system takes whole pages of its own, which may lie across a border.
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            self.drop_bytes(run[0] as usize * size, run.len() * size);
        }
        Ok(())
    }

    /// Makes bytes zero, and those that fill pages of the system its own again.
    fn drop_bytes(&mut self, start: usize, len: usize) {
        let end = start + len;
        let page = system_page_bytes();
        let first = start.next_multiple_of(page).min(end);
        let last = (end / page * page).max(first);
        self.memory[start..first].fill(0);
        self.memory[last..end].fill(0);
        if first == last {
            return;
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the mapping is private and anonymous, so these whole pages read as zeros from now on, and it is
            // borrowed mutably, so nobody holds a reference into them.
            let dropped = unsafe {
                self.memory
                    .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, last - first)
            };
            if dropped.is_ok() {
                return;
            }
        }
        self.memory[first..last].fill(0);
    }

    pub(super) fn page(&self, page: u32) -> &[u8] {
        let size = self.pages.page_bytes();
        &self.memory[page as usize * size..(page as usize + 1) * size]
    }

    fn check_pages(&self, pages: &[u32]) -> Result<(), EngineError> {
        match pages.iter().find(|page| **page as usize >= self.num_pages) {
            Some(page) => Err(EngineError::Pages(format!(
                "page {page} does not exist; there are {}",
                self.num_pages
            ))),
            None => Ok(()),
        }
    }
}

/// Bytes of a page of the operating system.
#[cfg(unix)]
pub(super) fn system_page_bytes() -> usize {
    // SAFETY: asks for a constant.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(1 << 16).max(1)
}

/// Bytes of a page of the operating system.
#[cfg(not(unix))]
pub(super) fn system_page_bytes() -> usize {
    1 << 16
}

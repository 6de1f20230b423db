//! Memory for weights and activations: aligned to cache lines, on huge pages where the system has them.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const LINE_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An owned run of bytes that several threads may fill at once, each its own part.
///
/// It hands out raw pointers only: who writes and who reads, and when, is the contract of its users.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and plain bytes; access is through raw pointers under the users' contracts.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` bytes of unspecified content, or `None` if their number is no possible size.
    pub(crate) fn uninitialised(bytes: usize) -> Option<Self> {
        let layout = layout_of(bytes)?;
        // SAFETY: the size of `layout` is not zero.
        let start = unsafe { alloc(layout) };
        let memory = Self::adopt(start, layout);
        advise_huge_pages(&memory);
        Some(memory)
    }

    /// `bytes` zero bytes.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = layout_of(bytes)?;
        // SAFETY: the size of `layout` is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Self::adopt(start, layout))
    }

    fn adopt(start: *mut u8, layout: Layout) -> Self {
        match NonNull::new(start) {
            Some(start) => Self { start, layout },
            None => handle_alloc_error(layout),
        }
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The number of bytes, at least what was asked for.
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

fn layout_of(bytes: usize) -> Option<Layout> {
    let align = if bytes >= HUGE_PAGE_BYTES {
        HUGE_PAGE_BYTES
    } else {
        LINE_BYTES
    };
    Layout::from_size_align(bytes.max(1).checked_next_multiple_of(LINE_BYTES)?, align).ok()
}

/// Asks for huge pages: a matrix is streamed as a whole, and 4 KiB pages would miss the TLB 512 times as often.
#[cfg(all(target_os = "linux", not(miri)))]
fn advise_huge_pages(memory: &Memory) {
    unsafe extern "C" {
        fn madvise(start: *mut core::ffi::c_void, bytes: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    if memory.len() >= HUGE_PAGE_BYTES {
        // SAFETY: the range is owned by `memory`; the advice changes no content. A refusal is harmless.
        unsafe { madvise(memory.as_ptr().cast(), memory.len(), MADV_HUGEPAGE) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_huge_pages(_: &Memory) {}

//! Memory for weights and activations: aligned to cache lines, on huge pages where the system has them.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

const LINE_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What small pieces are cut from; only pages that are written take memory.
const SLAB_BYTES: usize = 8 * HUGE_PAGE_BYTES;

/// The slab in use: like an allocator's state, it changes where things lie and nothing else. Matrices smaller than a
/// huge page share some this way; on 4 KiB pages one thread read 576x1536 matrices at 24 GB/s instead of 30.
static SLAB: Mutex<Slab> = Mutex::new(Slab {
    allocation: Weak::new(),
    used: 0,
});

struct Slab {
    /// Freed with the last piece.
    allocation: Weak<Allocation>,
    used: usize,
}

/// An owned run of bytes that several threads may fill at once, each its own part.
///
/// It hands out raw pointers only: who writes and who reads, and when, is the contract of its users.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Keeps the bytes allocated.
    _allocation: Arc<Allocation>,
}

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned and plain bytes; access is through raw pointers under the users' contracts.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
// SAFETY: an allocation is only ever freed, by whoever holds it last.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Memory {
    /// `bytes` bytes of unspecified content, or `None` if their number is no possible size.
    pub(crate) fn uninitialised(bytes: usize) -> Option<Self> {
        let layout = layout_of(bytes)?;
        if layout.size() < HUGE_PAGE_BYTES {
            return Some(Self::piece(layout.size()));
        }
        Some(Self::whole(Arc::new(Allocation::uninitialised(layout))))
    }

    /// `bytes` zero bytes.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let layout = layout_of(bytes)?;
        // SAFETY: the size of `layout` is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Self::whole(Arc::new(Allocation::adopt(start, layout))))
    }

    fn whole(allocation: Arc<Allocation>) -> Self {
        Self {
            start: allocation.start,
            bytes: allocation.layout.size(),
            _allocation: allocation,
        }
    }

    /// `bytes` bytes, whole cache lines and less than a huge page, from the slab in use or a new one.
    fn piece(bytes: usize) -> Self {
        // A panic cannot leave the slab half changed: the worst is a slab that is not used up.
        let mut slab = SLAB.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = slab.allocation.upgrade().filter(|_| slab.used + bytes <= SLAB_BYTES);
        let allocation = in_use.unwrap_or_else(|| {
            let layout = layout_of(SLAB_BYTES).expect("a constant that is a possible size");
            let allocation = Arc::new(Allocation::uninitialised(layout));
            *slab = Slab {
                allocation: Arc::downgrade(&allocation),
                used: 0,
            };
            allocation
        });
        // SAFETY: the piece ends within the slab, as checked or because any piece fits a new one.
        let start = unsafe { allocation.start.add(slab.used) };
        slab.used += bytes;
        Self {
            start,
            bytes,
            _allocation: allocation,
        }
    }

    /// The first byte.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The number of bytes, at least what was asked for.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Allocation {
    /// On huge pages, if `layout` is large enough for one.
    fn uninitialised(layout: Layout) -> Self {
        // SAFETY: the size of `layout` is not zero.
        let allocation = Self::adopt(unsafe { alloc(layout) }, layout);
        advise_huge_pages(&allocation);
        allocation
    }

    fn adopt(start: *mut u8, layout: Layout) -> Self {
        match NonNull::new(start) {
            Some(start) => Self { start, layout },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and no piece is left.
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
fn advise_huge_pages(allocation: &Allocation) {
    unsafe extern "C" {
        fn madvise(start: *mut core::ffi::c_void, bytes: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    let (start, bytes) = (allocation.start.as_ptr(), allocation.layout.size());
    if bytes >= HUGE_PAGE_BYTES {
        // SAFETY: the range is owned by `allocation`; the advice changes no content. A refusal is harmless.
        unsafe { madvise(start.cast(), bytes, MADV_HUGEPAGE) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_huge_pages(_: &Allocation) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces are aligned, do not overlap, survive their neighbours, and a slab follows a full one.
    #[test]
    fn pieces_are_apart() {
        let sizes = [1, 64, 65, 1 << 20, HUGE_PAGE_BYTES - 64];
        let mut pieces: Vec<Memory> = (0..60)
            .map(|i| {
                let piece = Memory::uninitialised(sizes[i % sizes.len()]).expect("a possible size");
                assert_eq!(piece.as_ptr() as usize % LINE_BYTES, 0);
                // SAFETY: the piece is ours.
                unsafe { piece.as_ptr().write_bytes(i as u8, piece.len()) };
                piece
            })
            .collect();
        for i in (0..60).step_by(2).rev() {
            pieces.remove(i);
        }
        for (piece, i) in pieces.iter().zip((1..60).step_by(2)) {
            // SAFETY: the piece is ours and written.
            let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len()) };
            assert!(bytes.iter().all(|byte| *byte == i as u8));
        }
    }

    /// Sizes no address space has are refused.
    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Memory::uninitialised(usize::MAX).is_none());
        assert!(Memory::zeroed(isize::MAX as usize).is_none());
    }
}

//! Attention with 256-bit registers: tiles of at most six accumulators of sixteen lanes.

use super::kernel::{self, Group};
use crate::lanes::avx2::Avx2;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const ROWS: usize, const KEYS: usize, const DIMS: usize>(group: &Group<'_>) {
    // SAFETY: the caller's promise; the set is that of this function.
    unsafe { kernel::attend::<Avx2, ROWS, KEYS, DIMS>(group) }
}

/// # Safety
/// As [`super::attend`], and the CPU has AVX2, FMA and F16C.
pub(super) unsafe fn attend(group: &Group<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match group.num_rows {
            1 => tile::<1, 4, 4>(group),
            2 => tile::<2, 3, 2>(group),
            3 => tile::<3, 2, 2>(group),
            4 => tile::<4, 1, 1>(group),
            5 => tile::<5, 1, 1>(group),
            6 => tile::<6, 1, 1>(group),
            _ => unreachable!("more rows than a group takes"),
        }
    }
}

//! Attention with 512-bit registers: tiles of at most 24 accumulators, which leaves 8 registers to feed them.

use super::kernel::{self, Group};
use super::stored::Bf16Pair;
use crate::lanes::avx512::Avx512;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile<const ROWS: usize, const KEYS: usize, const DIMS: usize>(group: &Group<'_>) {
    // SAFETY: the caller's promise; the set is that of this function.
    unsafe { kernel::attend::<Avx512, ROWS, KEYS, DIMS>(group) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn tile_bf16<const ROWS: usize, const KEYS: usize, const DIMS: usize>(group: &Group<'_>) {
    // SAFETY: the caller's promise; the set is that of this function.
    unsafe { kernel::attend_stored::<Avx512, Bf16Pair, ROWS, KEYS, DIMS>(group) }
}

/// The tiles for each number of rows.
macro_rules! run {
    ($tile:ident, $group:ident) => {
        match $group.num_rows {
            1 => $tile::<1, 8, 4>($group),
            2 => $tile::<2, 4, 4>($group),
            3 => $tile::<3, 4, 4>($group),
            4 => $tile::<4, 4, 4>($group),
            5 => $tile::<5, 4, 4>($group),
            6 => $tile::<6, 4, 4>($group),
            7 => $tile::<7, 3, 3>($group),
            8 => $tile::<8, 3, 2>($group),
            _ => unreachable!("more rows than a group takes"),
        }
    };
}

/// # Safety
/// As [`super::attend`], and the CPU has AVX-512 F, BW, VL, DQ and VNNI.
pub(super) unsafe fn attend(group: &Group<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run!(tile, group) }
}

/// # Safety
/// As [`attend`], of keys and values in bfloat16, on a CPU that [`has_bf16_products`](crate::lanes::avx512::has_bf16_products).
pub(super) unsafe fn attend_bf16(group: &Group<'_>) {
    // SAFETY: the caller's promise.
    unsafe { run!(tile_bf16, group) }
}

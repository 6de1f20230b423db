//! AMX: the products of [`super::tiled`] in tile registers, everything around them in AVX-512.
//!
//! The tile instructions are written as assembly, which stable Rust has no intrinsics for. The compiler knows
//! nothing of tile registers and never touches them, so they keep their content from one block to the next.

use std::arch::asm;

use super::Job;
use super::avx512::{self, Avx512};
use super::tiled::{self, Sums, TILE_TOKENS, Tiles};
use crate::pack::format::{Format, GROUP_ROWS, QUAD_BYTES, with_format};

/// Fewer tokens than this are left to AVX-512 at once.
const MIN_TOKENS: usize = 9;

/// Runs a job.
///
/// # Safety
/// As [`super::matmul`]; the CPU has AVX-512 and AMX, and the system lets this process use tiles.
pub(crate) unsafe fn run(job: &Job) {
    // SAFETY: by contract.
    unsafe {
        // A tile reads vectors that lie one after the other.
        if job.tokens.len() < MIN_TOKENS || !job.w.is_quantised() || job.gathered.is_some() {
            avx512::run(job);
        } else {
            with_format!(job.w.kind(), F => on_avx512::<Hardware, F>(job));
        }
    }
}

/// The tiled algorithm around the products of `T`.
///
/// # Safety
/// As [`super::matmul`]; the CPU has AVX-512 and `T`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn on_avx512<T: Tiles, F: Format>(job: &Job) {
    // SAFETY: by contract.
    unsafe { tiled::quantised::<Avx512, T, F>(job, avx512::run) }
}

struct Hardware;

/// The memory form of the tile configuration: palette 1, then bytes per row and rows of each register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Configuration>() == 64);

impl Configuration {
    /// Registers 0: sums, 1: activations, 2: weights.
    fn of(quads: usize) -> Self {
        let mut configuration = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let shapes = [
            (TILE_TOKENS, 4 * GROUP_ROWS),
            (TILE_TOKENS, 4 * quads),
            (quads, QUAD_BYTES),
        ];
        for (register, (rows, row_bytes)) in shapes.into_iter().enumerate() {
            // At most 16 and 64.
            configuration.rows[register] = rows as u8;
            configuration.row_bytes[register] = row_bytes as u16;
        }
        configuration
    }
}

// SAFETY: the instructions are those of AMX-TILE and AMX-INT8.
unsafe impl Tiles for Hardware {
    #[inline(always)]
    unsafe fn configure(quads: usize) {
        let configuration = Configuration::of(quads);
        // SAFETY: reads the 64 bytes behind the pointer, which live until after the instruction; the block is
        // not `nomem`, so they are written before.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    unsafe fn product(_: usize, a: *const i8, a_stride: usize, b: *const u8, c: &mut Sums) {
        // SAFETY: by the configuration, reads 16 rows of activations and a line per quad of weights, and writes
        // 16 lines of sums; all exist by contract.
        unsafe {
            asm!(
                "tileloadd tmm1, [{a} + {a_stride}*1]",
                "tileloadd tmm2, [{b} + {line}*1]",
                "tilezero tmm0",
                "tdpbssd tmm0, tmm1, tmm2",
                "tilestored [{c} + {line}*1], tmm0",
                a = in(reg) a,
                a_stride = in(reg) a_stride,
                b = in(reg) b,
                c = in(reg) c.0.as_mut_ptr(),
                line = in(reg) QUAD_BYTES,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: resets the tile registers, whose content nobody needs any more.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

const _: () = assert!(TILE_TOKENS == 16 && QUAD_BYTES == 4 * GROUP_ROWS);

//! Matrix products of packed weights with a batch of activations.
//!
//! Every output is one chain of `f32` operations in a fixed order, whatever the instruction set, the batch, the
//! split over threads and the size of a tile, so results are equal bit for bit. A lane is an output row and the
//! reduction over columns is sequential:
//!
//! * Quantised weights, per block of 32 columns, then per scale in it (two of 16 columns in `Q2_K`, `Q3_K` and
//!   `Q6_K`), with `isum = sum((integer - OFFSET) * q)` exact in `i32`:
//!   `acc = fma(f32(isum) * x.scale, w.scale, acc)`; and, where weights have offsets,
//!   `acc = fma(x.scale * f32(sum(q)), w.offset, acc)`.
//! * Plain weights, per column: `acc = fma(w, x, acc)`.
//! * `E4M3`, per scale of 64 columns: `even` and `odd`, from 0, per column of theirs `part = fma(number * 2^-8, x, part)`,
//!   then `acc = fma(even, scale * 2^8, acc)` and `acc = fma(odd, scale * 2^8, acc)`.
//!
//! The algorithm is in [`tile`], once; a file per instruction set gives it vectors.

mod activations;
mod scalar;
mod scaled;
mod self_test;
mod simd;
mod tile;
#[cfg(any(target_arch = "x86_64", test))]
mod tiled;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

pub(crate) use activations::ActivationBlock;
pub use activations::Activations;
use activations::Unquantised;
pub(crate) use self_test::agrees_with_scalar;

use crate::isa::Isa;
use crate::pack::PackedMatrix;

/// One call of [`matmul`], checked.
pub(crate) struct Job<'a> {
    pub(crate) w: &'a PackedMatrix,
    pub(crate) groups: Range<usize>,
    pub(crate) x: &'a Activations,
    /// Which vector of the batch each token is, where tokens are not the batch's own.
    pub(crate) gathered: Option<&'a [u32]>,
    pub(crate) tokens: Range<usize>,
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
}

impl Job<'_> {
    /// The vector of the batch that a token is.
    #[inline(always)]
    pub(crate) fn vector(&self, token: usize) -> usize {
        match self.gathered {
            Some(vectors) => vectors[token] as usize,
            None => token,
        }
    }
}

/// Writes `out[token * out_stride + row]` for the rows of `groups` and for `tokens`: row times token vector.
///
/// Rows past the last one of the matrix are never written, so threads may work on different groups, or on
/// different tokens, of the same output.
///
/// # Safety
/// * `isa` is available on this CPU.
/// * The groups are packed and the tokens written, and nobody writes them meanwhile.
/// * `out` is valid for writes at the places above, and nobody else uses these meanwhile.
///
/// # Panics
/// If shapes differ, a range leaves the matrix or the batch, or the batch lacks the form the weights need.
pub unsafe fn matmul(
    isa: Isa,
    w: &PackedMatrix,
    groups: Range<usize>,
    x: &Activations,
    tokens: Range<usize>,
    out: *mut f32,
    out_stride: usize,
) {
    assert!(tokens.end <= x.tokens(), "token past the batch");
    let job = Job {
        w,
        groups,
        x,
        gathered: None,
        tokens,
        out,
        out_stride,
    };
    // SAFETY: by contract, and checked above.
    unsafe { checked(isa, &job) }
}

/// As [`matmul`], for tokens that are vectors anywhere in the batch: token `t` is vector `vectors[t]`.
///
/// # Safety
/// As [`matmul`], of those vectors.
///
/// # Panics
/// Likewise, and if a token of the range is not in `vectors`, or its vector not in the batch.
#[expect(clippy::too_many_arguments, reason = "as `matmul`, and which vectors")]
pub unsafe fn matmul_gathered(
    isa: Isa,
    w: &PackedMatrix,
    groups: Range<usize>,
    x: &Activations,
    vectors: &[u32],
    tokens: Range<usize>,
    out: *mut f32,
    out_stride: usize,
) {
    let found = vectors.get(tokens.clone()).expect("tokens of the list");
    let is_inside = found.iter().all(|vector| (*vector as usize) < x.tokens());
    assert!(is_inside, "token past the batch");
    let job = Job {
        w,
        groups,
        x,
        gathered: Some(vectors),
        tokens,
        out,
        out_stride,
    };
    // SAFETY: by contract, and checked above.
    unsafe { checked(isa, &job) }
}

/// # Safety
/// As [`matmul`].
///
/// # Panics
/// If shapes differ, a group leaves the matrix, or the batch lacks the form the weights need.
unsafe fn checked(isa: Isa, job: &Job) {
    let (w, x) = (job.w, job.x);
    assert_eq!(w.cols(), x.cols(), "columns of weights and activations");
    assert!(job.groups.end <= w.num_groups(), "group past the matrix");
    assert!(
        if w.is_quantised() {
            x.has_quantised()
        } else {
            x.has_dense()
        },
        "activations lack the form that {} weights need",
        w.kind().name()
    );
    // SAFETY: by contract.
    unsafe { dispatch(isa, job) }
}

/// # Safety
/// As [`matmul`].
#[cfg(target_arch = "x86_64")]
unsafe fn dispatch(isa: Isa, job: &Job) {
    // SAFETY: the instruction set is available by contract.
    unsafe {
        match isa {
            Isa::Scalar => scalar::run(job),
            Isa::Avx2 => avx2::run(job),
            Isa::Avx512 => avx512::run(job),
            Isa::Amx => amx::run(job),
        }
    }
}

/// # Safety
/// As [`matmul`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn dispatch(_: Isa, job: &Job) {
    // SAFETY: by contract.
    unsafe { scalar::run(job) }
}

/// Quantises up to [`activations::AT_ONCE`] blocks.
///
/// # Safety
/// `isa` is available on this CPU; the numbers can be read, and nobody else uses the blocks.
#[cfg(target_arch = "x86_64")]
unsafe fn quantise(isa: Isa, blocks: &[Unquantised]) {
    // SAFETY: by contract.
    unsafe {
        match isa {
            Isa::Scalar => scalar::quantise(blocks),
            Isa::Avx2 => avx2::quantise(blocks),
            Isa::Avx512 | Isa::Amx => avx512::quantise(blocks),
        }
    }
}

/// # Safety
/// As on other targets.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn quantise(_: Isa, blocks: &[Unquantised]) {
    // SAFETY: by contract.
    unsafe { scalar::quantise(blocks) }
}

#[cfg(test)]
mod tests;

//! The algorithm: tiles of a vector of rows by a few tokens, the reduction over columns innermost.
//!
//! Everything here is inlined into one function per instruction set and weight type, which alone is compiled for
//! that instruction set; hence plain loops and no closures.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use super::simd::Simd;
use super::{ActivationBlock, Job};
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, GROUP_ROWS, QUAD_BYTES, QUADS, SUPER_BLOCKS, d_at, sc_at};

/// Bytes of quantised weights that are kept in the second-level cache while tiles of tokens pass by. The weights are
/// kept, not the tokens, so that a tile of tokens meets many rows in a row: where it is wide is then well predicted.
const WEIGHT_PANEL_BYTES: usize = 160 << 10;
/// Bytes of activations that are kept in the second-level cache while plain weights pass by.
pub(crate) const TOKEN_PANEL_BYTES: usize = 384 << 10;

/// How far ahead of their use weights are fetched: what memory delivers in a few hundred nanoseconds.
pub(crate) const PREFETCH_BYTES: usize = 8 << 10;

/// Calls `$tile::<.., T>` for the tile sizes that cover `$tokens` most evenly.
macro_rules! for_each_tile {
    ($S:ty, $tokens:expr, $first:ident => $tile:ident :: <$($generic:ty),*> ($($argument:expr),*)) => {{
        let mut $first = $tokens.start;
        while $first < $tokens.end {
            let left = $tokens.end - $first;
            let size = left.div_ceil(left.div_ceil(<$S as Simd>::MAX_TOKENS));
            match size {
                1 => $tile::<$($generic,)* 1>($($argument),*),
                2 => $tile::<$($generic,)* 2>($($argument),*),
                3 if <$S as Simd>::MAX_TOKENS > 2 => $tile::<$($generic,)* 3>($($argument),*),
                4 if <$S as Simd>::MAX_TOKENS > 2 => $tile::<$($generic,)* 4>($($argument),*),
                5 if <$S as Simd>::MAX_TOKENS > 4 => $tile::<$($generic,)* 5>($($argument),*),
                6 if <$S as Simd>::MAX_TOKENS > 4 => $tile::<$($generic,)* 6>($($argument),*),
                7 if <$S as Simd>::MAX_TOKENS > 4 => $tile::<$($generic,)* 7>($($argument),*),
                _ if <$S as Simd>::MAX_TOKENS > 4 => $tile::<$($generic,)* 8>($($argument),*),
                _ => unreachable!("no tile has more than MAX_TOKENS tokens"),
            }
            $first += size;
        }
    }};
}

pub(crate) use for_each_tile;

/// Runs a job whose weights are of the quantised format `F`.
///
/// # Safety
/// As [`super::matmul`], inside a function compiled for `S`.
#[inline(always)]
pub(crate) unsafe fn quantised<S: Simd, F: Format>(job: &Job) {
    let panel_groups = (WEIGHT_PANEL_BYTES / group_bytes::<F>(job)).max(1);
    let mut start = job.groups.start;
    while start < job.groups.end {
        let panel = (start, job.groups.end.min(start + panel_groups));
        // SAFETY: by contract.
        unsafe {
            for_each_tile!(S, job.tokens, first => quantised_panel::<S, F>(job, panel, first));
        }
        start = panel.1;
    }
}

/// Bytes of a group of rows.
#[inline(always)]
fn group_bytes<F: Format>(job: &Job) -> usize {
    job.w.header_bytes() + job.w.cols() / BLOCK_COLS * F::INT_BYTES
}

/// A tile of tokens by all rows of a panel, from its first group to before its last.
///
/// # Safety
/// As [`quantised_tile`].
#[inline(always)]
unsafe fn quantised_panel<S: Simd, F: Format, const T: usize>(job: &Job, panel: (usize, usize), first: usize) {
    let mut group = panel.0;
    while group < panel.1 {
        let mut lane = 0;
        while lane < GROUP_ROWS {
            let comes_first = lane == 0 && first == job.tokens.start;
            // SAFETY: by contract.
            unsafe { quantised_tile::<S, F, T>(job, group, lane, first, comes_first) };
            lane += S::LANES;
        }
        group += 1;
    }
}

/// # Safety
/// As [`quantised`]; the tokens `first..first + T` exist.
#[inline(always)]
unsafe fn quantised_tile<S: Simd, F: Format, const T: usize>(
    job: &Job,
    group: usize,
    lane: usize,
    first: usize,
    comes_first: bool,
) {
    let num_blocks = job.w.cols() / BLOCK_COLS;
    let header = job.w.group_ptr(group);
    let mut ahead = Ahead::of::<F>(job, group);
    let mut planes = header.wrapping_add(job.w.header_bytes() + 4 * lane);
    let mut x = [std::ptr::null::<ActivationBlock>(); T];
    for t in 0..T {
        x[t] = job.x.blocks_of(job.vector(first + t));
    }
    // SAFETY: the group has `num_blocks` blocks of scales and planes, each token as many of integers.
    unsafe {
        let mut sums = [S::zero(); T];
        for block in 0..num_blocks {
            if comes_first {
                ahead.prefetch::<S, F>();
            }
            let weights = unpack::<S, F>(planes);
            planes = planes.wrapping_add(F::INT_BYTES);
            for sub in 0..F::SUBS {
                let (scale, offset) = scales::<S, F>(header, block, sub, lane);
                let mut ints = upper_parts::<S, F, T>(&weights, sub, &x);
                let mut low = [std::ptr::null::<i8>(); T];
                for t in 0..T {
                    ints[t] = S::plus(ints[t], minus_offset::<S, F>(&*x[t], sub));
                    low[t] = (*x[t]).low.as_ptr();
                }
                S::dots::<F, T>(&weights, sub * F::SUB_QUADS, &low, &mut ints);
                for t in 0..T {
                    let product = S::mul(S::to_floats(ints[t]), S::splat((*x[t]).scale));
                    sums[t] = S::fma(product, scale, sums[t]);
                    if F::MIN {
                        sums[t] = S::fma(S::splat(x_sum::<F>(&*x[t], sub)), offset, sums[t]);
                    }
                }
            }
            for t in 0..T {
                x[t] = x[t].wrapping_add(1);
            }
        }
        store::<S>(job, group * GROUP_ROWS + lane, first, &sums);
    }
}

/// The products of the weights under scale `sub` with the upper parts of the activations, moved up to their place.
///
/// # Safety
/// As [`quantised`].
#[inline(always)]
unsafe fn upper_parts<S: Simd, F: Format, const T: usize>(
    weights: &[S::Bytes; QUADS],
    sub: usize,
    x: &[*const ActivationBlock; T],
) -> [S::Ints; T] {
    // SAFETY: by contract.
    unsafe {
        let mut ints = [S::zero_ints(); T];
        let mut wide_quads = 0;
        for t in 0..T {
            wide_quads |= (*x[t]).wide_quads;
        }
        if (wide_quads >> (sub * F::SUB_QUADS)).trailing_zeros() as usize >= F::SUB_QUADS {
            return ints;
        }
        let mut high = [std::ptr::null::<i8>(); T];
        for t in 0..T {
            high[t] = (*x[t]).high.as_ptr();
        }
        for i in 0..F::SUB_QUADS {
            let quad = sub * F::SUB_QUADS + i;
            if wide_quads >> quad & 1 != 0 {
                S::quad_dots::<F, T>(weights[quad], quad, &high, &mut ints);
            }
        }
        for t in 0..T {
            ints[t] = S::shifted(ints[t]);
        }
        ints
    }
}

/// What the weights' offset is multiplied by: the activations' sum under scale `sub`.
#[inline(always)]
pub(crate) fn x_sum<F: Format>(x: &ActivationBlock, sub: usize) -> f32 {
    if F::SUBS == 1 {
        x.sum
    } else {
        -x.scale * x.minus_half_sums[sub] as f32
    }
}

/// The block of weights that is to be fetched now, [`PREFETCH_BYTES`] of integers ahead of its use.
struct Ahead {
    group: *const u8,
    block: usize,
    num_blocks: usize,
    header_bytes: usize,
    group_bytes: usize,
}

impl Ahead {
    #[inline(always)]
    fn of<F: Format>(job: &Job, group: usize) -> Self {
        let num_blocks = job.w.cols() / BLOCK_COLS;
        let group_bytes = group_bytes::<F>(job);
        let distance = PREFETCH_BYTES / F::INT_BYTES;
        Self {
            group: job.w.group_ptr(group).wrapping_add(distance / num_blocks * group_bytes),
            block: distance % num_blocks,
            num_blocks,
            header_bytes: job.w.header_bytes(),
            group_bytes,
        }
    }

    /// Asks for the block's lines and goes on to the next block, perhaps that of the next group. Past the end of
    /// the matrix the addresses mean nothing, which a prefetch allows.
    ///
    /// # Safety
    /// As [`quantised`].
    #[inline(always)]
    unsafe fn prefetch<S: Simd, F: Format>(&mut self) {
        let ints = self.group.wrapping_add(self.header_bytes + self.block * F::INT_BYTES);
        // SAFETY: by contract.
        unsafe {
            S::prefetch(self.group.wrapping_add(d_at::<F>(self.block)));
            if F::SUPER {
                S::prefetch(self.group.wrapping_add(sc_at::<F>(self.block, 0)));
            }
            for line in 0..F::BITS {
                S::prefetch(ints.wrapping_add(line * QUAD_BYTES));
            }
        }
        self.block += 1;
        if self.block == self.num_blocks {
            self.block = 0;
            self.group = self.group.wrapping_add(self.group_bytes);
        }
    }
}

/// What the weights' offset adds to the integer sum: `-OFFSET` times the activations' sum.
///
/// # Safety
/// As [`quantised`].
#[inline(always)]
unsafe fn minus_offset<S: Simd, F: Format>(x: &ActivationBlock, sub: usize) -> S::Ints {
    let is_byte = F::BITS == 8 || F::IS_CODEBOOK;
    // SAFETY: by contract.
    unsafe {
        if F::OFFSET == 0 || (is_byte && S::SIGNED_BYTES) {
            S::zero_ints()
        } else if F::SUBS == 2 {
            S::splat_shifted(x.minus_half_sums[sub], F::OFFSET.trailing_zeros())
        } else if F::OFFSET == 128 {
            S::splat_shifted(x.minus_128_sum, 0)
        } else {
            S::splat_shifted(x.minus_8_sum, F::OFFSET.trailing_zeros() - 3)
        }
    }
}

/// The scale and the offset of each row for scale `sub` of a block; the offset is only meant if `F::MIN`.
///
/// # Safety
/// As [`quantised`]; `header` is the group's.
#[inline(always)]
pub(crate) unsafe fn scales<S: Simd, F: Format>(
    header: *const u8,
    block: usize,
    sub: usize,
    lane: usize,
) -> (S::Floats, S::Floats) {
    // SAFETY: the header has a scale per row, block and sub, in the places `format` names.
    unsafe {
        let d = header.add(d_at::<F>(block) + F::D_BYTES * lane);
        if F::D_BYTES == 1 {
            return (S::load_half_powers(d), S::zero());
        }
        let d = d.cast::<u16>();
        let mut scale = S::load_f16(d);
        let mut offset = if F::MIN {
            S::load_f16(d.add(GROUP_ROWS))
        } else {
            S::zero()
        };
        if F::SUPER {
            let sc = header.add(sc_at::<F>(block, sub) + lane).cast::<i8>();
            scale = S::mul(scale, S::load_i8(sc));
            if F::MIN {
                offset = S::mul(offset, S::load_i8(sc.add(GROUP_ROWS)));
            }
        }
        (scale, offset)
    }
}

/// The unsigned integers of a block, quad by quad, from its planes (see [`crate::pack::format`]).
///
/// # Safety
/// As [`quantised`]; `planes` points at the vector's lanes in the first line of the block.
#[inline(always)]
pub(crate) unsafe fn unpack<S: Simd, F: Format>(planes: *const u8) -> [S::Bytes; QUADS] {
    // SAFETY: a block has a line per bit, and a quad's place is within these.
    unsafe {
        let mut quads = [S::load_bytes(planes); QUADS];
        if F::BITS == 8 {
            for quad in 1..QUADS {
                quads[quad] = S::load_bytes(planes.add(quad * QUAD_BYTES));
            }
            return quads;
        }
        let (mut line, mut shift) = (0, 0);
        if F::BITS & 4 != 0 {
            for pair in 0..4 {
                let bytes = S::load_bytes(planes.add(pair * QUAD_BYTES));
                quads[2 * pair] = S::field(bytes, 0, 0x0f);
                quads[2 * pair + 1] = S::field(bytes, 4, 0x0f);
            }
            (line, shift) = (4, 4);
        }
        if F::BITS & 2 != 0 {
            for quad in 0..QUADS {
                let bytes = S::load_bytes(planes.add((line + quad / 4) * QUAD_BYTES));
                let bits = aligned::<S>(bytes, 2 * (quad % 4) as u32, shift, 0x03);
                quads[quad] = if shift == 0 { bits } else { S::or(quads[quad], bits) };
            }
            (line, shift) = (line + 2, shift + 2);
        }
        if F::BITS & 1 != 0 {
            let bytes = S::load_bytes(planes.add(line * QUAD_BYTES));
            for quad in 0..QUADS {
                let bits = aligned::<S>(bytes, quad as u32, shift, 0x01);
                quads[quad] = S::or(quads[quad], bits);
            }
        }
        if F::IS_CODEBOOK {
            for quad in 0..QUADS {
                quads[quad] = S::lookup(quads[quad], &F::CODEBOOK_BYTES);
            }
        }
        quads
    }
}

/// The bits under `mask << from`, moved to `mask << to`.
///
/// # Safety
/// As [`quantised`].
#[inline(always)]
unsafe fn aligned<S: Simd>(bytes: S::Bytes, from: u32, to: u32, mask: u8) -> S::Bytes {
    // SAFETY: by contract; the mask is moved with the bits, so none of a neighbour remains.
    unsafe {
        if from >= to {
            S::field(bytes, from - to, mask << to)
        } else {
            S::field_left(bytes, to - from, mask << to)
        }
    }
}

/// Writes the sums of the rows from `row` on that exist.
///
/// # Safety
/// As [`quantised`].
#[inline(always)]
pub(crate) unsafe fn store<S: Simd>(job: &Job, row: usize, first: usize, sums: &[S::Floats]) {
    let num_rows = job.w.rows().saturating_sub(row).min(S::LANES);
    for t in 0..sums.len() {
        let place = job.out.wrapping_add((first + t) * job.out_stride + row);
        // SAFETY: the places of existing rows are valid by contract.
        unsafe {
            if num_rows == S::LANES {
                S::store(place, sums[t]);
            } else {
                let mut values = [0.0; GROUP_ROWS];
                S::store(values.as_mut_ptr(), sums[t]);
                place.copy_from_nonoverlapping(values.as_ptr(), num_rows);
            }
        }
    }
}

/// How plain weights are stored.
pub(crate) trait Plain {
    /// Bytes of an element.
    const BYTES: usize;
    /// # Safety
    /// As the loads of [`Simd`].
    unsafe fn load<S: Simd>(at: *const u8) -> S::Floats;
}

macro_rules! plain {
    ($($name:ident, $element:ty, $load:ident;)*) => {$(
        pub(crate) struct $name;
        impl Plain for $name {
            const BYTES: usize = size_of::<$element>();
            #[inline(always)]
            unsafe fn load<S: Simd>(at: *const u8) -> S::Floats {
                // SAFETY: by contract.
                unsafe { S::$load(at.cast::<$element>()) }
            }
        }
    )*};
}
plain! {
    F32, f32, load_f32;
    F16, u16, load_f16;
    Bf16, u16, load_bf16;
}

/// Runs a job whose weights are plain.
///
/// # Safety
/// As [`super::matmul`], inside a function compiled for `S`.
#[inline(always)]
pub(crate) unsafe fn plain<S: Simd, W: Plain>(job: &Job) {
    let token_bytes = job.x.dense_stride() * size_of::<f32>();
    let panel_tokens = (TOKEN_PANEL_BYTES / token_bytes).max(S::MAX_TOKENS) / S::MAX_TOKENS * S::MAX_TOKENS;
    let mut start = job.tokens.start;
    while start < job.tokens.end {
        let panel = start..job.tokens.end.min(start + panel_tokens);
        let mut group = job.groups.start;
        while group < job.groups.end {
            // A pair of groups makes enough independent chains to hide the latency of the sums.
            let pair = group + 2 <= job.groups.end;
            let mut lane = 0;
            while lane < GROUP_ROWS {
                // SAFETY: by contract.
                unsafe {
                    if pair {
                        for_each_tile!(S, panel, first => plain_pair::<S, W>(job, group, lane, first));
                    } else {
                        for_each_tile!(S, panel, first => plain_one::<S, W>(job, group, lane, first));
                    }
                }
                lane += S::LANES;
            }
            group += 1 + usize::from(pair);
        }
        start = panel.end;
    }
}

/// # Safety
/// As [`plain_tile`].
#[inline(always)]
unsafe fn plain_pair<S: Simd, W: Plain, const T: usize>(job: &Job, group: usize, lane: usize, first: usize) {
    // SAFETY: by contract.
    unsafe { plain_tile::<S, W, 2, T>(job, group, lane, first) }
}

/// # Safety
/// As [`plain_tile`].
#[inline(always)]
unsafe fn plain_one<S: Simd, W: Plain, const T: usize>(job: &Job, group: usize, lane: usize, first: usize) {
    // SAFETY: by contract.
    unsafe { plain_tile::<S, W, 1, T>(job, group, lane, first) }
}

/// # Safety
/// As [`plain`]; the groups `group..group + G` and the tokens `first..first + T` exist.
#[inline(always)]
unsafe fn plain_tile<S: Simd, W: Plain, const G: usize, const T: usize>(
    job: &Job,
    group: usize,
    lane: usize,
    first: usize,
) {
    // SAFETY: a group has 16 elements per column, a token one.
    unsafe {
        let mut w = [std::ptr::null::<u8>(); G];
        for g in 0..G {
            w[g] = job.w.group_ptr(group + g).add(lane * W::BYTES);
        }
        let mut x = [std::ptr::null::<f32>(); T];
        for t in 0..T {
            x[t] = job.x.dense_row(job.vector(first + t));
        }
        let mut sums = [[S::zero(); T]; G];
        for column in 0..job.w.cols() {
            let mut weights = [S::zero(); G];
            for g in 0..G {
                weights[g] = W::load::<S>(w[g].add(column * GROUP_ROWS * W::BYTES));
            }
            for t in 0..T {
                let number = S::splat(*x[t].add(column));
                for g in 0..G {
                    sums[g][t] = S::fma(weights[g], number, sums[g][t]);
                }
            }
        }
        for g in 0..G {
            store::<S>(job, (group + g) * GROUP_ROWS + lane, first, &sums[g]);
        }
    }
}

/// Defines `run`, the entry of an instruction set: one specialised function per weight type.
macro_rules! entry {
    ($S:ty $(, $features:literal)?) => {
        /// Runs a job.
        ///
        /// # Safety
        /// As [`super::matmul`]; the CPU has the instruction set.
        pub(crate) unsafe fn run(job: &$crate::matmul::Job) {
            use $crate::ggml::GgmlType;
            use $crate::matmul::tile;

            $(#[target_feature(enable = $features)])?
            unsafe fn quantised<F: $crate::pack::format::Format>(job: &$crate::matmul::Job) {
                // SAFETY: by contract.
                unsafe { tile::quantised::<$S, F>(job) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn plain<W: tile::Plain>(job: &$crate::matmul::Job) {
                // SAFETY: by contract.
                unsafe { tile::plain::<$S, W>(job) }
            }
            $(#[target_feature(enable = $features)])?
            unsafe fn scaled(job: &$crate::matmul::Job) {
                // SAFETY: by contract.
                unsafe { $crate::matmul::scaled::scaled::<$S>(job) }
            }
            // SAFETY: by contract.
            unsafe {
                match job.w.kind() {
                    GgmlType::F32 => plain::<tile::F32>(job),
                    GgmlType::F16 => plain::<tile::F16>(job),
                    GgmlType::BF16 => plain::<tile::Bf16>(job),
                    GgmlType::E4M3 => scaled(job),
                    kind => $crate::pack::format::with_format!(kind, F => quantised::<F>(job)),
                }
            }
        }
    };
}
pub(crate) use entry;

const _: () = assert!(SUPER_BLOCKS == 8 && QUADS == 8);

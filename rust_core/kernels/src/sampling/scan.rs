//! One pass over a row of logits: its best token, and the greatest logits of its parts.
//!
//! From the parts' greatest logits a bound is found that enough tokens reach, and only the parts that hold one are
//! looked at again. Nothing here depends on the instruction set: it finds, and does not compute.

use super::SampleError;
use super::rank::rank_key;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// Tokens of one block, which has sixteen maxima: lane `i`'s is that of its tokens `i`, `i + 16`, ...
const BLOCK: usize = 16 * LANES;
/// How far below the best the bound is looked for at first.
const SPAN: f32 = 32.0;
/// Halvings of that: then the bound is near enough to the one wanted, or tokens are equal.
const NUM_HALVINGS: usize = 24;

/// What is known of a row; keeps its memory from row to row.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    isa: Isa,
    greatest: f32,
    maxima: Vec<f32>,
}

impl Scan {
    pub(super) fn new(isa: Isa) -> Self {
        Self {
            isa,
            greatest: f32::NEG_INFINITY,
            maxima: Vec::new(),
        }
    }

    /// The greatest logit's token, the lowest of equals; also the check that the row is sound.
    pub(super) fn begin(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.maxima.resize(logits.len().div_ceil(BLOCK) * LANES, 0.0);
        let is_sound;
        (self.greatest, is_sound) = maxima(self.isa, logits, &mut self.maxima);
        if !is_sound || self.greatest == f32::INFINITY {
            let broken = |x: &f32| x.is_nan() || *x == f32::INFINITY;
            let token = logits
                .iter()
                .position(broken)
                .expect("the row has a number that is not finite");
            return Err(SampleError::NotFinite {
                token: token as u32,
                value: logits[token],
            });
        }
        if self.greatest == f32::NEG_INFINITY {
            let vocab = logits.len();
            return Err(if vocab == 0 {
                SampleError::Empty
            } else {
                SampleError::AllMasked { vocab }
            });
        }
        Ok(self.best(logits) as u32)
    }

    /// The first token of the greatest logit: in the first block that has it.
    fn best(&self, logits: &[f32]) -> usize {
        let mut blocks = self.maxima.chunks_exact(LANES);
        // Without an early exit inside a block this is vectorised.
        let block = blocks.position(|maxima| maxima.iter().fold(false, |found, x| found | (*x == self.greatest)));
        let start = block.expect("the maximum is in a block") * BLOCK;
        let within = logits[start..].iter().position(|x| *x == self.greatest);
        start + within.expect("the maximum is in its block")
    }

    /// Puts keys of tokens into `keys`, in no order, the best `count` among them; fewer if fewer are allowed.
    pub(super) fn gather(&self, logits: &[f32], count: usize, keys: &mut Vec<u64>) {
        keys.clear();
        if count > 0 {
            // Nothing excluded is gathered.
            let bound = self.bound(count).max(f32::MIN);
            gather(self.isa, logits, &self.maxima, bound, keys);
        }
    }

    /// A logit that at least `count` tokens reach, and not many more.
    fn bound(&self, count: usize) -> f32 {
        let num_reaching = |bound| count_at_least(self.isa, &self.maxima, bound);
        let mut high = self.greatest;
        if count > self.maxima.len() {
            return f32::NEG_INFINITY;
        }
        if num_reaching(high) >= count {
            return high;
        }
        let mut low = high - SPAN;
        if num_reaching(low) < count {
            let mut maxima = self.maxima.clone();
            return *maxima.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1;
        }
        for _ in 0..NUM_HALVINGS {
            let middle = low + (high - low) / 2.0;
            let num = num_reaching(middle);
            if num < count {
                high = middle;
                continue;
            }
            low = middle;
            if num <= count + count / 4 {
                break;
            }
        }
        low
    }
}

/// Sixteen logits of `block` from `start` on, excluded ones past its end.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
pub(super) unsafe fn load_excluding<L: Lanes>(block: &[f32], start: usize) -> L {
    if block.len() - start >= LANES {
        // SAFETY: the caller promises the set, and sixteen numbers are there.
        return unsafe { L::load(block.as_ptr().add(start)) };
    }
    let mut padded = [f32::NEG_INFINITY; LANES];
    padded[..block.len() - start].copy_from_slice(&block[start..]);
    // SAFETY: the caller promises the set; the array holds sixteen numbers.
    unsafe { L::load(padded.as_ptr()) }
}

/// Fills `maxima`, sixteen for each block; gives the greatest, and whether no number is NaN.
fn maxima(isa: Isa, logits: &[f32], maxima: &mut [f32]) -> (f32, bool) {
    /// Sums at a time, so that one addition need not wait for another.
    const WAYS: usize = 4;
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(logits: &[f32], maxima: &mut [f32]) -> (f32, bool) {
        // SAFETY: the caller promises the set of `L`.
        let (excluded, least, zero) = unsafe { (L::splat(f32::NEG_INFINITY), L::splat(f32::MIN), L::splat(0.0)) };
        let (mut best, mut faults) = (excluded, [zero; WAYS]);
        for (block, maxima) in logits.chunks(BLOCK).zip(maxima.chunks_exact_mut(LANES)) {
            let mut greatest = [excluded; WAYS];
            for (i, start) in (0..block.len()).step_by(LANES).enumerate() {
                // SAFETY: as above.
                let x: L = unsafe { load_excluding(block, start) };
                greatest[i % WAYS] = x.max(greatest[i % WAYS]);
                // 0, or NaN for a NaN or an infinity; what is excluded is the least number here.
                faults[i % WAYS] = least.max(x).fma(zero, faults[i % WAYS]);
            }
            let [a, b, c, d] = greatest;
            let greatest = a.max(b).max(c.max(d));
            best = greatest.max(best);
            // SAFETY: sixteen numbers fit there.
            unsafe { greatest.store(maxima.as_mut_ptr()) };
        }
        (best.greatest(), faults.into_iter().all(|fault| !fault.sum().is_nan()))
    }
    run_on!(isa, kernel(logits: &[f32], maxima: &mut [f32]) -> (f32, bool))
}

/// How many of the numbers, whole sixteens, are at least `bound`.
fn count_at_least(isa: Isa, numbers: &[f32], bound: f32) -> usize {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(numbers: &[f32], bound: f32) -> usize {
        // SAFETY: the caller promises the set of `L`.
        let bound = unsafe { L::splat(bound) };
        let mut count = 0;
        for numbers in numbers.chunks_exact(LANES) {
            // SAFETY: as above; sixteen numbers are there.
            count += unsafe { L::load(numbers.as_ptr()) }.at_least(bound).count_ones() as usize;
        }
        count
    }
    run_on!(isa, kernel(numbers: &[f32], bound: f32) -> usize)
}

/// Adds the keys of all tokens that reach `bound` to `keys`.
fn gather(isa: Isa, logits: &[f32], maxima: &[f32], bound: f32, keys: &mut Vec<u64>) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(logits: &[f32], maxima: &[f32], bound: f32, keys: &mut Vec<u64>) {
        // SAFETY: the caller promises the set of `L`.
        let limit = unsafe { L::splat(bound) };
        for (i, maxima) in maxima.chunks_exact(LANES).enumerate() {
            // SAFETY: as above; sixteen numbers are there.
            if unsafe { L::load(maxima.as_ptr()) }.at_least(limit) == 0 {
                continue;
            }
            let block = &logits[i * BLOCK..logits.len().min((i + 1) * BLOCK)];
            for start in (0..block.len()).step_by(LANES) {
                // SAFETY: as above.
                let mut reaching = unsafe { load_excluding::<L>(block, start) }.at_least(limit);
                while reaching != 0 {
                    let within = start + reaching.trailing_zeros() as usize;
                    keys.push(rank_key(block[within], i * BLOCK + within));
                    reaching &= reaching - 1;
                }
            }
        }
    }
    run_on!(isa, kernel(logits: &[f32], maxima: &[f32], bound: f32, keys: &mut Vec<u64>))
}

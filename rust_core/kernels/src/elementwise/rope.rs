//! Rotary positions (Su et al. 2021, arXiv 2104.09864): the angles of a model and their application to a head.
//!
//! The angles follow the arithmetic of the published reference implementations in PyTorch: inverse
//! frequencies in `f32`, angle = `f32(position) * inverse frequency` rounded to `f32`, then its cosine and
//! sine. Doing better would be doing otherwise: at position 8,000 the rounding of the angle is visible.

mod scaling;

pub use scaling::RopeScaling;
use scaling::check;
pub(super) use scaling::inverse_frequencies;

use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, load_part, run_on, store_part};

/// Which two numbers of a head form a pair to rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `i` with `i + rotary_dims / 2` (GPT-NeoX, and every model in the Hugging Face layout).
    Neox,
    /// `2 i` with `2 i + 1` (the paper; Llama weights in their original and GGUF layout).
    Interleaved,
}

/// Why a rotary table cannot be made or used as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// The rotated part of a head is made of pairs.
    #[error("rotary dimensions must be an even number of at least 2, got {0}")]
    Dims(usize),
    /// A number of the model's configuration is out of range.
    #[error("rope {field} must be finite and {expected}, got {value}")]
    Value {
        /// The setting.
        field: &'static str,
        /// What it was.
        value: f32,
        /// What it may be.
        expected: &'static str,
    },
    /// One factor belongs to each frequency.
    #[error("rope scaling has {got} factors for {expected} frequencies")]
    Factors {
        /// Half the rotary dimensions.
        expected: usize,
        /// Factors given.
        got: usize,
    },
    /// The model has no such position.
    #[error("position {position} is beyond the model's {max_positions} positions: shorten the prompt")]
    Position {
        /// The last position asked for.
        position: usize,
        /// The model's limit.
        max_positions: usize,
    },
}

/// Cosines and sines of a model's positions, made as far as they have been asked for.
#[derive(Clone, Debug)]
pub struct RopeTable {
    inverse_frequencies: Vec<f32>,
    /// Factor on cosines and sines.
    attention_factor: f32,
    max_positions: usize,
    /// Rows of `rotary_dims / 2` cosines, position after position; `sin` likewise.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// A table for heads whose first `rotary_dims` numbers are rotated, with frequencies
    /// `base^(-2 i / rotary_dims)`; no position is computed yet.
    pub fn new(rotary_dims: usize, base: f32, scaling: &RopeScaling, max_positions: usize) -> Result<Self, RopeError> {
        if rotary_dims < 2 || !rotary_dims.is_multiple_of(2) {
            return Err(RopeError::Dims(rotary_dims));
        }
        check("base", base, base > 0.0, "above 0")?;
        let inverse_frequencies = inverse_frequencies(rotary_dims, base, scaling)?;
        Ok(Self {
            inverse_frequencies,
            attention_factor: scaling.attention_factor(),
            max_positions,
            cos: Vec::new(),
            sin: Vec::new(),
        })
    }

    /// Numbers at the start of a head that are rotated.
    pub fn rotary_dims(&self) -> usize {
        2 * self.inverse_frequencies.len()
    }

    /// The radians that each pair turns per position.
    pub fn inverse_frequencies(&self) -> &[f32] {
        &self.inverse_frequencies
    }

    /// The factor on cosines and sines, which makes attention sharper where the context was stretched.
    pub fn attention_factor(&self) -> f32 {
        self.attention_factor
    }

    /// Computes the rows of positions `0..num_positions`, so that [`Self::row`] has them.
    pub fn grow_to(&mut self, num_positions: usize) -> Result<(), RopeError> {
        if num_positions > self.max_positions {
            return Err(RopeError::Position {
                position: num_positions - 1,
                max_positions: self.max_positions,
            });
        }
        for position in self.num_positions()..num_positions {
            for frequency in &self.inverse_frequencies {
                let angle = f64::from(position as f32 * frequency);
                self.cos.push(angle.cos() as f32 * self.attention_factor);
                self.sin.push(angle.sin() as f32 * self.attention_factor);
            }
        }
        Ok(())
    }

    /// Positions computed so far.
    pub fn num_positions(&self) -> usize {
        self.cos.len() / self.inverse_frequencies.len()
    }

    /// The cosines and sines of a position, `rotary_dims / 2` each. Panics unless [`Self::grow_to`] covers it.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.inverse_frequencies.len();
        let row = position * half..(position + 1) * half;
        (&self.cos[row.clone()], &self.sin[row])
    }
}

/// Rotates the first `2 * cos.len()` numbers of one head `x` in place by the angles of its position.
///
/// `(a, b)` becomes `(a cos - b sin, b cos + a sin)`, each product rounded before the sum as in the reference.
pub fn rope(isa: Isa, x: &mut [f32], cos: &[f32], sin: &[f32], style: RopeStyle) {
    assert!(
        cos.len() == sin.len() && 2 * cos.len() <= x.len(),
        "angles do not fit the head"
    );
    match style {
        RopeStyle::Neox => {
            let (first, rest) = x.split_at_mut(cos.len());
            let second = &mut rest[..cos.len()];
            run_on!(isa, rotate_halves(first: &mut [f32], second: &mut [f32], cos: &[f32], sin: &[f32]))
        }
        RopeStyle::Interleaved => {
            run_on!(isa, rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32]))
        }
    }
}

#[inline(always)]
unsafe fn rotate_halves<L: Lanes>(first: &mut [f32], second: &mut [f32], cos: &[f32], sin: &[f32]) {
    for start in (0..cos.len()).step_by(LANES) {
        // SAFETY: the caller promises the set of `L`.
        let (a, b): (L, L) = unsafe { (load_part(first, start), load_part(second, start)) };
        // SAFETY: as above.
        let (cos, sin): (L, L) = unsafe { (load_part(cos, start), load_part(sin, start)) };
        store_part(a.mul(cos).sub(b.mul(sin)), first, start);
        store_part(b.mul(cos).add(a.mul(sin)), second, start);
    }
}

/// Plain Rust for every set: products and sums without a fused step round the same however they are compiled.
#[inline(always)]
unsafe fn rotate_pairs<L: Lanes>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, cos), sin) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (a, b) = (pair[0], pair[1]);
        pair[0] = a * cos - b * sin;
        pair[1] = b * cos + a * sin;
    }
}

//! Rotary positions (Su et al. 2021, arXiv 2104.09864): the angles of a model and their application to a head.
//!
//! The angles follow the arithmetic of the published reference implementations in PyTorch: inverse
//! frequencies in `f32`, angle = `f32(position) * inverse frequency` rounded to `f32`, then its cosine and
//! sine. Doing better would be doing otherwise: at position 8,000 the rounding of the angle is visible.

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

/// How a model stretches its rotary frequencies to contexts longer than it was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every position is divided by `factor` (Chen et al. 2023, arXiv 2306.15595).
    Linear {
        /// The context is this many times the original.
        factor: f32,
    },
    /// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, with a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length, in tokens, of the first training.
        original_max_position: usize,
    },
    /// A divisor for each frequency: LongRoPE, and the `rope_freqs` tensor of GGUF files.
    Factors(Vec<f32>),
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
                self.cos.push(angle.cos() as f32);
                self.sin.push(angle.sin() as f32);
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

fn check(field: &'static str, value: f32, holds: bool, expected: &'static str) -> Result<(), RopeError> {
    if value.is_finite() && holds {
        Ok(())
    } else {
        Err(RopeError::Value { field, value, expected })
    }
}

/// The radians that each pair turns per position.
pub(super) fn inverse_frequencies(rotary_dims: usize, base: f32, scaling: &RopeScaling) -> Result<Vec<f32>, RopeError> {
    // The exponent is rounded to f32 as in the reference; the power is correctly rounded, as PyTorch's nearly is.
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / rotary_dims as f32;
        f64::from(base).powf(f64::from(exponent)) as f32
    };
    let plain = (0..rotary_dims / 2).map(|i| 1.0 / power(i));
    match scaling {
        RopeScaling::None => Ok(plain.collect()),
        RopeScaling::Linear { factor } => {
            check("scaling factor", *factor, *factor > 0.0, "above 0")?;
            Ok(plain.map(|frequency| frequency / factor).collect())
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => {
            check("scaling factor", *factor, *factor > 0.0, "above 0")?;
            check("low_freq_factor", *low_freq_factor, *low_freq_factor > 0.0, "above 0")?;
            check(
                "high_freq_factor",
                *high_freq_factor,
                high_freq_factor > low_freq_factor,
                "above low_freq_factor",
            )?;
            let context = *original_max_position as f32;
            check("original_max_position", context, context > 0.0, "above 0")?;
            Ok(plain
                .map(|frequency| llama3(frequency, *factor, *low_freq_factor, *high_freq_factor, context))
                .collect())
        }
        RopeScaling::Factors(factors) => {
            let expected = rotary_dims / 2;
            if factors.len() != expected {
                return Err(RopeError::Factors {
                    expected,
                    got: factors.len(),
                });
            }
            for factor in factors {
                check("scaling factor", *factor, *factor > 0.0, "above 0")?;
            }
            Ok(factors
                .iter()
                .enumerate()
                .map(|(i, factor)| 1.0 / (factor * power(i)))
                .collect())
        }
    }
}

/// Llama 3.1's rule for one frequency, in the order of operations of the reference.
fn llama3(frequency: f32, factor: f32, low_freq_factor: f32, high_freq_factor: f32, context: f32) -> f32 {
    let wavelength = std::f32::consts::TAU / frequency;
    if wavelength > context / low_freq_factor {
        frequency / factor
    } else if wavelength < context / high_freq_factor {
        frequency
    } else {
        let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
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

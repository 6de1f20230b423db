//! How rotary frequencies follow from a model's base and scaling.

use super::RopeError;

/// How a model stretches its rotary frequencies to contexts longer than it was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every pair turns the other way.
    Backwards,
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
    /// A divisor for each frequency: LongRoPE (Ding et al. 2024, arXiv 2402.13753), and the `rope_freqs` tensor of GGUF
    /// files.
    Factors {
        /// Divisors, the highest frequency's first.
        divisors: Vec<f32>,
        /// Factor on cosines and sines.
        attention_factor: f32,
    },
    /// The base grows with the context, here at once to that of `factor` times the trained context. A cache that
    /// sequences share cannot follow each one's length.
    DynamicNtk {
        /// The context is this many times the trained one.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): frequencies of few turns in the trained context are divided by
    /// `factor`, those of many kept, with a ramp between.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Turns in the trained context from which a frequency is kept.
        beta_fast: f32,
        /// Turns in the trained context up to which a frequency is divided.
        beta_slow: f32,
        /// Context length, in tokens, of the first training.
        original_max_position: usize,
        /// Whether the ramp's ends are rounded outwards to whole frequencies.
        is_truncated: bool,
        /// Factor on cosines and sines.
        attention_factor: f32,
    },
}

impl RopeScaling {
    /// The factor on cosines and sines.
    pub fn attention_factor(&self) -> f32 {
        match self {
            Self::Factors { attention_factor, .. } | Self::Yarn { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        }
    }

    /// The positions that a model of so many trained ones has with the scaling.
    pub fn context_length(&self, trained: usize) -> usize {
        match self {
            Self::DynamicNtk { factor } => trained.max((trained as f32 * factor) as usize),
            Self::Yarn {
                factor,
                original_max_position,
                ..
            } => trained.max((*original_max_position as f32 * factor) as usize),
            _ => trained,
        }
    }
}

pub(super) fn check(field: &'static str, value: f32, holds: bool, expected: &'static str) -> Result<(), RopeError> {
    if value.is_finite() && holds {
        Ok(())
    } else {
        Err(RopeError::Value { field, value, expected })
    }
}

/// The radians that each pair turns per position.
pub(in super::super) fn inverse_frequencies(
    rotary_dims: usize,
    base: f32,
    scaling: &RopeScaling,
) -> Result<Vec<f32>, RopeError> {
    let base = match scaling {
        RopeScaling::DynamicNtk { factor } => ntk_base(rotary_dims, base, *factor)?,
        _ => base,
    };
    // The exponent is rounded to f32 as in the reference; the power is correctly rounded, as PyTorch's nearly is.
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / rotary_dims as f32;
        f64::from(base).powf(f64::from(exponent)) as f32
    };
    let plain = (0..rotary_dims / 2).map(|i| 1.0 / power(i));
    match scaling {
        RopeScaling::None | RopeScaling::DynamicNtk { .. } => Ok(plain.collect()),
        RopeScaling::Backwards => Ok(plain.map(|frequency| -frequency).collect()),
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
                high_freq_factor >= low_freq_factor,
                "at least low_freq_factor",
            )?;
            let context = *original_max_position as f32;
            check("original_max_position", context, context > 0.0, "above 0")?;
            Ok(plain
                .map(|frequency| llama3(frequency, *factor, *low_freq_factor, *high_freq_factor, context))
                .collect())
        }
        RopeScaling::Factors {
            divisors: factors,
            attention_factor,
        } => {
            check(
                "attention_factor",
                *attention_factor,
                *attention_factor > 0.0,
                "above 0",
            )?;
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
        RopeScaling::Yarn {
            factor,
            attention_factor,
            ..
        } => {
            check("scaling factor", *factor, *factor > 0.0, "above 0")?;
            check(
                "attention_factor",
                *attention_factor,
                *attention_factor > 0.0,
                "above 0",
            )?;
            let (low, high) = yarn_ramp(rotary_dims, base, scaling)?;
            let kept = |i: usize| 1.0 - ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            Ok((0..rotary_dims / 2)
                .map(|i| 1.0 / (factor * power(i)) * (1.0 - kept(i)) + 1.0 / power(i) * kept(i))
                .collect())
        }
    }
}

/// The base with which the lowest frequency turns as far in the longer context as it did in the trained one.
fn ntk_base(rotary_dims: usize, base: f32, factor: f32) -> Result<f32, RopeError> {
    check("scaling factor", factor, factor >= 1.0, "at least 1")?;
    if rotary_dims < 4 {
        return Err(RopeError::Dims(rotary_dims));
    }
    let stretch = f64::from(factor * factor - (factor - 1.0));
    let exponent = rotary_dims as f64 / (rotary_dims - 2) as f64;
    Ok((f64::from(base) * stretch.powf(exponent)) as f32)
}

/// Between which frequencies YaRN goes from kept to divided.
fn yarn_ramp(rotary_dims: usize, base: f32, scaling: &RopeScaling) -> Result<(f32, f32), RopeError> {
    let RopeScaling::Yarn {
        beta_fast,
        beta_slow,
        original_max_position,
        is_truncated,
        ..
    } = scaling
    else {
        return Ok((0.0, 1.0));
    };
    check("beta_slow", *beta_slow, *beta_slow > 0.0, "above 0")?;
    check("beta_fast", *beta_fast, beta_fast >= beta_slow, "at least beta_slow")?;
    let context = *original_max_position as f64;
    check("original_max_position", context as f32, context > 0.0, "above 0")?;
    check("base", base, base > 1.0, "above 1")?;
    let dims = rotary_dims as f64;
    // The frequency that makes so many turns in the trained context.
    let at = |turns: f32| {
        let turn = f64::from(turns) * std::f64::consts::TAU;
        dims * (context / turn).ln() / (2.0 * f64::from(base).ln())
    };
    let (low, high) = match (at(*beta_fast), at(*beta_slow)) {
        (low, high) if *is_truncated => (low.floor(), high.ceil()),
        ends => ends,
    };
    let (low, high) = (low.max(0.0), high.min(dims - 1.0));
    // Published implementations keep the ramp from having no length so.
    Ok((low as f32, if low == high { high + 0.001 } else { high } as f32))
}

/// Llama 3.1's rule for one frequency, in the order of operations of the reference.
fn llama3(frequency: f32, factor: f32, low_freq_factor: f32, high_freq_factor: f32, context: f32) -> f32 {
    let wavelength = std::f32::consts::TAU / frequency;
    if wavelength > context / low_freq_factor {
        frequency / factor
    } else if wavelength < context / high_freq_factor || high_freq_factor == low_freq_factor {
        frequency
    } else {
        let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

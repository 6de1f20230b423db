//! What a row's tokens weigh at a temperature, and the sums of that. Nothing is weighed that is not asked for.

use std::cell::OnceCell;

use super::SamplingParams;
use super::scan::load_excluding;
use crate::elementwise::exp_sum;
use crate::elementwise::functions::exp;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes, run_on};

/// How a row is weighed: each token by `e^((logit - greatest) / temperature)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighed<'a> {
    isa: Isa,
    pub(super) logits: &'a [f32],
    pub(super) greatest: f32,
    pub(super) temperature: f32,
}

impl<'a> Weighed<'a> {
    /// A row whose likeliest token is `best`.
    pub(super) fn new(isa: Isa, logits: &'a [f32], best: u32, temperature: f32) -> Self {
        Self {
            isa,
            logits,
            greatest: logits[best as usize],
            temperature,
        }
    }

    /// The weight of a logit so far below the greatest.
    pub(super) fn weight_below(&self, distance: f32) -> f64 {
        f64::from(-distance / self.temperature).exp()
    }

    /// The logarithm of a token's weight.
    pub(super) fn log_weight(&self, token: u32) -> f64 {
        f64::from((self.logits[token as usize] - self.greatest) / self.temperature)
    }

    /// Replaces logits by their weights; gives their sum.
    pub(super) fn weigh(&self, logits: &mut [f32]) -> f64 {
        exp_sum(self.isa, logits, self.greatest, self.temperature)
    }

    /// The weight of a token.
    pub(super) fn weight_of(&self, token: u32) -> f64 {
        self.weigh(&mut [self.logits[token as usize]])
    }

    /// The weight of all tokens.
    pub(super) fn mass(&self) -> f64 {
        mass(self.isa, self.logits, self.greatest, self.temperature)
    }

    /// The sums over the tokens of at least this weight.
    pub(super) fn row(self, least: f64, has_entropy: bool) -> Row<'a> {
        Row {
            weighed: self,
            least,
            has_entropy,
            sums: OnceCell::new(),
        }
    }
}

/// A weighed row, with the sums over what the thresholds keep, which are made when they are first read.
pub(super) struct Row<'a> {
    pub(super) weighed: Weighed<'a>,
    least: f64,
    has_entropy: bool,
    sums: OnceCell<(f64, f64)>,
}

impl Row<'_> {
    /// The weight of the tokens together.
    pub(super) fn mass(&self) -> f64 {
        self.sums().0
    }

    /// In nats; NaN where it is not to be read.
    pub(super) fn entropy(&self) -> f64 {
        let (mass, moment) = self.sums();
        mass.ln() - moment / mass
    }

    fn sums(&self) -> (f64, f64) {
        *self.sums.get_or_init(|| {
            let Weighed {
                isa,
                logits,
                greatest,
                temperature,
            } = self.weighed;
            if self.least > 0.0 || self.has_entropy {
                moments(isa, logits, greatest, temperature, self.least)
            } else {
                (mass(isa, logits, greatest, temperature), f64::NAN)
            }
        })
    }
}

/// The temperature, which may follow the row's entropy relative to the greatest there can be, as llama.cpp has it.
pub(super) fn dynamic_temperature(params: &SamplingParams, temperature: f32, weighed: &Weighed<'_>) -> f32 {
    if params.dynatemp_range == 0.0 {
        return temperature;
    }
    let entropy = weighed.row(0.0, true).entropy();
    let num_allowed = weighed
        .logits
        .iter()
        .filter(|logit| **logit > f32::NEG_INFINITY)
        .count();
    let most = (num_allowed as f64).ln();
    let relative = if most > 0.0 {
        (entropy / most).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let (low, high) = (temperature - params.dynatemp_range, temperature + params.dynatemp_range);
    let low = low.max(0.0);
    let temperature = low + (high - low) * relative.powf(f64::from(params.dynatemp_exponent)) as f32;
    temperature.max(LEAST_TEMPERATURE)
}

/// Below it the likeliest token has all the mass anyway.
const LEAST_TEMPERATURE: f32 = 1e-3;

/// The standard deviation of the logits that are numbers.
pub(super) fn deviation(isa: Isa, logits: &[f32]) -> f32 {
    let (count, sum, _) = powers(isa, logits, 0.0);
    let (_, _, squares) = powers(isa, logits, sum / count);
    (squares / count).sqrt() as f32
}

/// How many logits are numbers, and the sums of their distances from `middle` and of those squared, in sixteen lanes.
fn powers(isa: Isa, logits: &[f32], middle: f64) -> (f64, f64, f64) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(logits: &[f32], middle: f64) -> (f64, f64, f64) {
        // SAFETY: the caller promises the set of `L`.
        let (least, nearest) = unsafe { (L::splat(f32::MIN), L::splat(middle as f32)) };
        let (mut num_excluded, mut sums, mut squares) = (0, [0.0_f64; LANES], [0.0_f64; LANES]);
        for start in (0..logits.len()).step_by(LANES) {
            // SAFETY: as above.
            let logits: L = unsafe { load_excluding(logits, start) };
            num_excluded += LANES - logits.at_least(least).count_ones() as usize;
            // What is excluded is put where it is taken out again.
            let logits = logits.select_less(least, nearest, logits).to_array();
            for lane in 0..LANES {
                let distance = f64::from(logits[lane]) - middle;
                sums[lane] += distance;
                squares[lane] += distance * distance;
            }
        }
        let off = f64::from(middle as f32) - middle;
        let num_excluded = num_excluded as f64;
        let count = logits.len().next_multiple_of(LANES) as f64 - num_excluded;
        let sum: f64 = sums.iter().sum();
        let squared: f64 = squares.iter().sum();
        (count, sum - num_excluded * off, squared - num_excluded * off * off)
    }
    run_on!(isa, kernel(logits: &[f32], middle: f64) -> (f64, f64, f64))
}

/// The sum of all weights, in sixteen lanes.
fn mass(isa: Isa, logits: &[f32], greatest: f32, temperature: f32) -> f64 {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(logits: &[f32], greatest: f32, temperature: f32) -> f64 {
        // SAFETY: the caller promises the set of `L`.
        let (greatest, divisor) = unsafe { (L::splat(greatest), L::splat(temperature)) };
        let mut sums = [0.0_f64; LANES];
        for start in (0..logits.len()).step_by(LANES) {
            // SAFETY: as above.
            let logits: L = unsafe { load_excluding(logits, start) };
            let below = logits.sub(greatest);
            // A number over 1 is itself.
            let below = if temperature == 1.0 { below } else { below.div(divisor) };
            for (sum, weight) in sums.iter_mut().zip(exp(below).to_array()) {
                *sum += f64::from(weight);
            }
        }
        sums.iter().sum()
    }
    run_on!(isa, kernel(logits: &[f32], greatest: f32, temperature: f32) -> f64)
}

/// The sum of the weights of at least `least`, and of each times its logarithm, in sixteen lanes.
fn moments(isa: Isa, logits: &[f32], greatest: f32, temperature: f32, least: f64) -> (f64, f64) {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(logits: &[f32], greatest: f32, temperature: f32, least: f64) -> (f64, f64) {
        // SAFETY: the caller promises the set of `L`.
        let (greatest, divisor) = unsafe { (L::splat(greatest), L::splat(temperature)) };
        let (mut masses, mut moments) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        for start in (0..logits.len()).step_by(LANES) {
            // SAFETY: as above.
            let logits: L = unsafe { load_excluding(logits, start) };
            let below = logits.sub(greatest).div(divisor);
            let (weights, logs) = (exp(below).to_array(), below.to_array());
            for lane in 0..LANES {
                let (weight, log) = (f64::from(weights[lane]), f64::from(logs[lane]));
                let is_in = weight >= least;
                masses[lane] += if is_in { weight } else { 0.0 };
                // Nothing times minus infinity is no number.
                moments[lane] += if is_in & (weight > 0.0) { weight * log } else { 0.0 };
            }
        }
        (masses.iter().sum(), moments.iter().sum())
    }
    run_on!(isa, kernel(logits: &[f32], greatest: f32, temperature: f32, least: f64) -> (f64, f64))
}

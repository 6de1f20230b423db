//! The range of each sampling parameter that is a number.

use super::SamplingParams;

/// A sampling parameter out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} must be {expected}, got {value}")]
pub struct SamplingParamsError {
    /// The parameter.
    pub field: &'static str,
    /// What was given.
    pub value: String,
    /// What may be given.
    pub expected: &'static str,
}

/// The least and the greatest, and how that is said.
type Range = (f32, f32, &'static str);

const NOT_NEGATIVE: Range = (0.0, f32::MAX, "a finite number of at least 0");
const PART: Range = (0.0, 1.0, "from 0 to 1");
const PART_ABOVE_ZERO: Range = (f32::MIN_POSITIVE, 1.0, "above 0 and at most 1");
const PENALTY: Range = (-2.0, 2.0, "from -2 to 2");
const BIAS: Range = (-100.0, 100.0, "from -100 to 100");

impl SamplingParams {
    /// The parameters themselves, if each is in its range; otherwise which is not.
    pub fn checked(self) -> Result<Self, SamplingParamsError> {
        let biases = self.logit_bias.iter().map(|(_, bias)| ("logit_bias", *bias, BIAS));
        for (field, value, (least, most, expected)) in self.ranged().into_iter().chain(biases) {
            // A comparison with what is not a number fails.
            if !(least..=most).contains(&value) {
                let value = value.to_string();
                return Err(SamplingParamsError { field, value, expected });
            }
        }
        Ok(self)
    }

    fn ranged(&self) -> [(&'static str, f32, Range); 26] {
        [
            ("temperature", self.temperature, NOT_NEGATIVE),
            ("temperature_end", self.temperature_end, NOT_NEGATIVE),
            ("dynatemp_range", self.dynatemp_range, NOT_NEGATIVE),
            ("dynatemp_exponent", self.dynatemp_exponent, NOT_NEGATIVE),
            ("top_n_sigma", self.top_n_sigma, NOT_NEGATIVE),
            ("epsilon_cutoff", self.epsilon_cutoff, PART),
            ("eta_cutoff", self.eta_cutoff, PART),
            ("top_k_entropy", self.top_k_entropy, NOT_NEGATIVE),
            ("top_h", self.top_h, PART_ABOVE_ZERO),
            ("typical_p", self.typical_p, PART_ABOVE_ZERO),
            ("top_p", self.top_p, PART_ABOVE_ZERO),
            ("min_p", self.min_p, PART),
            ("min_p_entropy", self.min_p_entropy, NOT_NEGATIVE),
            ("xtc_probability", self.xtc_probability, PART),
            ("xtc_threshold", self.xtc_threshold, PART_ABOVE_ZERO),
            ("mirostat", self.mirostat as f32, (0.0, 2.0, "0, 1 or 2")),
            ("mirostat_tau", self.mirostat_tau, NOT_NEGATIVE),
            ("mirostat_eta", self.mirostat_eta, NOT_NEGATIVE),
            (
                "repetition_penalty",
                self.repetition_penalty,
                (f32::MIN_POSITIVE, f32::MAX, "a finite number above 0"),
            ),
            ("frequency_penalty", self.frequency_penalty, PENALTY),
            ("presence_penalty", self.presence_penalty, PENALTY),
            ("penalty_decay", self.penalty_decay, PART_ABOVE_ZERO),
            ("penalty_end", self.penalty_end, PART),
            ("dry_multiplier", self.dry_multiplier, NOT_NEGATIVE),
            (
                "dry_base",
                self.dry_base,
                (1.0, f32::MAX, "a finite number of at least 1"),
            ),
            (
                "bad_words_penalty",
                self.bad_words_penalty,
                (0.0, f32::INFINITY, "at least 0"),
            ),
        ]
    }
}

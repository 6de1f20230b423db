//! A request's sampling parameters, checked once at the door.

/// How to choose tokens. Made by [`SamplingParams::checked`], so every value is in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the `k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest tokens whose probabilities reach this (Holtzman et al. 2019, arXiv 1904.09751); 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest (arXiv 2407.01082); 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted for each time a token is in the output.
    pub frequency_penalty: f32,
    /// Subtracted when a token is in the output.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Samples depend on this, the step and the logits alone.
    pub seed: u64,
    /// Report this many log-probabilities, and that of the sampled token; 0 reports none and computes none.
    pub num_logprobs: usize,
}

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

impl Default for SamplingParams {
    /// Plain sampling from the model's distribution.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            num_logprobs: 0,
        }
    }
}

impl SamplingParams {
    /// The parameters themselves, if each is in its range; otherwise which is not.
    pub fn checked(self) -> Result<Self, SamplingParamsError> {
        let check = |field, value: f32, holds: bool, expected| {
            if value.is_finite() && holds {
                Ok(())
            } else {
                Err(SamplingParamsError {
                    field,
                    value: value.to_string(),
                    expected,
                })
            }
        };
        let penalty = -2.0..=2.0;
        check(
            "temperature",
            self.temperature,
            self.temperature >= 0.0,
            "a finite number of at least 0",
        )?;
        check(
            "top_p",
            self.top_p,
            self.top_p > 0.0 && self.top_p <= 1.0,
            "above 0 and at most 1",
        )?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "from 0 to 1")?;
        check(
            "repetition_penalty",
            self.repetition_penalty,
            self.repetition_penalty > 0.0,
            "a finite number above 0",
        )?;
        check(
            "frequency_penalty",
            self.frequency_penalty,
            penalty.contains(&self.frequency_penalty),
            "from -2 to 2",
        )?;
        check(
            "presence_penalty",
            self.presence_penalty,
            penalty.contains(&self.presence_penalty),
            "from -2 to 2",
        )?;
        for (_, bias) in &self.logit_bias {
            check("logit_bias", *bias, (-100.0..=100.0).contains(bias), "from -100 to 100")?;
        }
        Ok(self)
    }

    /// Whether seen tokens matter.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

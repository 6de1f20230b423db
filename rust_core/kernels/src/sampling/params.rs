//! A request's sampling parameters, checked once at the door.

/// How to choose tokens. Made by [`SamplingParams::checked`], so every value is in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token, whatever the filters.
    pub temperature: f32,
    /// The temperature of output token `temperature_tokens` and of all after it.
    pub temperature_end: f32,
    /// Output tokens over which the temperature goes from `temperature` to `temperature_end`; 0 leaves it.
    pub temperature_tokens: u64,
    /// The temperature goes along half a cosine, and not along a line.
    pub temperature_cosine: bool,
    /// The temperature follows the entropy between `temperature` less and more this, as llama.cpp has it; 0 is off.
    pub dynatemp_range: f32,
    /// Power of the relative entropy by which the dynamic temperature rises.
    pub dynatemp_exponent: f32,
    /// Keep logits at most so many standard deviations below the greatest (arXiv 2411.07641); 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep probabilities of at least this (arXiv 2210.15191); 0 keeps all.
    pub epsilon_cutoff: f32,
    /// Keep probabilities of at least `min(eta, sqrt(eta) * e^-entropy)` (arXiv 2210.15191); 0 keeps all.
    pub eta_cutoff: f32,
    /// Keep the `k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep this times `e^entropy` of the most likely tokens, rounded, at least one (ours); 0 keeps all.
    pub top_k_entropy: f32,
    /// Keep the most likely tokens whose own entropy is at most this part of the whole (arXiv 2509.02510); 1 keeps all.
    pub top_h: f32,
    /// Keep the tokens nearest to the expected surprise whose probabilities reach this (arXiv 2202.00666); 1 keeps all.
    pub typical_p: f32,
    /// Keep the fewest tokens whose probabilities reach this (Holtzman et al. 2019, arXiv 1904.09751); 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest (arXiv 2407.01082); 0 keeps all.
    pub min_p: f32,
    /// `min_p` is divided by `e^entropy` to this power (ours); 0 leaves it.
    pub min_p_entropy: f32,
    /// How often XTC excludes the top choices.
    pub xtc_probability: f32,
    /// Of the tokens at least this likely, XTC leaves the least likely one.
    pub xtc_threshold: f32,
    /// Replaces all filters by one that holds the surprise (arXiv 2007.14966): 1 or 2 is its algorithm, 0 is off.
    pub mirostat: u32,
    /// Mirostat's wanted mean surprise, in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted for each time a token is in the output.
    pub frequency_penalty: f32,
    /// Subtracted when a token is in the output.
    pub presence_penalty: f32,
    /// The penalties see so many of the last tokens; 0 is all.
    pub repeat_last_n: usize,
    /// What a token counts for in the penalties falls by this factor with each token after it; 1 does not.
    pub penalty_decay: f32,
    /// Output tokens over which the penalties grow from nothing to what they are.
    pub penalty_warmup: u64,
    /// Output tokens over which they then go to `penalty_end` of what they are; 0 leaves them.
    pub penalty_tokens: u64,
    /// See `penalty_tokens`.
    pub penalty_end: f32,
    /// The penalties grow and go along half a cosine, and not along a line.
    pub penalty_cosine: bool,
    /// No sequence of so many tokens comes twice; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// DRY subtracts this times `dry_base ^ (length - dry_allowed_length)` from what would go on with a repetition.
    pub dry_multiplier: f32,
    /// See `dry_multiplier`.
    pub dry_base: f32,
    /// Repetitions shorter than this are free.
    pub dry_allowed_length: usize,
    /// DRY looks at so many of the last tokens; 0 is all.
    pub dry_penalty_last_n: usize,
    /// Tokens across which DRY sees no repetition, in ascending order.
    pub dry_breakers: Vec<u32>,
    /// Sequences of tokens that the output may not hold.
    pub bad_words: Vec<Vec<u32>>,
    /// Subtracted from a token that would complete a bad word; infinity excludes it.
    pub bad_words_penalty: f32,
    /// Output tokens over which `bad_words_penalty` falls to nothing; infinity holds until then. 0 leaves it.
    pub bad_words_tokens: u64,
    /// Only these tokens, in ascending order; none allows all.
    pub allowed_tokens: Option<Vec<u32>>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Samples depend on this, the step and the logits alone.
    pub seed: u64,
    /// Report this many log-probabilities, and that of the sampled token; 0 reports none and computes none.
    pub num_logprobs: usize,
    /// With log-probabilities, report the entropy of the distribution that they are of.
    pub has_entropy: bool,
}

impl Default for SamplingParams {
    /// Plain sampling from the model's distribution.
    fn default() -> Self {
        Self {
            temperature: 1.0,
            temperature_end: 1.0,
            temperature_tokens: 0,
            temperature_cosine: false,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_n_sigma: 0.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            top_k: 0,
            top_k_entropy: 0.0,
            top_h: 1.0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            min_p_entropy: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 0,
            penalty_decay: 1.0,
            penalty_warmup: 0,
            penalty_tokens: 0,
            penalty_end: 1.0,
            penalty_cosine: false,
            no_repeat_ngram_size: 0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 0,
            dry_breakers: Vec::new(),
            bad_words: Vec::new(),
            bad_words_penalty: f32::INFINITY,
            bad_words_tokens: 0,
            allowed_tokens: None,
            logit_bias: Vec::new(),
            seed: 0,
            num_logprobs: 0,
            has_entropy: false,
        }
    }
}

impl SamplingParams {
    /// Whether seen tokens have a penalty.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Whether the penalties of a token depend on where it was seen.
    pub(super) fn has_places(&self) -> bool {
        self.has_penalties() && (self.repeat_last_n > 0 || self.penalty_decay < 1.0)
    }

    /// Whether the order of the tokens before matters.
    pub(super) fn has_history(&self) -> bool {
        self.has_places() || self.no_repeat_ngram_size > 0 || self.dry_multiplier > 0.0 || !self.bad_words.is_empty()
    }

    /// Whether a filter follows the row's entropy.
    pub(super) fn follows_entropy(&self) -> bool {
        self.top_k_entropy > 0.0 || self.min_p_entropy > 0.0
    }

    /// Whether it is all said by temperature, top-k, top-p, min-p, biases, allowed tokens and penalties that see every
    /// token alike: what other samplers can do from a row of logits and the tokens seen.
    pub fn is_plain(&self) -> bool {
        let plain = Self {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            allowed_tokens: self.allowed_tokens.clone(),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            num_logprobs: self.num_logprobs,
            has_entropy: self.has_entropy,
            ..Self::default()
        };
        *self == plain
    }

    /// Whether the prompt's tokens matter.
    pub fn reads_prompt(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.has_places()
            || self.no_repeat_ngram_size > 0
            || self.dry_multiplier > 0.0
    }
}

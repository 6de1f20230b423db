//! Encoders: models that see a whole text, or a pair of them, at once, and give one vector for it or a number for each label.
//!
//! A batch is a run of tokens, text after text without padding; only attention knows where a text ends. A text's vector is
//! the same bit for bit alone and in any batch: every stage computes a token from its own row, or from its text's rows in
//! their order. Knows token ids, not text.

mod attention_pooling;
mod bert;
mod bert_config;
mod bert_files;
mod bert_gguf;
mod bert_names;
mod config;
mod decoder;
pub(crate) mod distances;
mod experts;
mod forward;
mod gguf;
mod head;
mod latents;
mod layer_names;
mod long;
mod own_words;
mod pooling;
mod prompts;
mod query_pooling;
mod steps;
mod tasks;
mod weights;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pyagent_kernels::isa::Isa;
use pyagent_kernels::thread_pool::{ThreadPool, ThreadPoolError};

pub use self::attention_pooling::PoolingAttention;
pub use self::bert_config::{BertConfig, Biases, EncoderActivation, EncoderArchitecture, Positions};
pub use self::config::{DecoderConfig, EncoderConfig, Layers, task_of};
pub use self::experts::EncoderExperts;
use self::forward::{Batch, Gives, Pass, Workspace};
pub use self::forward::{SECOND_TEXT, TASK_SHIFT, UNSEEN};
pub use self::head::{Head, HeadKind, InnerActivation, LabelActivation};
pub use self::latents::Latents;
pub use self::long::{LongText, long_text_bytes};
pub use self::pooling::late_score;
pub(crate) use self::prompts::{PromptEncoder, PromptPart, prompt_bytes};
pub use self::query_pooling::{NormPlace, QueryPooling};
pub use self::steps::{DensePlace, DenseStep, LabelWords, Pooling};
pub use self::tasks::{Task, Tasks};
use self::weights::EncoderWeights;
use crate::config::invalid;
use crate::weights::{LoadProgress, ModelFile, ModelFileError};

/// What can go wrong while loading or running an encoder.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// A text that cannot be computed; nothing was.
    #[error("text {text} of the batch: {reason}")]
    Text {
        /// Which text is at fault, from 0.
        text: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More tokens than there is room for; nothing was computed.
    #[error("the batch has {num_tokens} tokens; there is room for {most_tokens}")]
    TooLarge {
        /// Tokens of the batch.
        num_tokens: usize,
        /// Tokens that were reserved for.
        most_tokens: usize,
    },
    /// Numbers with an infinity or a NaN, or a vector without a direction: the weights are damaged.
    #[error("the model gives text {text} of the batch no finite numbers; its weights are damaged")]
    NotFinite {
        /// The first such text, from 0.
        text: usize,
    },
    /// A thread of the pool panicked: a bug in a kernel.
    #[error(transparent)]
    Kernel(#[from] ThreadPoolError),
}

/// Opens an encoder's files and checks what they say: its configuration, and that each tensor is there in its shape.
pub fn open(path: &Path) -> Result<(ModelFile, EncoderConfig), ModelFileError> {
    let file = ModelFile::open(path)?;
    let checked = EncoderConfig::of(&file).and_then(|config| {
        weights::check(&file, &config)?;
        Ok(config)
    });
    let config = checked.map_err(|error| error.in_file(path))?;
    Ok((file, config))
}

/// Bytes that an encoder's weights take in memory, from its header.
pub fn weight_bytes(file: &ModelFile, config: &EncoderConfig) -> Result<usize, ModelFileError> {
    weights::bytes(file, config)
}

/// Bytes that a batch of so many tokens is computed in.
pub fn workspace_bytes(config: &EncoderConfig, num_threads: usize, most_tokens: usize) -> usize {
    Workspace::bytes_of(config, num_threads, most_tokens)
}

/// A loaded encoder.
pub struct Encoder {
    config: EncoderConfig,
    weights: EncoderWeights,
    space: Workspace,
    pool: Arc<ThreadPool>,
    isa: Isa,
    most_tokens: usize,
    load_seconds: f64,
    /// What its long texts have too.
    identity: Arc<()>,
}

impl Encoder {
    /// Loads a folder of safetensors, or a GGUF file, for batches of at most so many tokens.
    pub fn load(
        path: &Path,
        threads: usize,
        isa: Option<Isa>,
        most_tokens: usize,
        progress: Option<&Arc<LoadProgress>>,
    ) -> Result<Self, EncoderError> {
        let start = Instant::now();
        let (file, config) = open(path)?;
        if let Some(progress) = progress {
            file.count_to(progress);
        }
        let pool = ThreadPool::shared(threads);
        let weights = weights::load(&file, &config, &pool).map_err(|error| error.in_file(path))?;
        let space = Workspace::new(&config, &weights, pool.num_threads(), most_tokens, most_tokens);
        Ok(Self {
            config,
            weights,
            space,
            pool,
            isa: isa.unwrap_or_else(Isa::detect),
            most_tokens,
            load_seconds: start.elapsed().as_secs_f64(),
            identity: Arc::default(),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Bytes held by weights.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// What loading took.
    pub fn load_seconds(&self) -> f64 {
        self.load_seconds
    }

    /// Tokens of a batch at most.
    pub fn most_tokens(&self) -> usize {
        self.most_tokens
    }

    /// Threads that compute.
    pub fn num_threads(&self) -> usize {
        self.pool.num_threads()
    }

    /// Returns what the texts give, one after another: vectors of length 1, or a number for each label. A text is its
    /// tokens, special ones included; those of a pair's second text have [`SECOND_TEXT`] set, those at its end that no
    /// token sees [`UNSEEN`]. In its first token a text of a task has the task's number from 1 on, at [`TASK_SHIFT`].
    pub fn compute(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>, EncoderError> {
        let gives = self.checked(Gives::Texts)?;
        self.run(texts, gives)
    }

    /// Returns the vectors of the texts' tokens, each of length 1, one after another, after the model's dense steps; of a
    /// model that labels tokens a number for each label.
    ///
    /// A model that labels texts has none: `EncoderError::File`.
    pub fn compute_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<f32>, EncoderError> {
        let gives = self.checked(Gives::Tokens)?;
        self.run(texts, gives)
    }

    /// Whether the model gives that.
    fn checked(&self, gives: Gives) -> Result<Gives, EncoderError> {
        let text = match (&self.config.head, gives) {
            (Some(head), Gives::Tokens) if head.kind == HeadKind::Texts => {
                "the model has labels; its tokens have no vectors of their own"
            }
            (Some(head), Gives::Texts) if head.kind != HeadKind::Texts => {
                "the model labels tokens; a text has no numbers of its own"
            }
            _ => return Ok(gives),
        };
        Err(invalid(text.to_owned()).into())
    }

    fn run(&mut self, texts: &[Vec<u32>], gives: Gives) -> Result<Vec<f32>, EncoderError> {
        let batch = Batch::of(texts, &self.config)?;
        if batch.num_tokens() > self.most_tokens {
            let (num_tokens, most_tokens) = (batch.num_tokens(), self.most_tokens);
            return Err(EncoderError::TooLarge {
                num_tokens,
                most_tokens,
            });
        }
        let reached = self.weights.reach(batch.longest());
        reached.expect("texts are no longer than the model takes");
        let pass = Pass {
            config: &self.config,
            weights: &self.weights,
            isa: self.isa,
            batch: &batch,
            gives,
        };
        let mut vectors = vec![0.0; pass.num_given() * self.config.num_outputs()];
        pass.run(&self.pool, &mut self.space, &mut vectors)?;
        self.finite(vectors, &batch, gives)
    }

    /// Returns what a batch gave, if it is finite.
    fn finite(&self, vectors: Vec<f32>, batch: &Batch, gives: Gives) -> Result<Vec<f32>, EncoderError> {
        let width = self.config.num_outputs();
        let embeds = self.config.head.is_none();
        let faulty =
            |vector: &[f32]| vector.iter().any(|x| !x.is_finite()) || (embeds && vector.iter().all(|x| *x == 0.0));
        let Some(row) = vectors.chunks_exact(width).position(faulty) else {
            return Ok(vectors);
        };
        let text = match gives {
            Gives::Texts => row,
            Gives::Tokens | Gives::Stream => batch.text_of(row),
        };
        Err(EncoderError::NotFinite { text })
    }
}

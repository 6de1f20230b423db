//! The CPU model runner: a model, its KV memory and its threads; computes batches and samples tokens.

mod accepted;
mod assistant;
mod eagle;
mod last_outputs;
mod medusa;
mod mtp;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyagent_kernels::attention::{BLOCK_TOKENS, KvType};
use pyagent_kernels::elementwise::{RopeError, RopeTable};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::sampling::{SampleError, Sampled, SamplerState, Scorer, TokenScore};
use pyagent_kernels::thread_pool::{ThreadPool, ThreadPoolError};

use crate::adapters::{Adapter, AdapterLoader};
use crate::config::ModelConfig;
use crate::encoder::{EncoderError, PromptEncoder, PromptPart};
use crate::family::FamilyDescription;
use crate::forward::{ExpertLoads, Pass, Plan, Probed, Segment, Target, write_norms};
use crate::kv::{CheckedTables, KvMemory, KvPages, NO_PAGE};
use crate::logit_lens;
use crate::model::{self, Weights};
use crate::weights::{LoadProgress, ModelFileError};
use crate::workspace::{LargestStep, SCORED_ROWS, Workspace, num_rope_tables};

pub use eagle::head_shape;
use last_outputs::LastOutputs;
pub use mtp::DraftedRow;

/// What can go wrong while loading or running a model.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// KV memory cannot be had.
    #[error("cannot reserve {bytes} bytes of KV memory: {reason}")]
    KvMemory {
        /// Bytes asked for.
        bytes: usize,
        /// The operating system's reason.
        reason: String,
    },
    /// Rotary tables cannot be made.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// A batch that cannot be computed; nothing was.
    #[error("segment {segment} of the batch: {reason}")]
    Batch {
        /// Which segment is at fault.
        segment: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Pages that cannot be what is asked of them; nothing was done.
    #[error("{0}")]
    Pages(String),
    /// Pages could not be swapped.
    #[error("KV pages cannot be {action} a file in {}: {reason}", folder.display())]
    Swap {
        /// What was being done.
        action: &'static str,
        /// The folder of the file.
        folder: PathBuf,
        /// The operating system's reason.
        reason: std::io::Error,
    },
    /// A thread of the pool panicked: a bug in a kernel.
    #[error(transparent)]
    Kernel(#[from] ThreadPoolError),
}

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Threads that compute, the caller's included.
    pub threads: usize,
    /// The instruction set; `None` is the best this CPU has.
    pub isa: Option<Isa>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Bytes of KV memory: as many pages as fit, at least those of one block.
    pub kv_bytes: usize,
    /// The longest text that there will be; `None`: as long as the model's context.
    pub most_positions: Option<usize>,
    /// Whether a head that drafts further tokens is loaded, where the file has one.
    pub has_mtp: bool,
    /// The folder of a head that is to be attached: pages have room for what it keeps in them.
    pub head: Option<PathBuf>,
    /// What a plugin says of the folder.
    pub family: Option<Arc<FamilyDescription>>,
    /// What the bytes of the file that are loaded are counted to.
    pub progress: Option<Arc<LoadProgress>>,
}

/// A row of logits to sample from, and one after each token that is proposed to follow.
pub struct SamplingRow<'a> {
    /// Row of the last batch's logits: the first of `1 + drafts.len()`.
    pub row: usize,
    /// Proposed tokens: what is sampled from a row after the first counts while all before it were proposed right.
    pub drafts: &'a [u32],
    /// The request's parameters and counts.
    pub state: &'a mut SamplerState,
    /// One bit per token, set where allowed; those of one row after those of the other.
    pub mask: Option<&'a [u32]>,
    /// Tokens the request has sampled so far: with its seed, what the sample depends on.
    pub step: u64,
    /// Whether [`CpuModel::prepare`] comes before [`CpuModel::sample`], for processors between the two.
    pub is_prepared: bool,
}

impl SamplingRow<'_> {
    /// Samples from row after row, until what is sampled is not what was proposed. Each token is the one that a step of
    /// its own would sample, as it depends on the seed, its number and the logits alone.
    fn verify(&mut self, rows: &mut [f32], vocab: usize) -> Result<Vec<Sampled>, SampleError> {
        let mut masks = self
            .mask
            .map(|masks| masks.chunks_exact((masks.len() / (1 + self.drafts.len())).max(1)));
        let mut all = Vec::with_capacity(1 + self.drafts.len());
        for (place, row) in rows.chunks_exact_mut(vocab).enumerate() {
            let mask = masks.as_mut().and_then(Iterator::next);
            let sampled = match self.state.sample(row, mask, self.step + place as u64) {
                Ok(sampled) => sampled,
                Err(error) if place == 0 => return Err(error),
                Err(_) => break, // the step in which it comes first says so
            };
            self.state.observe(sampled.token);
            let is_right = self.drafts.get(place) == Some(&sampled.token);
            all.push(sampled);
            if !is_right {
                break;
            }
        }
        Ok(all)
    }
}

/// A loaded model.
pub struct CpuModel {
    config: Arc<ModelConfig>,
    weights: Arc<Weights>,
    adapters: HashMap<u64, Arc<Adapter>>,
    kv: KvMemory,
    space: Workspace,
    rope: [RopeTable; 2],
    pool: Arc<ThreadPool>,
    isa: Isa,
    num_outputs: usize,
    /// Rows of the last batch's drafts that states, or a head, did not go past.
    draft_rows: Vec<usize>,
    /// Rows of the last pass of a head, if no batch came after it.
    num_drafted: usize,
    /// The last batch's outputs, where what is attached drafts from these.
    last_outputs: Option<LastOutputs>,
    assistant: Option<Box<assistant::Assistant>>,
    medusa: Option<Box<medusa::Medusa>>,
    /// A head of a file of its own.
    head: Option<Box<eagle::Eagle>>,
    /// What reads an encoder-decoder's prompts.
    prompts: Option<Box<PromptEncoder>>,
    scores: Vec<Result<TokenScore, SampleError>>,
    /// Of each layer, how long each neuron's column of the down matrix is; found when it is first asked for.
    write_norms: Vec<Vec<f32>>,
    probed: Vec<Result<Probed, SampleError>>,
    load_seconds: f64,
    compute_seconds: f64,
    checked: CheckedTables,
}

impl CpuModel {
    /// Loads a GGUF file or a safetensors folder.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, EngineError> {
        let start = Instant::now();
        let (file, mut config) = model::open_for(path, options.most_positions, options.family.as_deref())?;
        if let Some(progress) = &options.progress {
            file.count_to(progress);
        }
        if !options.has_mtp {
            config = config.without_mtp();
        }
        let head = options
            .head
            .as_deref()
            .map(|path| head_shape(path, &config))
            .transpose()?;
        if head.is_some() {
            config = config.without_mtp();
        }
        let pool = ThreadPool::shared(options.threads);
        let (weights, prompts) = match &config.encoder_decoder {
            None => (model::load(&file, &config, &pool)?, None),
            Some(own) => {
                let (weights, prompts) = model::load_encoder_decoder(&file, &config, own, &pool)?;
                let prompts = PromptEncoder::new(&config, own, prompts, pool.num_threads())?;
                (weights, Some(Box::new(prompts)))
            }
        };
        let pages = KvPages::with_head(&config, head.as_ref(), options.kv_type);
        let least = pages.least_pages();
        let num_pages = (options.kv_bytes / pages.page_bytes()).clamp(least, NO_PAGE as usize);
        let kv = KvMemory::new(pages, num_pages)?;
        let rope = config.rope_tables()?;
        let space = Workspace::new(&config, &weights, pool.num_threads());
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let load_seconds = start.elapsed().as_secs_f64();
        Ok(Self {
            config: Arc::new(config),
            weights: Arc::new(weights),
            adapters: HashMap::new(),
            kv,
            space,
            rope,
            pool,
            isa,
            num_outputs: 0,
            draft_rows: Vec::new(),
            num_drafted: 0,
            last_outputs: None,
            assistant: None,
            medusa: None,
            head: None,
            prompts,
            scores: Vec::new(),
            write_norms: Vec::new(),
            probed: Vec::new(),
            load_seconds,
            compute_seconds: 0.0,
            checked: CheckedTables::default(),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes held by weights.
    pub fn weight_bytes(&self) -> usize {
        let of_prompts = self.prompts.as_ref().map_or(0, |prompts| prompts.weight_bytes());
        self.weights.bytes() + of_prompts
    }

    /// Seconds `load` took.
    pub fn load_seconds(&self) -> f64 {
        self.load_seconds
    }

    /// Seconds that the threads spent on the last batch and on sampling from it; the rest of a step is bookkeeping.
    pub fn compute_seconds(&self) -> f64 {
        self.compute_seconds
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What makes adapters for this model; to be asked without keeping the model from its steps.
    pub fn adapter_loader(&self) -> AdapterLoader {
        let (config, weights, pool) = (&self.config, &self.weights, &self.pool);
        AdapterLoader::new(Arc::clone(config), Arc::clone(weights), Arc::clone(pool))
    }

    /// Has segments that name `id` computed with an adapter, in place of one that was so called before.
    ///
    /// # Panics
    /// When the id is 0, the bare model's.
    pub fn add_adapter(&mut self, id: u64, adapter: Adapter) {
        assert_ne!(id, 0, "the id of the bare model");
        self.adapters.insert(id, Arc::new(adapter));
    }

    /// Forgets an adapter; whether there was one.
    pub fn remove_adapter(&mut self, id: u64) -> bool {
        self.adapters.remove(&id).is_some()
    }

    /// The KV memory.
    pub fn kv(&self) -> &KvMemory {
        &self.kv
    }

    /// The KV memory, to move pages in.
    pub fn kv_mut(&mut self) -> &mut KvMemory {
        &mut self.kv
    }

    /// Bytes of KV memory one token takes, over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.kv.pages.block_bytes() / BLOCK_TOKENS
    }

    /// Bytes that steps take at most, beside weights and KV memory; on this model's threads.
    pub fn largest_step_bytes(&self, step: LargestStep) -> usize {
        let threads = self.pool.num_threads();
        LargestStep { threads, ..step }.bytes(&self.config, &self.weights)
    }

    /// How many tokens its experts have had; goes on being counted.
    pub fn expert_loads(&self) -> Arc<ExpertLoads> {
        Arc::clone(&self.space.routing.loads)
    }

    /// Of these, what is held now, without what samplers hold.
    pub fn workspace_bytes(&mut self) -> usize {
        let outputs = self.last_outputs.as_mut().map_or(0, LastOutputs::bytes);
        let assistant = self.assistant.as_mut();
        let of_assistant = assistant.map_or(0, |assistant| assistant.workspace_bytes());
        let of_medusa = self.medusa.as_mut().map_or(0, |medusa| medusa.workspace_bytes());
        let of_head = self.head.as_mut().map_or(0, |head| head.workspace_bytes());
        let threads = self.pool.num_threads();
        let of_prompts = self
            .prompts
            .as_ref()
            .map_or(0, |prompts| prompts.workspace_bytes(threads));
        rope_bytes(&self.rope) + self.space.bytes() + outputs + of_assistant + of_medusa + of_head + of_prompts
    }

    /// Computes a batch; rows of logits follow the segments' order. On an error nothing was computed.
    pub fn execute(&mut self, segments: &[Segment<'_>]) -> Result<usize, EngineError> {
        (self.num_outputs, self.num_drafted) = (0, 0);
        self.draft_rows.clear();
        self.scores.clear();
        self.probed.clear();
        self.check_all(segments)?;
        let start = Instant::now();
        let of_answers;
        let mut segments = segments;
        if self.prompts.is_some() {
            of_answers = self.read_prompts(segments)?;
            segments = &of_answers;
            if segments.is_empty() {
                self.compute_seconds = start.elapsed().as_secs_f64();
                return Ok(0);
            }
        }
        let last = segments
            .iter()
            .map(|segment| segment.first_position + segment.tokens.len())
            .max()
            .unwrap_or(0);
        for table in &mut self.rope[..num_rope_tables(&self.config)] {
            table.grow_to(self.config.num_places(last))?;
        }
        let mut plan = Plan::new(
            segments,
            &self.config,
            &self.kv.pages,
            &self.adapters,
            self.pool.num_threads(),
        );
        let (targets, num_outputs) = (plan.targets(), plan.num_outputs());
        let num_read = if plan.has_lens() { SCORED_ROWS } else { targets.len() };
        let logit_rows = num_outputs + num_read.min(SCORED_ROWS);
        let wants_neurons = plan.wants_neurons();
        if wants_neurons {
            self.find_write_norms()?;
        }
        self.space.prepare_adapters(plan.adapted_size());
        self.space.prepare_drafts(&self.config, plan.num_drafts());
        self.space.prepare_ratings(plan.rating.num_ratings());
        self.space
            .prepare(&self.config, plan.num_rows(), logit_rows, plan.num_split_rows());
        if let Some(outputs) = &mut self.last_outputs {
            outputs.begin(num_outputs);
        }
        if let Some(assistant) = &mut self.assistant {
            assistant.begin();
        }
        if let Some(medusa) = &mut self.medusa {
            medusa.begin();
        }
        if let Some(head) = &mut self.head {
            head.begin(plan.num_rows());
        }
        let pass = Pass {
            config: &self.config,
            weights: &self.weights,
            kv: &self.kv,
            space: &self.space,
            rope: &self.rope,
            write_norms: if wants_neurons { &self.write_norms } else { &[] },
            role: mtp::role(self.last_outputs.as_ref(), self.head.as_deref()),
            isa: self.isa,
        };
        let (stages, num_pieces) = pass.stages(&plan);
        self.pool.run(&num_pieces, |piece| {
            // SAFETY: `check` saw that tokens, tables and positions are in range, `prepare` made room; that no page is
            // written by two segments is the block pool's invariant.
            unsafe { pass.compute(&plan, stages[piece.stage], piece) };
        })?;
        if !targets.is_empty() {
            self.scores = score(&self.pool, &pass, &mut plan, &targets)?;
        }
        if plan.has_lens() {
            // SAFETY: the pass is over, and `prepare` made room for these rows' logits.
            let read = unsafe { logit_lens::look(&self.pool, &pass, &mut plan, num_outputs)? };
            self.probed = plan.take_probed(read);
        }
        let draft_rows = plan.draft_rows();
        self.store_for_head(segments)?;
        self.compute_seconds = start.elapsed().as_secs_f64();
        (self.num_outputs, self.draft_rows) = (num_outputs, draft_rows);
        Ok(self.num_outputs)
    }

    /// Has the encoder read what segments have of prompts; returns what they have of answers.
    fn read_prompts<'a>(&mut self, segments: &[Segment<'a>]) -> Result<Vec<Segment<'a>>, EngineError> {
        let encoder = self.prompts.as_mut().expect("an encoder-decoder");
        let mut of_answers = Vec::with_capacity(segments.len());
        for (index, segment) in segments.iter().enumerate() {
            let (first, end) = (segment.first_position, segment.first_position + segment.tokens.len());
            let num_read = segment.prompt.len().min(end).saturating_sub(first);
            if num_read > 0 {
                let part = PromptPart {
                    prompt: segment.prompt,
                    positions: first..first + num_read,
                    tables: segment.tables,
                };
                // SAFETY: `check` saw that tables and tokens are in range; that no page is written by two sequences is the
                // block pool's invariant.
                let stored = unsafe { encoder.store(&part, &self.kv, &self.pool, self.isa) };
                stored.map_err(|error| match error {
                    EncoderError::Kernel(error) => EngineError::Kernel(error),
                    error => EngineError::Batch {
                        segment: index,
                        reason: error.to_string(),
                    },
                })?;
            }
            if num_read < segment.tokens.len() {
                of_answers.push(Segment {
                    first_position: first + num_read,
                    tokens: &segment.tokens[num_read..],
                    ..*segment
                });
            }
        }
        Ok(of_answers)
    }

    /// The scores that the last batch's segments asked for, in their order; one that cannot be given is its own fault.
    pub fn take_scores(&mut self) -> Vec<Result<TokenScore, SampleError>> {
        std::mem::take(&mut self.scores)
    }

    /// What is told of the rows that the last batch's segments had probed, in their order.
    pub fn take_probed(&mut self) -> Vec<Result<Probed, SampleError>> {
        std::mem::take(&mut self.probed)
    }

    /// Finds how long each neuron's column of the down matrix is, on all threads, unless that is known.
    fn find_write_norms(&mut self) -> Result<(), EngineError> {
        if !self.write_norms.is_empty() {
            return Ok(());
        }
        let layers: Vec<_> = (0..self.config.num_layers).map(|_| Mutex::default()).collect();
        self.pool.run(&[layers.len()], |piece| {
            let norms = write_norms(&self.weights, piece.index);
            *layers[piece.index].lock().unwrap_or_else(PoisonError::into_inner) = norms;
        })?;
        let layers = layers.into_iter();
        self.write_norms = layers
            .map(|layer| layer.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        Ok(())
    }

    /// A pass that tells no neurons.
    fn pass(&self) -> Pass<'_> {
        Pass {
            config: &self.config,
            weights: &self.weights,
            kv: &self.kv,
            space: &self.space,
            rope: &self.rope,
            write_norms: &[],
            role: mtp::role(self.last_outputs.as_ref(), self.head.as_deref()),
            isa: self.isa,
        }
    }

    /// The last batch's logits, [outputs, vocab]; or those of the drafts that were made after it.
    pub fn logits(&mut self) -> &mut [f32] {
        if let Some(logits) = self.assistant.as_mut().and_then(|assistant| assistant.logits()) {
            return logits;
        }
        if let Some(logits) = self.medusa.as_mut().and_then(|medusa| medusa.logits()) {
            return logits;
        }
        let (rows, num_drafted) = (self.num_outputs, self.num_drafted);
        if let Some(head) = self.head.as_mut().filter(|_| num_drafted > 0) {
            return head.space.logits.first(num_drafted);
        }
        self.space.logits.first(rows)
    }

    /// Biases, penalises and masks given rows of the last batch's logits, on all threads. A row's fault is its own.
    ///
    /// # Panics
    /// As [`Self::sample`].
    pub fn prepare<'a, 'b: 'a>(
        &mut self,
        rows: impl Iterator<Item = &'a mut SamplingRow<'b>>,
    ) -> Result<Vec<Result<(), SampleError>>, EngineError> {
        self.on_rows(rows, |sample, row| sample.state.prepare(row, sample.mask, sample.step))
    }

    /// Samples from each given row of the last batch's logits, on all threads: a token, and one more for each draft that
    /// was right. A row's fault is its own.
    ///
    /// # Panics
    /// When the rows do not rise, or one does not exist.
    pub fn sample<'a, 'b: 'a>(
        &mut self,
        rows: impl Iterator<Item = &'a mut SamplingRow<'b>>,
    ) -> Result<Vec<Result<Vec<Sampled>, SampleError>>, EngineError> {
        let vocab = self.config.vocab_size;
        self.on_rows(rows, |sample, rows| {
            if sample.is_prepared {
                let sampled = sample.state.sample_prepared(rows, sample.step)?;
                sample.state.observe(sampled.token);
                return Ok(vec![sampled]);
            }
            sample.verify(rows, vocab)
        })
    }

    /// Does something with rows of the last batch's logits, on all threads.
    fn on_rows<'a, 'b: 'a, T: Send>(
        &mut self,
        rows: impl Iterator<Item = &'a mut SamplingRow<'b>>,
        work: impl Fn(&mut SamplingRow<'b>, &mut [f32]) -> T + Sync,
    ) -> Result<Vec<T>, EngineError> {
        let vocab = self.config.vocab_size;
        let mut logits = self.space.logits.first(self.num_outputs);
        let mut next = 0;
        let tasks: Vec<_> = rows
            .map(|sample| {
                assert!(sample.row >= next, "rows to sample from must rise");
                let end = sample.row + 1 + sample.drafts.len();
                let (before, after) = std::mem::take(&mut logits).split_at_mut((end - next) * vocab);
                logits = after;
                let rows = &mut before[(sample.row - next) * vocab..];
                next = end;
                Mutex::new((sample, rows, None))
            })
            .collect();
        let work = |task: &Mutex<(&mut SamplingRow<'b>, &mut [f32], Option<T>)>| {
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            let (sample, row, result) = &mut *task;
            *result = Some(work(sample, row));
        };
        let start = Instant::now();
        if tasks.len() > 1 {
            self.pool.run(&[tasks.len()], |piece| work(&tasks[piece.index]))?;
        } else {
            tasks.iter().for_each(work);
        }
        self.compute_seconds += start.elapsed().as_secs_f64();
        let results = tasks
            .into_iter()
            .map(|task| task.into_inner().unwrap_or_else(PoisonError::into_inner).2);
        Ok(results.map(|result| result.expect("every task ran")).collect())
    }

    fn check_all(&mut self, segments: &[Segment<'_>]) -> Result<(), EngineError> {
        let mut checked = std::mem::take(&mut self.checked);
        checked.begin();
        let mut results = segments
            .iter()
            .map(|segment| self.check(segment, &mut checked))
            .enumerate();
        let wrong = results.find_map(|(segment, result)| result.err().map(|reason| (segment, reason)));
        self.checked = checked;
        wrong.map_or(Ok(()), |(segment, reason)| Err(EngineError::Batch { segment, reason }))
    }

    /// Whether a segment begins with a prompt, and asks nothing of it that an encoder does not give.
    fn check_prompt(&self, segment: &Segment<'_>) -> Result<(), String> {
        let num_prompt = segment.prompt.len();
        match (self.prompts.is_some(), num_prompt) {
            (false, 0) => return Ok(()),
            (true, 0) => return Err("an encoder-decoder's sequence has no prompt".to_owned()),
            (false, _) => return Err("only an encoder-decoder's sequence has a prompt of its own".to_owned()),
            _ => {}
        }
        let first_output = segment.first_position + segment.tokens.len() - segment.num_outputs;
        if segment.scoring.is_some() || (segment.num_outputs > 0 && first_output < num_prompt) {
            return Err("tokens that an encoder reads have no logits".to_owned());
        }
        if num_prompt >= self.config.context_length {
            return Err(format!(
                "a prompt of {num_prompt} tokens; there is room for {} with its answer",
                self.config.context_length
            ));
        }
        Ok(())
    }

    fn check(&self, segment: &Segment<'_>, checked: &mut CheckedTables) -> Result<(), String> {
        let end = segment.first_position + segment.tokens.len();
        if segment.tokens.is_empty() || segment.num_outputs > segment.tokens.len() {
            return Err(format!(
                "{} outputs of {} tokens",
                segment.num_outputs,
                segment.tokens.len()
            ));
        }
        if segment.adapter_id != 0 && !self.adapters.contains_key(&segment.adapter_id) {
            return Err("its adapter is not loaded any more".to_owned());
        }
        if end > self.config.context_length {
            return Err(format!(
                "position {} is past the context of {} tokens",
                end - 1,
                self.config.context_length
            ));
        }
        self.check_prompt(segment)?;
        self.kv.check(segment.tables, segment.first_position, end, checked)?;
        self.check_drafts(segment)?;
        if let Some(scoring) = segment.scoring
            && scoring.first + scoring.targets.len() > segment.tokens.len()
        {
            return Err(format!(
                "{} tokens to score after token {} of {}",
                scoring.targets.len(),
                scoring.first,
                segment.tokens.len()
            ));
        }
        match segment
            .tokens
            .iter()
            .chain(segment.prompt)
            .find(|&&token| token as usize >= self.config.vocab_size)
        {
            Some(token) => Err(format!(
                "token {token} is not in the vocabulary of {}",
                self.config.vocab_size
            )),
            None => Ok(()),
        }
    }
}

/// Bytes of rotary tables.
fn rope_bytes(tables: &[RopeTable]) -> usize {
    let numbers = tables.iter().map(|table| table.num_positions() * table.rotary_dims());
    numbers.sum::<usize>() * size_of::<f32>()
}

/// Scores tokens after a pass, on all threads: logits of a few rows at a time, behind those of the plan's outputs.
fn score(
    pool: &ThreadPool,
    pass: &Pass<'_>,
    plan: &mut Plan<'_>,
    targets: &[Target],
) -> Result<Vec<Result<TokenScore, SampleError>>, EngineError> {
    let first = plan.num_outputs();
    let scorers: Vec<Mutex<Scorer>> = (0..pool.num_threads()).map(|_| Mutex::default()).collect();
    let mut scores = Vec::with_capacity(targets.len());
    for targets in targets.chunks(SCORED_ROWS) {
        plan.set_outputs(targets.iter().map(|target| target.row), first);
        pass.space.rewind();
        let (stages, mut num_pieces) = pass.output_stages(plan);
        num_pieces.push(targets.len());
        let results: Vec<_> = targets.iter().map(|_| Mutex::new(None)).collect();
        let plan = &*plan;
        pool.run(&num_pieces, |piece| match stages.get(piece.stage) {
            // SAFETY: all stages of the plan were run, `check` saw that the rows are the plan's, and room was made for
            // the logits.
            Some(&stage) => unsafe { pass.compute(plan, stage, piece) },
            None => {
                let mut scorer = scorers[piece.thread].lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: the row's logits are computed, and this piece has them to itself.
                let logits = unsafe { pass.space.logits.row(first + piece.index) };
                let target = targets[piece.index];
                let score = scorer.score(logits, target.token, target.num_top);
                *results[piece.index].lock().unwrap_or_else(PoisonError::into_inner) = Some(score);
            }
        })?;
        let results = results.into_iter();
        let results = results.map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner));
        scores.extend(results.map(|result| result.expect("every row was scored")));
    }
    Ok(scores)
}

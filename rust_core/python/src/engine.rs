//! `CpuModel`: the CPU runner, one call a step.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyagent_engine::config::ModelConfig;
use pyagent_engine::forward::{ExpertLoads, Neuron, Probe, Probed};
use pyagent_engine::kv::{KvMemory, KvPages, SwappedPages};
use pyagent_engine::prompt_scores;
use pyagent_engine::runner::{self, EngineError, LoadOptions};
use pyagent_engine::workspace::LargestStep;
use pyagent_kernels::attention::KvType;
use pyagent_kernels::isa::Isa;
use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};

use crate::cache::BlockPool;
use crate::drafting;
use crate::family::FamilyDescription;
use crate::load_progress::LoadProgress;
use crate::sampler_state::SamplerState;
use crate::step::{self, Asked, Columns};

create_exception!(
    pyagent._rust,
    ModelFileError,
    PyException,
    "A model file that cannot be read or run; the text says what is wrong with it."
);

pub(crate) fn engine_error(error: &EngineError) -> PyErr {
    match error {
        EngineError::File(error) => ModelFileError::new_err(error.to_string()),
        EngineError::Batch { .. } | EngineError::Pages(_) => PyValueError::new_err(error.to_string()),
        EngineError::Swap { .. } => PyOSError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// A token's log probability, its rank, and the most likely tokens with their log probabilities.
type ScoreRow = (f32, u32, Vec<(u32, f32)>);

/// The log probabilities of a prompt's tokens, gathered by the steps that compute it.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct PromptScores {
    inner: Arc<Mutex<prompt_scores::PromptScores>>,
}

#[pymethods]
impl PromptScores {
    /// `num_top` of the most likely tokens are told beside each of the prompt's own.
    #[new]
    fn new(tokens: Vec<u32>, num_top: usize) -> Self {
        Self {
            inner: Arc::new(Mutex::new(prompt_scores::PromptScores::new(tokens, num_top))),
        }
    }

    /// Whether all tokens but the first have their score.
    #[getter]
    fn is_complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.is_complete())
    }

    /// Tokens scored so far; the first token of a prompt has no score.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.lock(py)?.scores().len())
    }

    /// Of tokens `start` to `stop` of those that have a score: log probability, rank (from 1), and the most likely
    /// tokens with their log probabilities, best first.
    fn read(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<Vec<ScoreRow>> {
        let scores = self.lock(py)?;
        let read = scores.scores().iter().take(stop).skip(start);
        Ok(read
            .map(|score| (score.logprob, score.rank, score.top.clone()))
            .collect())
    }
}

impl PromptScores {
    /// As [`SamplerState::lock`].
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, prompt_scores::PromptScores>> {
        self.inner
            .lock_py_attached(py)
            .map_err(|_| PyRuntimeError::new_err("scoring this prompt failed in another thread; ask again"))
    }
}

/// The content of KV pages in a file without a name, whose space is free again when this is dropped.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct SwapHandle {
    inner: SwappedPages,
}

#[pymethods]
impl SwapHandle {
    /// Bytes of the file.
    #[getter]
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    /// Pages in the file.
    #[getter]
    fn num_pages(&self) -> usize {
        self.inner.num_pages()
    }
}

/// A model loaded on the CPU.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct CpuModel {
    inner: Mutex<runner::CpuModel>,
    expert_loads: Arc<ExpertLoads>,
    swap_dir: Option<PathBuf>,
    /// Of an encoder-decoder's sequences, their prompts.
    prompts: Mutex<HashMap<u64, Arc<Vec<u32>>>>,
}

impl CpuModel {
    /// The prompts, which nobody holds for longer than it takes to look one up.
    fn prompts(&self) -> MutexGuard<'_, HashMap<u64, Arc<Vec<u32>>>> {
        self.prompts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, runner::CpuModel>> {
        self.inner
            .lock()
            .map_err(|_| PyRuntimeError::new_err("the model failed in another thread; load it again"))
    }

    /// As [`CpuModel::lock`], for callers that have the GIL: they are without it while they wait.
    pub(crate) fn lock_attached(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, runner::CpuModel>> {
        self.inner
            .lock_py_attached(py)
            .map_err(|_| PyRuntimeError::new_err("the model failed in another thread; load it again"))
    }

    /// Does something with the KV memory, without the GIL.
    fn with_kv<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&mut KvMemory) -> Result<T, EngineError> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.lock().map(|mut model| operation(model.kv_mut())))?
            .map_err(|error| engine_error(&error))
    }

    fn swap_dir(&self) -> PyResult<&Path> {
        let missing = || PyValueError::new_err("the model was loaded without swap_dir, so nothing can be swapped");
        self.swap_dir.as_deref().ok_or_else(missing)
    }
}

/// A sampled token's log-probability, the likeliest tokens with theirs, and the entropy where it was asked for.
pub(crate) type Likelihood = (f32, Vec<(u32, f32)>, Option<f32>);

/// What is sampled after a segment's first token: tokens, with their likelihoods where these were asked for.
type Further = HashMap<usize, Vec<(u32, Option<Likelihood>)>>;

/// A neuron's layer, place, activation, the length of what it wrote, and the tokens that this promotes.
type ProbedNeuron = (usize, usize, f32, f32, Vec<u32>);

/// What is told of how a token came about: neurons, and the likeliest tokens of each layer.
type ProbedRow = (Vec<ProbedNeuron>, Vec<Vec<(u32, f32)>>);

/// What a step gives: see `StepOutput`, what comes after drafts, and what was told of the tokens of probed segments.
type VerifiedOutput = (
    Vec<u32>,
    HashMap<usize, Likelihood>,
    HashMap<usize, String>,
    Further,
    HashMap<usize, Vec<ProbedRow>>,
);

/// The tokens sampled; for some segments their likelihoods, and for some what is wrong.
pub(crate) type StepOutput = (Vec<u32>, HashMap<usize, Likelihood>, HashMap<usize, String>);

#[pymethods]
impl CpuModel {
    /// Loads a GGUF file or a safetensors folder. KV pages are swapped to files in `swap_dir`. `kv_type` is f32, f16, bf16 or int8; `isa` one of `cpu_features()["isas"]`; texts have `most_positions`. Without `mtp`, a head that drafts further tokens is left alone; with the folder of a `head`, pages have room for that, and it is to be attached. A `family`, with its tables, says what a folder is. What is loaded is counted to `progress`.
    #[staticmethod]
    #[pyo3(signature = (path, *, threads, kv_bytes, kv_type = "bf16", isa = None, swap_dir = None, most_positions = None,
        mtp = true, head = None, family = None, progress = None))]
    #[expect(clippy::too_many_arguments, reason = "one keyword for each option")]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        threads: usize,
        kv_bytes: usize,
        kv_type: &str,
        isa: Option<&str>,
        swap_dir: Option<PathBuf>,
        most_positions: Option<usize>,
        mtp: bool,
        head: Option<PathBuf>,
        family: Option<Bound<'_, FamilyDescription>>,
        progress: Option<Bound<'_, LoadProgress>>,
    ) -> PyResult<Self> {
        let kv_type = parse_kv_type(kv_type)?;
        let isa = isa.map(parse_isa).transpose()?;
        let family = FamilyDescription::shared(family.as_ref());
        if family.as_ref().is_some_and(|family| family.lacks_tables()) {
            return Err(PyValueError::new_err(
                "a family without the tables of its layers cannot be loaded",
            ));
        }
        let options = LoadOptions {
            threads,
            isa,
            kv_type,
            kv_bytes,
            most_positions,
            has_mtp: mtp,
            head,
            family,
            progress: progress.map(|progress| progress.get().shared()),
        };
        let model = py
            .detach(|| runner::CpuModel::load(&path, &options))
            .map_err(|error| engine_error(&error))?;
        Ok(Self {
            expert_loads: model.expert_loads(),
            inner: Mutex::new(model),
            swap_dir,
            prompts: Mutex::default(),
        })
    }

    /// Computes one step and samples from its logits.
    ///
    /// A segment is the next `lengths[i]` of `tokens` for sequence `sequence_ids[i]` of `pool`, which learns that they are
    /// computed. The first `len(samplers)` segments sample the token after their last, with `samplers[i]`, as its
    /// `steps[i]`-th, from the tokens that `masks[i]` allows where there is one. `num_outputs` says how many of each segment's last tokens give
    /// logits, if not one of each that samples. The segments in `scores` are parts of prompts whose tokens are scored.
    ///
    /// The last `num_drafts[i]` tokens of a segment are proposals for what is sampled after those before them: each is
    /// sampled as in a step of its own, up to the first that was not proposed right, and `masks[i]` has the masks of all of
    /// them one after the other. The pool learns of the tokens that were right.
    ///
    /// A segment in `num_ahead` begins so many tokens after what the pool has of its sequence, which earlier steps computed
    /// in reserved room; the pool learns nothing of it.
    ///
    /// Before the segments in `processed` are sampled, `process` is called once with their `LogitsRows`; it returns what is
    /// wrong with some, by segment.
    ///
    /// `probes` says of some segments how many neurons and how many tokens of each layer are told of each of their tokens.
    ///
    /// Returns the tokens sampled, likelihoods by segment where they were asked for, by segment what was wrong with it (the
    /// others were computed all the same), by segment the tokens after its first, with theirs, and by segment what is told of its tokens. Raises `ValueError` when the columns do not fit; then nothing was.
    #[expect(clippy::too_many_arguments, reason = "a column for each thing that a segment has")]
    #[pyo3(signature = (pool, sequence_ids, lengths, tokens, samplers = Vec::new(), steps = Vec::new(),
        masks = HashMap::new(), *, num_outputs = None, scores = HashMap::new(), process = None,
        processed = HashSet::new(), num_drafts = HashMap::new(), probes = HashMap::new(),
        num_ahead = HashMap::new()))]
    fn execute(
        &self,
        py: Python<'_>,
        pool: &BlockPool,
        sequence_ids: Vec<u64>,
        lengths: Vec<usize>,
        tokens: Vec<u32>,
        samplers: Vec<Bound<'_, SamplerState>>,
        steps: Vec<u64>,
        masks: HashMap<usize, PyBackedBytes>,
        num_outputs: Option<Vec<usize>>,
        scores: HashMap<usize, Bound<'_, PromptScores>>,
        process: Option<Py<PyAny>>,
        processed: HashSet<usize>,
        num_drafts: HashMap<usize, usize>,
        probes: HashMap<usize, (usize, usize)>,
        num_ahead: HashMap<usize, usize>,
    ) -> PyResult<VerifiedOutput> {
        if samplers.len() != steps.len() {
            return Err(PyValueError::new_err("there is not one step for each sampler"));
        }
        let asked: Vec<Asked> = samplers
            .iter()
            .zip(steps)
            .enumerate()
            .map(|(segment, (sampler, step))| Asked {
                sampler: sampler.get().shared(),
                mask: masks.get(&segment).map(|mask| mask_words(mask)),
                step,
                num_drafts: num_drafts.get(&segment).copied().unwrap_or(0),
                is_processed: processed.contains(&segment),
            })
            .collect();
        let samples = |segment| asked.get(segment).map_or(0, |asked: &Asked| 1 + asked.num_drafts);
        let all = self.prompts();
        let prompts = sequence_ids
            .iter()
            .filter_map(|id| Some((*id, Arc::clone(all.get(id)?))))
            .collect();
        drop(all);
        let columns = Columns {
            prompts,
            num_outputs: num_outputs.unwrap_or_else(|| (0..sequence_ids.len()).map(samples).collect()),
            sequence_ids,
            lengths,
            tokens,
            num_ahead,
            scores: scores
                .iter()
                .map(|(segment, scores)| (*segment, Arc::clone(&scores.get().inner)))
                .collect(),
            probes: probes
                .into_iter()
                .map(|(segment, (num_neurons, num_tokens))| {
                    let probe = Probe {
                        num_neurons,
                        num_tokens,
                    };
                    (segment, probe)
                })
                .collect(),
        };
        let outcome = py.detach(|| step::run(&mut *self.lock()?, pool, columns, &asked, process.as_ref()))?;
        let probed = outcome.probed.into_iter();
        let probed = probed.map(|(segment, rows)| (segment, rows.into_iter().map(probed_row).collect()));
        Ok((
            outcome.tokens,
            outcome.likelihoods,
            outcome.errors,
            outcome.more,
            probed.collect(),
        ))
    }

    /// Notes the prompt with which an encoder-decoder's sequence begins, which the encoder reads; without one, forgets it.
    #[pyo3(signature = (sequence_id, prompt))]
    fn set_prompt(&self, sequence_id: u64, prompt: Option<Vec<u32>>) {
        let mut prompts = self.prompts();
        match prompt {
            Some(prompt) => prompts.insert(sequence_id, Arc::new(prompt)),
            None => prompts.remove(&sequence_id),
        };
    }

    /// Has a sequence begin with another's prompt.
    fn share_prompt(&self, parent: u64, child: u64) {
        let mut prompts = self.prompts();
        if let Some(prompt) = prompts.get(&parent).map(Arc::clone) {
            prompts.insert(child, prompt);
        }
    }

    /// Attaches the folder of an assistant, of heads of Medusa, or of a head that the model was loaded with room for, in the
    /// place of what was attached before, or frees it. Raises `ModelFileError` where it is damaged, or for another model.
    #[pyo3(signature = (path, progress = None))]
    fn attach_drafter(
        &self,
        py: Python<'_>,
        path: Option<PathBuf>,
        progress: Option<Bound<'_, LoadProgress>>,
    ) -> PyResult<()> {
        let progress = progress.map(|progress| progress.get().shared());
        let attach = |model: &mut runner::CpuModel| model.attach_drafter(path.as_deref(), progress.as_ref());
        py.detach(|| self.lock().map(|mut model| attach(&mut model)))?
            .map_err(|error| engine_error(&error))
    }

    /// Drafts a token after each of `tokens`, one for each of some sequences of `pool`, by the model's own head or
    /// what is attached to it.
    ///
    /// The token of `sequence_ids[i]` is `num_ahead[i]` behind those that the pool has of it, in reserved room. Where it is
    /// a draft itself, `before[i]` is the row of the last call that gave it; None says that the token before was computed
    /// by the last step that had the sequence.
    ///
    /// Returns of each the likeliest next token and its log-probability, and by row what was wrong with it. None stands for a
    /// row whose token before the last step did not compute, where what is attached goes on from that output; or for which
    /// there is no further head.
    fn draft(
        &self,
        py: Python<'_>,
        pool: &BlockPool,
        sequence_ids: Vec<u64>,
        tokens: Vec<u32>,
        num_ahead: Vec<usize>,
        before: Vec<Option<usize>>,
    ) -> PyResult<drafting::Drafted> {
        let counts = [tokens.len(), num_ahead.len(), before.len()];
        if counts.iter().any(|count| *count != sequence_ids.len()) {
            let text = format!("{} sequences, and columns of {counts:?}", sequence_ids.len());
            return Err(PyValueError::new_err(text));
        }
        let columns = drafting::Columns {
            sequence_ids,
            tokens,
            num_ahead,
            before,
        };
        py.detach(|| drafting::run(&mut *self.lock()?, pool, &columns))
    }

    /// The last step's logits as little-endian f32, [outputs, vocab]; for tests and tools.
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut model = self.lock_attached(py)?;
        let logits = model.logits();
        PyBytes::new_with(py, size_of_val(logits), |bytes| {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(logits) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        })
    }

    /// Copies the content of KV pages: (from, to), in this order.
    fn copy_pages(&self, py: Python<'_>, pairs: Vec<(u32, u32)>) -> PyResult<()> {
        self.with_kv(py, |kv| kv.copy(&pairs))
    }

    /// Writes the content of pages to a file. Raises `OSError` when it cannot be written.
    fn swap_out(&self, py: Python<'_>, pages: Vec<u32>) -> PyResult<SwapHandle> {
        let folder = self.swap_dir()?;
        let inner = self.with_kv(py, |kv| kv.swap_out(&pages, folder))?;
        Ok(SwapHandle { inner })
    }

    /// Reads what was swapped out into `pages`; those that are 0xFFFFFFFF are left out.
    fn swap_in(&self, py: Python<'_>, handle: &SwapHandle, pages: Vec<u32>) -> PyResult<()> {
        let folder = self.swap_dir()?;
        self.with_kv(py, |kv| kv.swap_in(&handle.inner, &pages, folder))
    }

    /// The bytes of layers `first_layer` up to `num_layers` more of pages, one page's after the other's.
    fn read_layers<'py>(
        &self,
        py: Python<'py>,
        pages: Vec<u32>,
        first_layer: usize,
        num_layers: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let model = self.lock_attached(py)?;
        let layers = first_layer..first_layer.saturating_add(num_layers);
        let num_bytes = model.kv().layers_bytes(pages.len(), &layers);
        if layers.end > model.kv().pages.layers_per_page {
            return Err(PyValueError::new_err(format!("a page has no layers {layers:?}")));
        }
        PyBytes::new_with(py, num_bytes, |bytes| {
            let read = model.kv().read_layers(&pages, &layers, bytes);
            read.map_err(|error| engine_error(&error))
        })
    }

    /// Puts what `read_layers` gave of as many pages into these. Raises `ValueError`, and changes nothing, where it does not fit.
    fn write_layers(
        &self,
        py: Python<'_>,
        pages: Vec<u32>,
        first_layer: usize,
        num_layers: usize,
        data: PyBuffer<u8>,
    ) -> PyResult<()> {
        if !data.is_c_contiguous() {
            return Err(PyValueError::new_err(
                "the bytes of layers do not stand one after the other",
            ));
        }
        let mut model = self.lock_attached(py)?;
        let layers = first_layer..first_layer.saturating_add(num_layers);
        let bytes = match data.len_bytes() {
            0 => &[], // it has no address
            // SAFETY: the buffer is contiguous, of bytes, and stays exported until `data` is dropped; the GIL is held, so
            // that no Python code writes to it meanwhile.
            num_bytes => unsafe { std::slice::from_raw_parts(data.buf_ptr().cast::<u8>(), num_bytes) },
        };
        let written = model.kv_mut().write_layers(&pages, &layers, bytes);
        written.map_err(|error| engine_error(&error))
    }

    /// Gives the memory of pages back to the system; they read as zeros until they are used again.
    fn give_back(&self, py: Python<'_>, pages: Vec<u32>) -> PyResult<()> {
        self.with_kv(py, |kv| kv.give_back(&pages))
    }

    /// Forgets an adapter; whether there was one. Sequences that still name it are not computed any more.
    fn remove_adapter(&self, py: Python<'_>, adapter_id: u64) -> PyResult<bool> {
        Ok(self.lock_attached(py)?.remove_adapter(adapter_id))
    }

    /// Of each layer, how many tokens each expert has had; no layers in a model without experts. Waits for no step.
    fn expert_loads(&self) -> Vec<Vec<u64>> {
        self.expert_loads.layers()
    }

    /// Seconds that the threads spent on the last step; the rest of its time is bookkeeping.
    fn compute_seconds(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.lock_attached(py)?.compute_seconds())
    }

    /// Bytes that steps of up to so many tokens and rows of logits take beside weights and KV memory, at positions below `num_positions`.
    fn step_bytes(
        &self,
        py: Python<'_>,
        num_tokens: usize,
        num_outputs: usize,
        num_positions: usize,
    ) -> PyResult<usize> {
        let model = self.lock_attached(py)?;
        Ok(model.largest_step_bytes(LargestStep {
            threads: 0,
            tokens: num_tokens,
            outputs: num_outputs,
            positions: num_positions,
        }))
    }

    /// What was loaded: architecture, sizes, memory, instruction set, seconds it took.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut model = self.lock_attached(py)?;
        let workspace_bytes = model.workspace_bytes();
        let config = model.config();
        let info = PyDict::new(py);
        info.set_item("architecture", config.architecture.name())?;
        info.set_item("vocab_size", config.vocab_size)?;
        info.set_item("context_length", config.context_length)?;
        info.set_item("num_layers", config.num_layers)?;
        info.set_item("has_mtp", config.has_mtp)?;
        let own = config.encoder_decoder.as_ref();
        info.set_item("decoder_start", own.and_then(|own| own.decoder_start))?;
        info.set_item("hidden_size", config.hidden_size)?;
        info.set_item("num_experts", config.experts.map_or(0, |experts| experts.num_experts))?;
        info.set_item("weight_bytes", model.weight_bytes())?;
        info.set_item("drafter_weight_bytes", model.drafter_weight_bytes())?;
        info.set_item("workspace_bytes", workspace_bytes)?;
        info.set_item("num_pages", model.kv().num_pages)?;
        info.set_item("page_bytes", model.kv().pages.page_bytes())?;
        info.set_item("kv_groups", kv_groups(&model.kv().pages))?;
        info.set_item("kv_bytes_per_token", model.kv_bytes_per_token())?;
        info.set_item("layers_per_page", model.kv().pages.layers_per_page)?;
        info.set_item("num_kv_heads", config.num_kv_heads)?;
        info.set_item("head_dim", config.head_dim)?;
        info.set_item("rope", rope(config))?;
        info.set_item("isa", model.isa().name())?;
        info.set_item("load_seconds", model.load_seconds())?;
        Ok(info)
    }
}

fn probed_row(row: Probed) -> ProbedRow {
    let told = |neuron: Neuron| {
        (
            neuron.layer,
            neuron.index,
            neuron.activation,
            neuron.write_norm,
            neuron.promotes,
        )
    };
    (row.neurons.into_iter().map(told).collect(), row.layers)
}

/// What positions do to keys, in words: two models whose words differ have different KV.
fn rope(config: &ModelConfig) -> String {
    let (style, base, scaling) = (config.rope_style, config.rope_base, &config.rope_scaling);
    let told = format!("{style:?}, base {base}, scaling {scaling:?}");
    match config.sliding_window {
        None => told,
        Some(_) => {
            let (base, scaling) = (config.local_rope_base, &config.local_rope_scaling);
            format!("{told}; windows: base {base}, scaling {scaling:?}")
        }
    }
}

/// The groups of layers as `BlockPool` takes them: kind, size in tokens, pages a block.
pub(crate) fn kv_groups(pages: &KvPages) -> Vec<(&'static str, usize, usize)> {
    let groups = pages.groups.iter().enumerate();
    groups
        .map(|(index, group)| match (group.state_every, group.window) {
            (Some(every), _) => ("state", every, group.pages_per_block),
            (None, None) if pages.record_group() == Some(index) => ("recorded", 0, group.pages_per_block),
            (None, None) => ("full", 0, group.pages_per_block),
            (None, Some(window)) => ("window", window, group.pages_per_block),
        })
        .collect()
}

/// The bits of a mask; a rest of less than four bytes is filled up with zeros.
pub(crate) fn mask_words(bytes: &[u8]) -> Vec<u32> {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&last);
    words.iter().chain(last).map(|word| u32::from_le_bytes(*word)).collect()
}

pub(crate) fn parse_kv_type(name: &str) -> PyResult<KvType> {
    let found = KvType::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        let names = KvType::ALL.map(KvType::name).join(", ");
        PyValueError::new_err(format!("kv_type must be one of {names}, got '{name}'"))
    })
}

pub(crate) fn parse_isa(name: &str) -> PyResult<Isa> {
    let available: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    Isa::from_name(name)
        .filter(|isa| Isa::available().contains(isa))
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "instruction set '{name}' is not one of {}",
                available.join(", ")
            ))
        })
}

/// What this CPU has: its features, the instruction sets the kernels can use, and the one they use.
#[pyfunction]
pub fn cpu_features(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let features = PyDict::new(py);
    features.set_item("features", pyagent_kernels::isa::features())?;
    features.set_item("isas", Isa::available().into_iter().map(Isa::name).collect::<Vec<_>>())?;
    features.set_item("isa", Isa::detect().name())?;
    Ok(features)
}

/// Cores this process may use: those of its affinity, and no more than its control group's quota of CPU time (whole
/// ones, at least one).
#[pyfunction]
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

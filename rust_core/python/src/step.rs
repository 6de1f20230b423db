//! One step of the CPU runner: columns of numbers in, sampled tokens out.
//!
//! Costs, besides the computing, are in proportion to the segments and their new tokens, not to the contexts: tables are
//! shared with the pool, not copied. The pool is locked before and after the computing, never during it, so that the
//! next step can be planned meanwhile. A segment that cannot be computed (its sequence ended, its pages are wrong) is
//! left out with the reason; the others are computed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use pyagent_engine::forward::{Probe, Probed, Segment};
use pyagent_engine::kv::KvGroup;
use pyagent_engine::prompt_scores::PromptScores;
use pyagent_engine::runner::{CpuModel, EngineError, SamplingRow};
use pyagent_kernels::attention::BLOCK_TOKENS;
use pyagent_kernels::sampling::{Sampled, SamplerState};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cache::BlockPool;
use crate::engine::{Likelihood, engine_error};
use crate::logits_rows::process_rows;

/// What a step computes: one segment for a sequence.
pub(crate) struct Columns {
    pub(crate) sequence_ids: Vec<u64>,
    pub(crate) lengths: Vec<usize>,
    pub(crate) tokens: Vec<u32>,
    /// Of some segments, how many tokens lie between what the pool has of the sequence and the segment's first: an
    /// earlier step computed them. The pool is not told of such a segment.
    pub(crate) num_ahead: HashMap<usize, usize>,
    /// Rows of logits of each segment.
    pub(crate) num_outputs: Vec<usize>,
    /// Of segments of prompts to score, by segment, where their scores go.
    pub(crate) scores: HashMap<usize, Arc<Mutex<PromptScores>>>,
    /// What is told of the rows of logits of some segments.
    pub(crate) probes: HashMap<usize, Probe>,
    /// Of an encoder-decoder's sequences, their prompts.
    pub(crate) prompts: HashMap<u64, Arc<Vec<u32>>>,
}

impl Columns {
    /// The prompt that a segment's sequence begins with, which an encoder reads.
    fn prompt(&self, segment: usize) -> &[u32] {
        let prompt = self.prompts.get(&self.sequence_ids[segment]);
        prompt.map_or(&[], |prompt| prompt)
    }
}

/// What the first segments sample: the token after their last, and one after each draft before it that is right.
pub(crate) struct Asked {
    pub(crate) sampler: Arc<Mutex<SamplerState>>,
    /// Of each row after the other.
    pub(crate) mask: Option<Vec<u32>>,
    pub(crate) step: u64,
    /// How many of the segment's last tokens are drafts.
    pub(crate) num_drafts: usize,
    /// Whether its logits are processed from outside before it is sampled.
    pub(crate) is_processed: bool,
}

/// What came out of a step: a token for each sample, and what there is to say about some segments: the tokens after it,
/// with their likelihoods where these were asked for.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<u32>,
    pub(crate) more: HashMap<usize, Vec<(u32, Option<Likelihood>)>>,
    pub(crate) likelihoods: HashMap<usize, Likelihood>,
    pub(crate) errors: HashMap<usize, String>,
    /// What was told of each token sampled of segments that are probed.
    pub(crate) probed: HashMap<usize, Vec<Probed>>,
}

/// Where a segment's tokens go.
struct Place {
    segment: usize,
    /// Range of the step's tokens.
    tokens: (usize, usize),
    first_position: usize,
    /// Positions of the prompt to score.
    scored: Range<usize>,
    adapter_id: u64,
}

impl Place {
    /// Whether the pages that were written are still the sequence's.
    fn is_written_in(&self, groups: &[KvGroup], was: &[Arc<Vec<u32>>], now: &[Arc<Vec<u32>>]) -> bool {
        let end = self.first_position + self.tokens.1 - self.tokens.0;
        let blocks = self.first_position / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
        groups.iter().zip(was.iter().zip(now)).all(|(group, (was, now))| {
            let written = blocks.start * group.pages_per_block..blocks.end * group.pages_per_block;
            Arc::ptr_eq(was, now) || was.get(written.clone()) == now.get(written)
        })
    }
}

/// A step that is being computed.
struct Step<'a> {
    pool: &'a BlockPool,
    columns: Columns,
    /// The segments that are computed, in order.
    places: Vec<Place>,
    /// Their tables, all groups of one after the other.
    tables: Vec<Arc<Vec<u32>>>,
    num_groups: usize,
    outcome: Outcome,
}

type Scores<'a> = HashMap<usize, MutexGuard<'a, PromptScores>>;

/// Computes a step and samples its tokens. A `ValueError` says what is wrong with the columns; then nothing was computed.
pub(crate) fn run(
    model: &mut CpuModel,
    pool: &BlockPool,
    columns: Columns,
    asked: &[Asked],
    process: Option<&Py<PyAny>>,
) -> PyResult<Outcome> {
    check(&columns, asked, model.config().vocab_size)?;
    let wanted = columns.scores.clone();
    let mut scores = lock_scores(&wanted)?;
    let mut samplers = Vec::with_capacity(asked.len());
    for sample in asked {
        let sampler = sample.sampler.try_lock();
        samplers.push(sampler.map_err(|_| PyValueError::new_err("a sampler is used twice in one step"))?);
    }
    let mut step = Step {
        pool,
        places: Vec::with_capacity(columns.lengths.len()),
        tables: Vec::with_capacity(columns.lengths.len() * model.kv().pages.groups.len()),
        num_groups: model.kv().pages.groups.len(),
        columns,
        outcome: Outcome::default(),
    };
    step.outcome.tokens.resize(asked.len(), 0);
    step.locate(&scores)?;
    step.compute(model, asked, &scores)?;
    let has_drafts = |segment: usize| asked.get(segment).is_some_and(|asked| asked.num_drafts > 0);
    let is_ahead: Vec<_> = (0..step.columns.lengths.len())
        .map(|segment| step.columns.num_ahead.contains_key(&segment))
        .collect();
    step.commit(model, |segment, length| {
        (!has_drafts(segment) && !is_ahead[segment]).then_some(length)
    })?;
    step.take_scores(model, &mut scores);
    step.take_probed(model);
    step.sample(model, asked, &mut samplers, process)?;
    step.outcome.cut_probed();
    step.note_outputs(model, asked);
    if asked.iter().any(|asked| asked.num_drafts > 0) {
        let num_right: Vec<_> = (0..asked.len())
            .map(|segment| step.outcome.more.get(&segment).map_or(0, Vec::len))
            .collect();
        step.accept(model, asked, &num_right)?;
        step.commit(model, |segment, length| {
            (has_drafts(segment) && !is_ahead[segment]).then(|| length - asked[segment].num_drafts + num_right[segment])
        })?;
    }
    Ok(step.outcome)
}

fn lock_scores(scores: &HashMap<usize, Arc<Mutex<PromptScores>>>) -> PyResult<Scores<'_>> {
    let twice = || PyValueError::new_err("the scores of a prompt are used twice in one step");
    let locked = scores
        .iter()
        .map(|(&segment, scores)| Ok((segment, scores.try_lock().map_err(|_| twice())?)));
    locked.collect()
}

/// Whether the columns fit each other.
fn check(columns: &Columns, asked: &[Asked], vocab_size: usize) -> PyResult<()> {
    let count = columns.sequence_ids.len();
    let num_tokens = columns
        .lengths
        .iter()
        .try_fold(0_usize, |sum, length| sum.checked_add(*length));
    if columns.lengths.len() != count || columns.num_outputs.len() != count || num_tokens != Some(columns.tokens.len())
    {
        let (lengths, outputs, tokens) = (columns.lengths.len(), columns.num_outputs.len(), columns.tokens.len());
        return Err(PyValueError::new_err(format!(
            "{count} sequences with {lengths} lengths, {outputs} counts of outputs and {tokens} tokens do not fit"
        )));
    }
    if asked.len() > count || columns.num_outputs[..asked.len()].contains(&0) {
        let samples = asked.len();
        return Err(PyValueError::new_err(format!(
            "{samples} samples from {count} segments, each of which must give logits"
        )));
    }
    let few = |(segment, sample): &(usize, &Asked)| {
        sample.num_drafts >= columns.num_outputs[*segment] || (sample.num_drafts > 0 && sample.is_processed)
    };
    if let Some((segment, sample)) = asked.iter().enumerate().find(few) {
        let drafts = sample.num_drafts;
        return Err(PyValueError::new_err(format!(
            "segment {segment} has {drafts} drafts, which need a row of logits each and no processors"
        )));
    }
    let rows = |sample: &Asked| 1 + sample.num_drafts;
    let mut masks = asked
        .iter()
        .filter_map(|sample| Some((sample.mask.as_ref()?, rows(sample))));
    if let Some((mask, rows)) = masks.find(|(mask, rows)| mask.len() % rows != 0 || mask.len() / rows * 32 < vocab_size)
    {
        let bits = mask.len() * 32 / rows;
        return Err(PyValueError::new_err(format!(
            "a mask of {bits} bits for {vocab_size} tokens"
        )));
    }
    let mut sorted = columns.sequence_ids.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(PyValueError::new_err(format!(
            "sequence {} is twice in one step",
            pair[0]
        ))),
        None => Ok(()),
    }
}

impl Outcome {
    /// Leaves what was told of drafts that were not right out.
    fn cut_probed(&mut self) {
        for (segment, rows) in &mut self.probed {
            rows.truncate(1 + self.more.get(segment).map_or(0, Vec::len));
        }
    }

    /// Takes what a segment sampled.
    fn take(&mut self, segment: usize, sampled: Result<Vec<Sampled>, String>) {
        let mut sampled = match sampled {
            Ok(sampled) => sampled.into_iter().map(with_likelihood),
            Err(reason) => return drop(self.errors.insert(segment, reason)),
        };
        let Some((token, likelihood)) = sampled.next() else {
            return;
        };
        self.tokens[segment] = token;
        if let Some(likelihood) = likelihood {
            self.likelihoods.insert(segment, likelihood);
        }
        if sampled.len() > 0 {
            self.more.insert(segment, sampled.collect());
        }
    }

    /// Has rows of logits processed from outside, and leaves out those for which that failed.
    fn process(
        &mut self,
        model: &mut CpuModel,
        samples: &mut Vec<(usize, SamplingRow<'_>)>,
        process: &Py<PyAny>,
    ) -> PyResult<()> {
        let prepared = samples.iter().filter(|(_, row)| row.is_prepared);
        let places: Vec<_> = prepared.map(|(segment, row)| (*segment, row.row)).collect();
        let rows = samples.iter_mut().map(|(_, row)| row).filter(|row| row.is_prepared);
        let results = model.prepare(rows).map_err(|error| engine_error(&error))?;
        let failed = places.iter().zip(results);
        let failed = failed.filter_map(|((segment, _), result)| Some((*segment, result.err()?.to_string())));
        self.errors.extend(failed);
        let vocab = model.config().vocab_size;
        let mut logits = model.logits().chunks_exact_mut(vocab).enumerate();
        let errors = &self.errors;
        let shown = places.into_iter().filter(|(segment, _)| !errors.contains_key(segment));
        let rows = shown.filter_map(|(segment, wanted)| {
            let found = logits.find(|(row, _)| *row == wanted)?;
            Some((segment, found.1))
        });
        let faults = process_rows(process, rows)?;
        self.errors.extend(faults);
        samples.retain(|(segment, _)| !self.errors.contains_key(segment));
        Ok(())
    }
}

fn with_likelihood(sampled: Sampled) -> (u32, Option<Likelihood>) {
    let Sampled {
        token,
        logprob,
        top_logprobs,
        entropy,
    } = sampled;
    (token, logprob.map(|logprob| (logprob, top_logprobs, entropy)))
}

impl Step<'_> {
    /// Finds each segment's tables and position.
    fn locate(&mut self, scores: &Scores<'_>) -> PyResult<()> {
        let pool = self.pool.lock()?;
        if pool.block_tokens() != BLOCK_TOKENS {
            let got = pool.block_tokens();
            return Err(PyValueError::new_err(format!(
                "the model's KV blocks hold {BLOCK_TOKENS} tokens, the pool's {got}"
            )));
        }
        let mut end = 0;
        for (segment, &sequence) in self.columns.sequence_ids.iter().enumerate() {
            let tokens = (end, end + self.columns.lengths[segment]);
            end = tokens.1;
            match pool
                .tables(sequence)
                .and_then(|tables| Ok((tables, pool.num_tokens(sequence)?, pool.adapter_id(sequence)?)))
            {
                Ok((tables, num_tokens, adapter_id)) if tables.len() == self.num_groups => {
                    let num_ahead = self.columns.num_ahead.get(&segment).copied().unwrap_or(0);
                    let first_position = num_tokens.saturating_add(num_ahead).min(u32::MAX as usize);
                    let computed = &self.columns.tokens[tokens.0..tokens.1];
                    let scored = scores
                        .get(&segment)
                        .map(|scores| scores.wanted(first_position, computed));
                    match scored.unwrap_or(Ok(0..0)) {
                        Ok(scored) => {
                            self.tables.extend_from_slice(tables);
                            self.places.push(Place {
                                segment,
                                tokens,
                                first_position,
                                scored,
                                adapter_id,
                            });
                        }
                        Err(reason) => {
                            self.outcome.errors.insert(segment, reason);
                        }
                    }
                }
                Ok((tables, ..)) => {
                    let (got, expected) = (tables.len(), self.num_groups);
                    let text = format!("the pool has {got} groups of layers, the model {expected}");
                    return Err(PyValueError::new_err(text));
                }
                Err(error) => {
                    self.outcome.errors.insert(segment, error.to_string());
                }
            }
        }
        Ok(())
    }

    /// Runs the model, without the segments that it refuses.
    fn compute(&mut self, model: &mut CpuModel, asked: &[Asked], scores: &Scores<'_>) -> PyResult<()> {
        loop {
            let places = self.places.iter().zip(self.tables.chunks_exact(self.num_groups));
            let segments: Vec<Segment<'_>> = places
                .map(|(place, tables)| Segment {
                    tables,
                    first_position: place.first_position,
                    tokens: &self.columns.tokens[place.tokens.0..place.tokens.1],
                    num_outputs: self.columns.num_outputs[place.segment],
                    scoring: scores
                        .get(&place.segment)
                        .and_then(|scores| scores.scoring(place.first_position, place.scored.clone())),
                    num_drafts: asked.get(place.segment).map_or(0, |asked| asked.num_drafts),
                    adapter_id: place.adapter_id,
                    probe: self.columns.probes.get(&place.segment).copied(),
                    prompt: self.columns.prompt(place.segment),
                })
                .collect();
            match model.execute(&segments) {
                Ok(_) => return Ok(()),
                Err(EngineError::Batch { segment, reason }) => self.leave_out(segment, reason),
                Err(error) => return Err(engine_error(&error)),
            }
        }
    }

    fn leave_out(&mut self, index: usize, reason: String) {
        let place = self.places.remove(index);
        self.tables
            .drain(index * self.num_groups..(index + 1) * self.num_groups);
        self.outcome.errors.insert(place.segment, reason);
    }

    /// Brings the states of recurrent layers past the drafts that were right, of which each segment has so many.
    fn accept(&mut self, model: &mut CpuModel, asked: &[Asked], num_right: &[usize]) -> PyResult<()> {
        let (mut segments, mut first_drafts, mut end) = (Vec::new(), Vec::new(), 0);
        for (place, tables) in self.places.iter().zip(self.tables.chunks_exact(self.num_groups)) {
            let Some(asked) = asked.get(place.segment) else {
                continue;
            };
            let (first, num_right) = (end, num_right[place.segment]);
            end += asked.num_drafts;
            if num_right == 0 {
                continue;
            }
            let start = place.tokens.1 - asked.num_drafts;
            first_drafts.push(first);
            segments.push(Segment {
                tables,
                first_position: place.first_position + start - place.tokens.0,
                tokens: &self.columns.tokens[start..start + num_right],
                num_outputs: 0,
                scoring: None,
                num_drafts: 0,
                adapter_id: place.adapter_id,
                probe: None,
                prompt: &[],
            });
        }
        model
            .accept(&segments, &first_drafts)
            .map_err(|error| engine_error(&error))
    }

    /// Notes which rows have the outputs for the last known tokens, for what drafts from them.
    fn note_outputs(&self, model: &mut CpuModel, asked: &[Asked]) {
        let mut end = 0;
        for place in &self.places {
            end += self.columns.num_outputs[place.segment];
            let Some(asked) = asked.get(place.segment) else {
                continue;
            };
            let num_right = self.outcome.more.get(&place.segment).map_or(0, Vec::len);
            let num_wrong = asked.num_drafts - num_right.min(asked.num_drafts);
            let num_known = place.tokens.1 - place.tokens.0 - num_wrong;
            let sequence = self.columns.sequence_ids[place.segment];
            model.note_output(sequence, place.first_position + num_known - 1, end - 1 - num_wrong);
        }
    }

    /// Tells the pool what was computed, of the sequences that are still where they were: so many of a segment's tokens
    /// as `counted` says of it and its length.
    fn commit(&mut self, model: &CpuModel, counted: impl Fn(usize, usize) -> Option<usize>) -> PyResult<()> {
        let mut pool = self.pool.lock()?;
        let groups = &model.kv().pages.groups;
        for (place, tables) in self.places.iter().zip(self.tables.chunks_exact(self.num_groups)) {
            let Some(length) = counted(place.segment, place.tokens.1 - place.tokens.0) else {
                continue;
            };
            let sequence = self.columns.sequence_ids[place.segment];
            let is_there = pool
                .num_tokens(sequence)
                .is_ok_and(|count| count == place.first_position)
                && pool
                    .tables(sequence)
                    .is_ok_and(|now| place.is_written_in(groups, tables, now));
            let committed = if is_there {
                let tokens = &self.columns.tokens[place.tokens.0..][..length];
                pool.commit(sequence, tokens).map_err(|error| error.to_string())
            } else {
                // Released while it was computed, and perhaps begun again elsewhere.
                Err(format!("sequence {sequence} ended while it was computed"))
            };
            if let Err(reason) = committed {
                self.outcome.errors.insert(place.segment, reason);
            }
        }
        Ok(())
    }

    /// Hands the scores to the prompts they are of. One that cannot be given ends its sequence's part in the step.
    fn take_scores(&mut self, model: &mut CpuModel, scores: &mut Scores<'_>) {
        let mut given = model.take_scores().into_iter();
        for place in &self.places {
            let results: Result<Vec<_>, _> = given
                .by_ref()
                .take(place.scored.len())
                .collect::<Vec<_>>()
                .into_iter()
                .collect();
            match (results, scores.get_mut(&place.segment)) {
                (Ok(results), Some(scores)) => scores.extend(results),
                (Err(error), _) => {
                    self.outcome.errors.insert(place.segment, error.to_string());
                }
                (Ok(_), None) => {}
            }
        }
    }

    /// Takes what was told of probed rows. A fault ends its sequence's part in the step.
    fn take_probed(&mut self, model: &mut CpuModel) {
        let mut given = model.take_probed().into_iter();
        for place in &self.places {
            if !self.columns.probes.contains_key(&place.segment) {
                continue;
            }
            let rows = given.by_ref().take(self.columns.num_outputs[place.segment]);
            // All are taken, so that the next segment's are the next ones.
            let rows: Vec<_> = rows.collect();
            match rows.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(rows) => drop(self.outcome.probed.insert(place.segment, rows)),
                Err(error) => drop(self.outcome.errors.insert(place.segment, error.to_string())),
            }
        }
    }

    /// Samples from the last row of each of the first segments, and from those before it that follow drafts.
    fn sample(
        &mut self,
        model: &mut CpuModel,
        asked: &[Asked],
        samplers: &mut [MutexGuard<'_, SamplerState>],
        process: Option<&Py<PyAny>>,
    ) -> PyResult<()> {
        let mut samples: Vec<(usize, SamplingRow<'_>)> = Vec::with_capacity(asked.len());
        let mut samplers = samplers.iter_mut().enumerate();
        let mut end = 0;
        for place in &self.places {
            end += self.columns.num_outputs[place.segment];
            if place.segment >= asked.len() || self.outcome.errors.contains_key(&place.segment) {
                continue;
            }
            let Some((_, state)) = samplers.find(|(index, _)| *index == place.segment) else {
                continue;
            };
            let asked = &asked[place.segment];
            let row = SamplingRow {
                row: end - 1 - asked.num_drafts,
                drafts: &self.columns.tokens[place.tokens.1 - asked.num_drafts..place.tokens.1],
                state,
                mask: asked.mask.as_deref(),
                step: asked.step,
                is_prepared: asked.is_processed && process.is_some(),
            };
            samples.push((place.segment, row));
        }
        if let Some(process) = process {
            self.outcome.process(model, &mut samples, process)?;
        }
        let results = model.sample(samples.iter_mut().map(|(_, row)| row));
        let results = results.map_err(|error| engine_error(&error))?;
        let segments: Vec<_> = samples.iter().map(|(segment, _)| *segment).collect();
        drop(samples);
        for (segment, result) in segments.into_iter().zip(results) {
            self.outcome.take(segment, result.map_err(|error| error.to_string()));
        }
        Ok(())
    }
}

//! Drafting by a model's own head, or by what is attached to it from a file of its own, between two steps.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyagent_kernels::sampling::{SampleError, Scorer};
use pyagent_kernels::thread_pool::{Piece, ThreadPool};

use super::assistant::{self, Assistant};
use super::eagle::Eagle;
use super::medusa::Medusa;
use super::{CpuModel, EngineError, LastOutputs};
use crate::forward::{Pass, Plan, Role, Stage};
use crate::model;
use crate::weights::{LoadProgress, ModelFile};
use crate::workspace::{Rows, num_rope_tables};

/// A sequence's next token to draft after.
#[derive(Clone, Copy, Debug)]
pub struct DraftedRow<'a> {
    /// The caller's name for the sequence.
    pub sequence: u64,
    /// The sequence's pages, as of a [`Segment`], with room for the token where a head drafts.
    pub tables: &'a [Arc<Vec<u32>>],
    /// The token's position, above 0; where an assistant drafts, that of the last known token's next.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// If it is a draft itself, the row of the last call that gave it; otherwise the token before is the last that was
    /// computed.
    pub before: Option<usize>,
}

/// A token, and its natural log-probability.
pub type Likeliest = (u32, f32);

impl CpuModel {
    /// Attaches an assistant, or heads of a file of their own, in the place of what was attached before; or nothing. An error
    /// where it is for another model; what was there before stays then. What is loaded of it is counted to `progress`.
    pub fn attach_drafter(
        &mut self,
        path: Option<&Path>,
        progress: Option<&Arc<LoadProgress>>,
    ) -> Result<(), EngineError> {
        let count = |file: &ModelFile| progress.iter().for_each(|progress| file.count_to(progress));
        let (mut assistant, mut medusa, mut head) = (None, None, None);
        if let Some(path) = path {
            if let Some(opened) = model::open_eagle(path)? {
                count(&opened.0);
                head = Some(Eagle::load(opened, &self.config, &self.kv.pages, &self.pool)?);
            } else if let Some(opened) = model::open_medusa(path)? {
                count(&opened.0);
                medusa = Some(Medusa::load(opened, &self.config, &self.pool)?);
            } else {
                let opened = assistant::open(path)?;
                count(&opened.0);
                assistant = Some(Assistant::load(opened, &self.config, &self.pool)?);
            }
        }
        let reads_outputs = assistant.is_some() || medusa.is_some();
        self.last_outputs = reads_outputs.then(|| LastOutputs::new(self.config.hidden_size));
        (self.assistant, self.head) = (assistant.map(Box::new), head.map(Box::new));
        self.medusa = medusa.map(Box::new);
        (self.num_outputs, self.num_drafted) = (0, 0);
        self.draft_rows.clear();
        Ok(())
    }

    /// Bytes held by the weights of what is attached; 0 without.
    pub fn drafter_weight_bytes(&self) -> usize {
        let of_assistant = self.assistant.as_ref().map_or(0, |assistant| assistant.weight_bytes());
        let of_medusa = self.medusa.as_ref().map_or(0, |medusa| medusa.weight_bytes());
        of_assistant + of_medusa + self.head.as_ref().map_or(0, |head| head.weight_bytes())
    }

    /// The token that the head, or the assistant, finds likeliest after each row's, with its log-probability; none where what
    /// drafts from outputs does not know that for the token before. On an error nothing was computed.
    pub fn draft(
        &mut self,
        rows: &[DraftedRow<'_>],
    ) -> Result<Vec<Option<Result<Likeliest, SampleError>>>, EngineError> {
        for (segment, row) in rows.iter().enumerate() {
            let checked = self.check_row(row);
            checked.map_err(|reason| EngineError::Batch { segment, reason })?;
        }
        let start = Instant::now();
        let found = match self.last_outputs.take() {
            Some(outputs) => {
                let found = self.draft_from_outputs(&outputs, rows);
                self.last_outputs = Some(outputs);
                found
            }
            None => self
                .draft_by_head(rows)
                .map(|found| found.into_iter().map(Some).collect()),
        };
        self.compute_seconds = start.elapsed().as_secs_f64();
        found
    }

    fn draft_from_outputs(
        &mut self,
        outputs: &LastOutputs,
        rows: &[DraftedRow<'_>],
    ) -> Result<Vec<Option<Result<Likeliest, SampleError>>>, EngineError> {
        let (mut assistant, mut medusa) = (self.assistant.take(), self.medusa.take());
        let found = match (&mut assistant, &mut medusa) {
            (Some(assistant), _) => self.draft_by_assistant(assistant, outputs, rows),
            (None, Some(medusa)) => self.draft_by_medusa(medusa, outputs, rows),
            (None, None) => Ok(Vec::new()),
        };
        (self.assistant, self.medusa) = (assistant, medusa);
        found
    }

    fn draft_by_head(&mut self, rows: &[DraftedRow<'_>]) -> Result<Vec<Result<Likeliest, SampleError>>, EngineError> {
        (self.num_outputs, self.num_drafted) = (0, 0);
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        self.draft_rows.clear();
        let mut head = self.head.take();
        let drafted = self.pass_of_head(head.as_deref_mut(), rows);
        let is_own = head.is_none();
        self.head = head;
        let likeliest = drafted?;
        (self.num_outputs, self.num_drafted) = (if is_own { rows.len() } else { 0 }, rows.len());
        Ok(likeliest)
    }

    /// A pass of the model's own head, or of one of another file, which has its own configuration and buffers.
    fn pass_of_head(
        &mut self,
        mut head: Option<&mut Eagle>,
        rows: &[DraftedRow<'_>],
    ) -> Result<Vec<Result<Likeliest, SampleError>>, EngineError> {
        let last = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let (config, space, rope) = match &mut head {
            Some(head) => head.parts(),
            None => (&*self.config, &mut self.space, &mut self.rope),
        };
        for table in &mut rope[..num_rope_tables(config)] {
            table.grow_to(last)?;
        }
        let segments: Vec<_> = rows.iter().map(DraftedRow::segment).collect();
        let threads = self.pool.num_threads();
        let mut plan = Plan::new(&segments, config, &self.kv.pages, &self.adapters, threads);
        plan.draft(rows.iter().map(|row| row.before).collect());
        space.prepare_adapters((0, 0));
        space.prepare(config, rows.len(), rows.len(), plan.num_split_rows());
        space.mtp.reserve_drafts(config, rows.len());
        let Some(head) = head else {
            let pass = self.pass();
            return run_and_score(&self.pool, &pass, &plan, pass.drafting_stages(&plan));
        };
        let role = head.role(&self.weights);
        let pass = head.pass(&role, &self.kv, self.isa);
        let found = run_and_score(&self.pool, &pass, &plan, pass.drafting_stages(&plan))?;
        let told = |(place, logprob)| (head.token_at(place), logprob);
        Ok(found.into_iter().map(|likeliest| likeliest.map(told)).collect())
    }

    fn check_row(&mut self, row: &DraftedRow<'_>) -> Result<(), String> {
        let DraftedRow {
            tables,
            position,
            token,
            before,
            ..
        } = *row;
        if position == 0 || position >= self.config.context_length {
            let context = self.config.context_length;
            return Err(format!(
                "there is no draft after position {position} in a context of {context}"
            ));
        }
        if token as usize >= self.config.vocab_size {
            let vocab = self.config.vocab_size;
            return Err(format!("token {token} is not in the vocabulary of {vocab}"));
        }
        if self.drafts_from_outputs() {
            return self.check_assisted(row);
        }
        if !self.config.has_mtp && self.head.is_none() {
            return Err("the model has no head that drafts".to_owned());
        }
        let num_before = self.num_drafted;
        if let Some(before) = before.filter(|before| *before >= num_before) {
            return Err(format!("row {before} of {num_before} was not drafted"));
        }
        self.kv.check_drafted(tables, position, &mut self.checked)
    }
}

/// What steps have to do with what is attached.
pub(super) fn role<'a>(outputs: Option<&'a LastOutputs>, head: Option<&'a Eagle>) -> Role<'a> {
    match (outputs, head) {
        (Some(outputs), _) => outputs.role(),
        (None, Some(head)) => Role::Tapped(&head.taps),
        (None, None) => Role::None,
    }
}

/// Computes a pass whose rows all give logits, and finds the likeliest token of each.
pub(super) fn run_and_score(
    pool: &ThreadPool,
    pass: &Pass<'_>,
    plan: &Plan<'_>,
    (stages, num_pieces): (Vec<Stage>, Vec<usize>),
) -> Result<Vec<Result<Likeliest, SampleError>>, EngineError> {
    score_after(pool, num_pieces, (&pass.space.logits, 0..plan.num_rows()), |piece| {
        // SAFETY: `check_row` saw that tokens, tables and positions are in range, and that the rows gone on from were
        // computed; room was made. That no page is another sequence's is the block pool's invariant.
        unsafe { pass.compute(plan, stages[piece.stage], piece) };
    })
}

/// Computes stages of so many pieces, after which some rows of logits are there, and finds the likeliest token of each.
pub(super) fn score_after(
    pool: &ThreadPool,
    mut num_pieces: Vec<usize>,
    (logits, rows): (&Rows, Range<usize>),
    compute: impl Fn(Piece) + Sync,
) -> Result<Vec<Result<Likeliest, SampleError>>, EngineError> {
    let num_stages = num_pieces.len();
    num_pieces.push(rows.len());
    let scorers: Vec<Mutex<Scorer>> = (0..pool.num_threads()).map(|_| Mutex::default()).collect();
    let found: Vec<_> = rows.clone().map(|_| Mutex::new(None)).collect();
    pool.run(&num_pieces, |piece| {
        if piece.stage < num_stages {
            return compute(piece);
        }
        let mut scorer = scorers[piece.thread].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the row's logits are computed, and this piece has them to itself.
        let logits = unsafe { logits.row(rows.start + piece.index) };
        let score = scorer.score(logits, 0, 1).map(|score| score.top[0]);
        *found[piece.index].lock().unwrap_or_else(PoisonError::into_inner) = Some(score);
    })?;
    let found = found.into_iter();
    let found = found.map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok(found.map(|one| one.expect("every row was looked at")).collect())
}

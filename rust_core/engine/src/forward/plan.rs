//! A batch laid out in rows, for the stages of a forward pass.

use std::collections::HashMap;
use std::sync::Arc;

use super::adapters::AdapterPlan;
use super::attention::{self, AttentionPlan};
use super::drafts::DraftRows;
use super::experts::RoutingPlan;
use super::indexer::RatingPlan;
use super::mtp::Drafting;
use super::probe::{Probe, ProbedRow};
use crate::adapters::Adapter;
use crate::config::ModelConfig;
use crate::kv::{KvPages, StateRun};

/// Tokens of one sequence to compute, at consecutive positions.
pub struct Segment<'a> {
    /// The sequence's KV pages, a table for each group of layers, covering every position up to the last token's.
    /// Blocks that no token of the segment sees may be [`crate::kv::NO_PAGE`].
    pub tables: &'a [Arc<Vec<u32>>],
    /// Position of the first token.
    pub first_position: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// How many of the last tokens give logits.
    pub num_outputs: usize,
    /// Which log-probabilities of known tokens are wanted.
    pub scoring: Option<Scoring<'a>>,
    /// How many of the last tokens are drafts: the states of recurrent layers stay as they are before these.
    pub num_drafts: usize,
    /// The adapter that computes it; 0 is the bare model.
    pub adapter_id: u64,
    /// What is told of each of the tokens that give logits.
    pub probe: Option<Probe>,
    /// Of an encoder-decoder's sequence the prompt's tokens, with which it begins.
    pub prompt: &'a [u32],
}

/// Known tokens of a sequence whose log-probabilities are wanted, each given those before it.
#[derive(Clone, Copy, Debug)]
pub struct Scoring<'a> {
    /// The token of the segment that comes before the first of them.
    pub first: usize,
    /// The tokens: each follows one of the segment's, and the last may come after it.
    pub targets: &'a [u32],
    /// How many of the most likely tokens are told beside each.
    pub num_top: usize,
}

/// A token to score: the row that comes before it, its id, and how many of the most likely are told beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) row: usize,
    pub(crate) token: u32,
    pub(crate) num_top: usize,
}

/// A batch laid out in rows: which token is where.
pub struct Plan<'a> {
    pub(super) segments: &'a [Segment<'a>],
    /// Of each row: its token, segment and position.
    pub(super) rows: Vec<(u32, usize, usize)>,
    /// First row of each segment.
    pub(super) starts: Vec<usize>,
    /// Rows that give logits.
    pub(super) outputs: Vec<usize>,
    /// Where the first of them goes in the memory for logits.
    pub(super) first_output: usize,
    /// For layers with heads of each shape.
    pub(super) attention: Vec<AttentionPlan>,
    /// Of each segment, the runs of tokens between states that are kept; none where no layer has any.
    pub(super) runs: Vec<Vec<StateRun>>,
    /// Drafts, where some layer has states.
    pub(super) drafts: DraftRows,
    /// Which tokens attend to positions that are picked.
    pub(crate) rating: RatingPlan,
    pub(super) routing: RoutingPlan,
    pub(super) adapters: AdapterPlan,
    /// Rows that are probed, in order.
    pub(super) probes: Vec<ProbedRow>,
    /// What a pass of a head alone goes on from.
    pub(super) drafting: Option<Drafting>,
    pub(super) num_threads: usize,
}

impl<'a> Plan<'a> {
    /// Lays a batch out for so many threads; `adapters` are those that its segments name, and maybe others.
    pub fn new(
        segments: &'a [Segment<'a>],
        config: &ModelConfig,
        pages: &KvPages,
        adapters: &HashMap<u64, Arc<Adapter>>,
        num_threads: usize,
    ) -> Self {
        let mut plan = Self {
            segments,
            rows: Vec::new(),
            starts: Vec::new(),
            outputs: Vec::new(),
            first_output: 0,
            attention: attention::num_units(config)
                .map(|num_units| AttentionPlan::new(segments, num_units, config, num_threads))
                .collect(),
            runs: Vec::new(),
            drafts: DraftRows::default(),
            rating: RatingPlan::default(),
            routing: RoutingPlan::default(),
            adapters: AdapterPlan::default(),
            probes: Vec::new(),
            drafting: None,
            num_threads,
        };
        if let Some(states) = &pages.states {
            let runs = segments.iter().map(|segment| {
                let table = pages.state_table(segment.tables);
                let (first, count) = (segment.first_position, segment.tokens.len());
                states.runs_before_drafts(table, first, count, segment.num_drafts)
            });
            plan.runs = runs.collect();
        }
        if pages.states.is_some() || pages.record_group().is_some() {
            plan.drafts = DraftRows::verified(segments);
        }
        for (index, segment) in segments.iter().enumerate() {
            let start = plan.rows.len();
            let count = segment.tokens.len();
            plan.starts.push(start);
            plan.rows.extend(
                segment
                    .tokens
                    .iter()
                    .enumerate()
                    .map(|(t, &token)| (token, index, segment.first_position + t)),
            );
            let outputs = start + count - segment.num_outputs..start + count;
            if let Some(probe) = segment.probe {
                plan.probes
                    .extend(outputs.clone().map(|row| ProbedRow::new(row, probe)));
            }
            plan.outputs.extend(outputs);
        }
        plan.rating = RatingPlan::new(&plan.rows, config, num_threads);
        plan.routing = RoutingPlan::new(&plan, config);
        plan.adapters = AdapterPlan::new(&plan, adapters);
        plan
    }

    /// Tokens in the batch.
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Query tokens times chunks of their context, where these are computed apart.
    pub fn num_split_rows(&self) -> usize {
        self.attention[0].num_split_rows()
    }

    /// Rows that adapters compute, and the numbers of each that a stage hands to the next; (0, 0) without adapters.
    pub fn adapted_size(&self) -> (usize, usize) {
        self.adapters.size()
    }

    /// Rows of logits.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The tokens to score, in the order of the segments.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let scored = self.segments.iter().zip(&self.starts);
        let scored =
            scored.filter_map(|(segment, start)| segment.scoring.map(|scoring| (start + scoring.first, scoring)));
        let targets = scored.flat_map(|(first, scoring)| {
            (first..).zip(scoring.targets).map(move |(row, &token)| Target {
                row,
                token,
                num_top: scoring.num_top,
            })
        });
        targets.collect()
    }

    /// Has other rows give logits, which go behind the `first_output` first ones.
    pub(crate) fn set_outputs(&mut self, rows: impl Iterator<Item = usize>, first_output: usize) {
        self.outputs.clear();
        self.outputs.extend(rows);
        self.first_output = first_output;
    }
}

//! What can be told of how a token came about: the neurons that wrote most, and what each layer would have said.
//!
//! A neuron is a place inside a feed-forward block: its activation is what the gate lets through (TransformerLens'
//! `blocks.N.mlp.hook_post`), and it adds that times its column of the down matrix to the stream. How much it writes is
//! the length of what it adds, |activation| * ||column||, and what it promotes are the tokens that the model's last norm
//! and output matrix read from what it adds (Geva et al., arXiv 2203.14680). What a layer would say is the logit lens
//! (nostalgebraist 2020): the same norm and matrix, applied to the stream after it.
//!
//! Probing only reads: the numbers of a step are the same with it and without.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pyagent_kernels::sampling::{SampleError, Scorer};
use pyagent_kernels::thread_pool::Piece;

use super::{Part, Pass, Plan, Stage, is_few};
use crate::model::{FeedForward, Weights};
use crate::workspace::Patch;

/// What is told of each of a segment's rows that give logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Probe {
    /// How many neurons, of all layers together.
    pub num_neurons: usize,
    /// How many tokens each layer would have said.
    pub num_tokens: usize,
}

/// A neuron of a feed-forward block, for one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Neuron {
    /// Its layer.
    pub layer: usize,
    /// Its place in the layer's block.
    pub index: usize,
    /// Its activation, after the gate.
    pub activation: f32,
    /// The length of what it adds to the stream, before a norm that the family has after the block.
    pub write_norm: f32,
    /// The tokens that what it adds makes likelier than all others, the first one most.
    pub promotes: Vec<u32>,
}

impl Neuron {
    /// Whether it comes before another one: it writes more, or as much in an earlier place.
    fn is_before(&self, other: &Self) -> bool {
        let place = |neuron: &Self| (neuron.layer, neuron.index);
        self.write_norm > other.write_norm || (self.write_norm == other.write_norm && place(self) < place(other))
    }
}

/// Tokens with their log-probabilities, the likeliest first.
pub type TopTokens = Vec<(u32, f32)>;

/// What was read of a row, or why that cannot be.
pub(crate) type LensTokens = (LensRow, Result<TopTokens, SampleError>);

/// What is told of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probed {
    /// The neurons that wrote most, those first.
    pub neurons: Vec<Neuron>,
    /// Of each layer, what it would have said; none where that was not asked.
    pub layers: Vec<TopTokens>,
}

/// A row that is probed.
pub(super) struct ProbedRow {
    row: usize,
    probe: Probe,
    neurons: Mutex<Vec<Neuron>>,
    /// The row of the stream after each layer, one after the other.
    residuals: Mutex<Vec<f32>>,
}

impl ProbedRow {
    pub(super) fn new(row: usize, probe: Probe) -> Self {
        Self {
            row,
            probe,
            neurons: Mutex::default(),
            residuals: Mutex::default(),
        }
    }
}

/// What is read through the last norm and the output matrix, of a probed row, and how many tokens of that are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LensRow {
    place: usize,
    source: Source,
    num_tokens: usize,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// The stream after a layer.
    Layer(usize),
    /// What one of the row's neurons adds.
    Neuron(usize),
}

/// Tokens that are told of what a neuron adds.
const NUM_PROMOTED: usize = 3;

/// Keeps the best of what is there and what a piece of a layer has; `best` is in order.
fn keep_best(best: &mut Vec<Neuron>, most: usize, layer: usize, first: usize, values: &[f32], norms: &[f32]) {
    for (place, (&activation, norm)) in values.iter().zip(norms).enumerate() {
        let neuron = Neuron {
            layer,
            index: first + place,
            activation,
            write_norm: activation.abs() * norm,
            promotes: Vec::new(),
        };
        let is_full = best.len() == most;
        if !neuron.write_norm.is_finite() || (is_full && best.last().is_none_or(|last| !neuron.is_before(last))) {
            continue;
        }
        if is_full {
            best.pop();
        }
        let at = best.partition_point(|other| other.is_before(&neuron));
        best.insert(at, neuron);
    }
}

impl Plan<'_> {
    fn probed(&self, row: usize) -> Option<&ProbedRow> {
        let place = self.probes.binary_search_by_key(&row, |probed| probed.row).ok()?;
        Some(&self.probes[place])
    }

    /// Whether neurons are wanted of any row.
    pub(crate) fn wants_neurons(&self) -> bool {
        self.probes.iter().any(|probed| probed.probe.num_neurons > 0)
    }

    /// Whether anything is to be read through the output matrix when the stages are over.
    pub(crate) fn has_lens(&self) -> bool {
        !self.probes.is_empty()
    }

    /// What is to be read: of each probed row its layers, where their tokens are wanted, and the neurons found.
    pub(crate) fn lens_rows(&self, num_layers: usize) -> Vec<LensRow> {
        let rows = self.probes.iter().enumerate();
        let rows = rows.flat_map(|(place, probed)| {
            let wanted = probed.probe.num_tokens;
            let layers = (0..if wanted > 0 { num_layers } else { 0 }).map(move |layer| (Source::Layer(layer), wanted));
            let num_neurons = probed.neurons.lock().unwrap_or_else(PoisonError::into_inner).len();
            let neurons = (0..num_neurons).map(|neuron| (Source::Neuron(neuron), NUM_PROMOTED));
            layers.chain(neurons).map(move |(source, num_tokens)| LensRow {
                place,
                source,
                num_tokens,
            })
        });
        rows.collect()
    }

    /// What was found of the probed rows, in their order, with what was read of them.
    pub(crate) fn take_probed(&mut self, lens: Vec<LensTokens>) -> Vec<Result<Probed, SampleError>> {
        let rows = self.probes.drain(..);
        let mut found: Vec<_> = rows
            .map(|row| {
                let neurons = row.neurons.into_inner().unwrap_or_else(PoisonError::into_inner);
                let layers = Vec::new();
                Ok(Probed { neurons, layers })
            })
            .collect();
        for (row, tokens) in lens {
            match (&mut found[row.place], row.source, tokens) {
                (Ok(probed), Source::Layer(_), Ok(tokens)) => probed.layers.push(tokens),
                (Ok(probed), Source::Neuron(neuron), Ok(tokens)) => {
                    probed.neurons[neuron].promotes = tokens.into_iter().map(|(token, _)| token).collect();
                }
                (Ok(_), _, Err(error)) => found[row.place] = Err(error),
                (Err(_), ..) => {}
            }
        }
        found
    }
}

impl Part<'_> {
    /// Takes in the activations of some neurons of a layer, of rows that are probed.
    pub(super) fn probe_neurons(&self, layer: usize, rows: Range<usize>, activations: &mut Patch<'_>) {
        let Some(norms) = self.pass.write_norms.get(layer) else {
            return;
        };
        let columns = activations.columns();
        for row in rows {
            let Some(probed) = self.plan.probed(row).filter(|probed| probed.probe.num_neurons > 0) else {
                continue;
            };
            let mut best = probed.neurons.lock().unwrap_or_else(PoisonError::into_inner);
            let (values, norms) = (activations.row(row), &norms[columns.clone()]);
            keep_best(&mut best, probed.probe.num_neurons, layer, columns.start, values, norms);
        }
    }

    /// Keeps a row of the stream after a layer, where that is wanted.
    pub(super) fn keep_residual(&self, row: usize, layer: usize, residual: &[f32]) {
        let Some(probed) = self.plan.probed(row).filter(|probed| probed.probe.num_tokens > 0) else {
            return;
        };
        let mut kept = probed.residuals.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(layer * residual.len());
        kept.extend_from_slice(residual);
    }
}

impl Pass<'_> {
    fn shared_part<'a>(&'a self, plan: &'a Plan<'a>) -> Part<'a> {
        Part {
            pass: self,
            plan,
            stream: &self.space.streams[0],
            keeps_residuals: true,
        }
    }

    /// Finds what probed rows were after each layer, where that was not kept on the way.
    ///
    /// # Safety
    /// All stages of the plan are over, and nobody else uses the workspace.
    pub(crate) unsafe fn keep_residuals(&self, plan: &Plan<'_>) {
        if !is_few(plan.num_rows()) {
            return;
        }
        let mut own = self.space.own(0);
        for probed in plan.probes.iter().filter(|probed| probed.probe.num_tokens > 0) {
            // SAFETY: all blocks' outputs are complete, and kept; by contract the stream is ours.
            unsafe {
                self.shared_part(plan)
                    .advance(probed.row, None, self.num_blocks(), &mut own.row)
            };
        }
    }

    /// How many pieces each of the stages has that [`Self::look_through`] computes for so many rows as the plan's outputs.
    pub(crate) fn lens_pieces(&self, plan: &Plan<'_>) -> [usize; 3] {
        let num_rows = plan.num_outputs();
        [num_rows, self.tiling(plan, Stage::Output).num_pieces(), num_rows]
    }

    /// Computes a piece of what is read of these rows: their norms, logits, and in the last stage the tokens.
    ///
    /// # Safety
    /// As [`Self::compute`]; the plan has as many outputs as there are `rows`, and their residuals are kept.
    pub(crate) unsafe fn look_through(
        &self,
        plan: &Plan<'_>,
        rows: &[LensRow],
        scorer: &Mutex<Scorer>,
        piece: Piece,
    ) -> Option<Result<TopTokens, SampleError>> {
        let part = self.shared_part(plan);
        let mut own = self.space.own(piece.thread);
        // SAFETY: every stage touches only the rows and columns of the piece.
        unsafe {
            match piece.stage {
                0 => part.normalise_source(rows[piece.index], piece.index, &mut own.row),
                1 => part.output(self.tiling(plan, Stage::Output).ranges(piece.index)),
                _ => {
                    let logits = self.space.logits.row(plan.first_output + piece.index);
                    let mut scorer = scorer.lock().unwrap_or_else(PoisonError::into_inner);
                    return Some(scorer.top(logits, rows[piece.index].num_tokens));
                }
            }
        }
        None
    }
}

impl Part<'_> {
    /// Hands the last norm of what is read to the output matrix as row `output` of its input.
    ///
    /// # Safety
    /// No other thread uses this row of the input in this stage.
    unsafe fn normalise_source(&self, of: LensRow, output: usize, scratch: &mut [f32]) {
        let (width, weights) = (self.pass.config.hidden_size, self.pass.weights);
        let probed = &self.plan.probes[of.place];
        let vector = match of.source {
            Source::Layer(layer) => {
                let kept = probed.residuals.lock().unwrap_or_else(PoisonError::into_inner);
                kept[layer * width..(layer + 1) * width].to_vec()
            }
            Source::Neuron(neuron) => {
                let neurons = probed.neurons.lock().unwrap_or_else(PoisonError::into_inner);
                written(weights, &neurons[neuron], width)
            }
        };
        // SAFETY: by contract.
        unsafe { self.normalise(&vector, &weights.final_norm, &self.stream.output_input, output, scratch) };
    }
}

/// What a neuron adds to the stream, but for its length: its column with the activation's sign, and the gains of a norm
/// that the family has after the block.
fn written(weights: &Weights, neuron: &Neuron, width: usize) -> Vec<f32> {
    let (layer, mut column) = (&weights.layers[neuron.layer], vec![0.0; width]);
    if let FeedForward::Dense(gated) = &layer.ffn {
        gated.down.weight.column(neuron.index, &mut column);
    }
    if let Some(gains) = &layer.post_ffn_norm {
        column.iter_mut().zip(gains).for_each(|(value, gain)| *value *= gain);
    }
    let length = column.iter().map(|value| value * value).sum::<f32>().sqrt();
    // As long as a row of the stream, so that the epsilon of the norm does not count.
    let factor = neuron.activation.signum() * (width as f32).sqrt() / length.max(f32::MIN_POSITIVE);
    column.iter_mut().for_each(|value| *value *= factor);
    column
}

/// The lengths of the columns of a layer's down matrix, one a neuron; none for a layer of experts.
pub(crate) fn write_norms(weights: &Weights, layer: usize) -> Vec<f32> {
    let FeedForward::Dense(gated) = &weights.layers[layer].ffn else {
        return Vec::new();
    };
    let down = &gated.down.weight;
    let (mut row, mut sums) = (vec![0.0; down.cols()], vec![0.0_f64; down.cols()]);
    for index in 0..down.rows() {
        down.row(index, &mut row);
        for (sum, &value) in sums.iter_mut().zip(&row) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    sums.into_iter().map(|sum| sum.sqrt() as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In whatever order pieces come, the best are kept, best first; of equals that in the earlier place; no number that
    /// is not finite.
    #[test]
    fn the_best_are_kept_in_any_order() {
        let pieces = [
            (1, 0, vec![1.0, -4.0, f32::NAN], vec![1.0, 1.0, 1.0]),
            (0, 3, vec![2.0, 0.5, f32::INFINITY], vec![2.0, 8.0, 1.0]),
            (0, 0, vec![0.0, 3.0, 1.0], vec![9.0, 1.0, 0.5]),
        ];
        let mut orders = [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]].iter();
        let all = orders.by_ref().map(|order| {
            let mut best = Vec::new();
            for &piece in order {
                let (layer, first, values, norms) = &pieces[piece];
                keep_best(&mut best, 4, *layer, *first, values, norms);
            }
            best.iter()
                .map(|neuron| (neuron.layer, neuron.index, neuron.write_norm))
                .collect::<Vec<_>>()
        });
        for best in all {
            assert_eq!(best, [(0, 3, 4.0), (0, 4, 4.0), (1, 1, 4.0), (0, 1, 3.0)]);
        }
    }

    /// Where none is wanted, none is kept.
    #[test]
    fn none_of_none() {
        let mut best = Vec::new();
        keep_best(&mut best, 0, 0, 0, &[1.0], &[1.0]);
        assert!(best.is_empty());
    }
}

//! The gated delta rule in a recurrent layer: a piece has a key head of one sequence, and its value heads, which are then
//! normalised and gated.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::recurrent::{CELL_CHANNELS, Decays, DeltaRule, l2_normalise, scan};

use super::sequence::Sequence;
use super::{PRODUCT_TILE, Part, Pass};
use crate::config::DeltaNet;
use crate::kv::StateRun;
use crate::model::ScanWeights;
use crate::workspace::{Own, Patch};

/// What a key's or query's squared length is never below, when it is made 1.
const L2_EPSILON: f32 = 1e-6;

impl Part<'_> {
    /// A key head's value heads of a sequence.
    ///
    /// # Safety
    /// The layer's convolution is over; the piece's heads and their states are this thread's in this stage.
    pub(super) unsafe fn scan_delta(&self, layer: usize, net: &DeltaNet, piece: usize, own: &mut Own) {
        let net = *net;
        let (segment, key_head) = (piece / net.num_key_heads, piece % net.num_key_heads);
        let heads = (net.value_heads(key_head), net.value_size);
        // SAFETY: by contract.
        unsafe {
            self.advance_heads((layer, segment), heads, own, |sequence, delta, run, rows, own| {
                let mut prepared = Patch::own(&mut own.second, rows.clone(), 0..2 * net.key_size);
                self.prepare_keys((net.key_size, net.keys_size()), key_head, &mut prepared);
                for head in net.value_heads(key_head) {
                    let head = Head {
                        net,
                        delta,
                        layer,
                        head,
                    };
                    self.scan_tile(sequence, run, &head, rows.clone(), own);
                }
            });
        }
    }

    /// A head's keys, then its queries, of a tile's rows, of length 1; queries are scaled as attention's are. Of one head there
    /// are so many numbers in each, of all heads so many.
    ///
    /// # Safety
    /// The convolution is over, and nobody writes queries and keys in this stage.
    pub(super) unsafe fn prepare_keys(&self, (size, of_all): (usize, usize), head: usize, prepared: &mut Patch<'_>) {
        let Pass { space, isa, .. } = *self.pass;
        for row in prepared.rows() {
            // SAFETY: by contract.
            let mixed = unsafe { space.mixed.shared_row(row) };
            let (keys, queries) = prepared.row(row)[..2 * size].split_at_mut(size);
            queries.copy_from_slice(&mixed[head * size..(head + 1) * size]);
            keys.copy_from_slice(&mixed[of_all + head * size..][..size]);
            l2_normalise(isa, keys, L2_EPSILON, 1.0);
            l2_normalise(isa, queries, L2_EPSILON, (size as f32).powf(-0.5));
        }
    }

    /// A value head's outputs of some rows, whose keys and queries are prepared.
    unsafe fn scan_tile(
        &self,
        sequence: &Sequence<'_>,
        run: &StateRun,
        head: &Head<'_>,
        rows: Range<usize>,
        own: &mut Own,
    ) {
        let Pass {
            config, space, isa, kv, ..
        } = *self.pass;
        let (net, width) = (head.net, space.mixed.width());
        let columns = head.head * net.value_size..(head.head + 1) * net.value_size;
        let keys = Patch::own(&mut own.second, rows.clone(), 0..2 * net.key_size);
        let mut out = Patch::own(&mut own.first, rows.clone(), columns.clone());
        let (mut decays, mut rates) = ([0.0; PRODUCT_TILE], [0.0; PRODUCT_TILE]);
        for (index, row) in rows.clone().enumerate() {
            // SAFETY: the projections are over, and nobody writes these in this stage.
            let mixed = unsafe { space.mixed.shared_row(row) };
            (decays[index], rates[index]) = head.step(mixed, &sequence.columns);
        }
        for column in columns.clone().step_by(CELL_CHANNELS) {
            let first_key = keys.origin().wrapping_add(rows.start * keys.stride());
            let values = space
                .mixed
                .base()
                .wrapping_add(rows.start * width + 2 * net.keys_size() + column);
            let matrix = sequence.states.layer(head.layer).matrices[column / CELL_CHANNELS];
            let work = DeltaRule {
                keys: first_key,
                queries: first_key.wrapping_add(net.key_size),
                key_stride: keys.stride(),
                key_size: net.key_size,
                values,
                value_stride: width,
                decays: Decays::OfHead(&decays[..rows.len()]),
                rates: &rates[..rows.len()],
                out: out.origin().wrapping_add(rows.start * out.stride() + column),
                out_stride: out.stride(),
                state: kv.cell(sequence.states, sequence.table, run.to, matrix),
            };
            // SAFETY: by contract; keys were prepared for these rows.
            unsafe { scan(isa, &work) };
        }
        for row in rows.clone() {
            // SAFETY: as above.
            let mixed = unsafe { space.mixed.shared_row(row) };
            let output = out.row(row);
            elementwise::rms_norm_in_place(isa, output, &head.delta.norm, config.norm_epsilon);
            let gates = &mixed[sequence.columns[1]..];
            elementwise::silu_mul(isa, output, &gates[columns.clone()]);
        }
        // SAFETY: these columns of these rows are this piece's.
        unsafe {
            space
                .mixer_input
                .write_tile(isa, rows, columns, out.origin(), out.stride())
        };
    }
}

/// A value head of a layer.
struct Head<'a> {
    net: DeltaNet,
    delta: &'a ScanWeights,
    layer: usize,
    head: usize,
}

impl Head<'_> {
    /// What a token leaves of the state, and how much of its value is added; computed in `f64`.
    fn step(&self, mixed: &[f32], columns: &[usize]) -> (f32, f32) {
        let [rate, step] = [columns[2], columns[3]].map(|column| f64::from(mixed[column + self.head]));
        let step = softplus(step + f64::from(self.delta.step_biases[self.head]));
        let decay = (f64::from(self.delta.log_decays[self.head]) * step).exp();
        (decay as f32, sigmoid(rate))
    }
}

/// `ln(1 + exp(x))`.
pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: f64) -> f32 {
    (1.0 / (1.0 + (-x).exp())) as f32
}

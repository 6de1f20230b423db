//! Experts of an encoder's feed-forward block (nomic-embed-text-v2-moe, Nussbaum and Duderstadt 2025, arXiv 2502.07972): each
//! token goes through those that its router finds likeliest, and their outputs are added by these probabilities.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{matmul, matmul_gathered};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::bert_names::ExpertNames;
use super::forward::{Own, multiply};
use crate::config::invalid;
use crate::model::{Linear, pack, vector};
use crate::weights::{ModelFile, ModelFileError};

/// Experts of a layer at most.
pub(super) const MOST_EXPERTS: usize = 1_024;

/// How many experts a layer has, and which layers have any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderExperts {
    /// Experts of a layer.
    pub count: usize,
    /// How many of them a token goes through.
    pub used: usize,
    /// Layers have experts whose number leaves 1 when divided by this.
    pub period: usize,
}

/// The experts of a layer.
pub(super) struct Experts {
    router: Linear,
    up: Vec<PackedMatrix>,
    down: Vec<PackedMatrix>,
    pub(super) bias: Option<Vec<f32>>,
    used: usize,
}

impl Experts {
    pub(super) fn load(
        file: &ModelFile,
        names: &ExpertNames,
        experts: EncoderExperts,
        (hidden, ffn): (usize, usize),
        pool: &ThreadPool,
    ) -> Result<Self, ModelFileError> {
        let part = |name: &str, expert: usize, rows: usize| {
            let missing = || invalid(format!("tensor '{name}' has no part for expert {expert}"));
            let part = file.tensor(name)?.part(&(expert * rows..(expert + 1) * rows));
            part.ok_or_else(missing)
        };
        let up = (0..experts.count).map(|expert| pack(file, pool, &part(&names.up, expert, ffn)?, ffn, hidden));
        let down = (0..experts.count).map(|expert| {
            if !names.is_down_turned {
                return pack(file, pool, &part(&names.down, expert, hidden)?, hidden, ffn);
            }
            let tensor = part(&names.down, expert, ffn)?;
            let size = tensor.bytes.len() / (ffn * hidden);
            let mut turned = Vec::with_capacity(tensor.bytes.len());
            for row in 0..hidden {
                for col in 0..ffn {
                    turned.extend_from_slice(&tensor.bytes[(col * hidden + row) * size..][..size]);
                }
            }
            file.note_loaded(turned.len());
            PackedMatrix::pack(tensor.kind, &turned, hidden, ffn)
                .map_err(|error| invalid(format!("tensor '{}' cannot be packed: {error}", names.down)))
        });
        let bias = names.bias.as_ref().map(|name| vector(&file.tensor(name)?, hidden));
        Ok(Self {
            router: Linear {
                weight: pack(file, pool, &file.tensor(&names.router)?, experts.count, hidden)?,
                bias: None,
            },
            up: up.collect::<Result<_, _>>()?,
            down: down.collect::<Result<_, _>>()?,
            bias: bias.transpose()?,
            used: experts.used,
        })
    }

    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        [&self.router.weight].into_iter().chain(&self.up).chain(&self.down)
    }

    /// Writes what the experts give of a tile into the thread's output, without the bias. Experts are added in their order,
    /// so a token's sum is one chain whatever its tile.
    pub(super) fn compute(&self, isa: Isa, own: &mut Own, (hidden, ffn): (usize, usize)) {
        let (num_tokens, count) = (own.input.tokens(), self.up.len());
        own.low.resize(own.low.len().max(num_tokens * count.max(hidden)), 0.0);
        // SAFETY: the thread's own memory, which has room for the tile.
        unsafe { multiply(isa, &self.router, &own.input, own.low.as_mut_ptr(), count) };
        let chosen: Vec<Vec<(usize, f32)>> = own.low[..num_tokens * count]
            .chunks_exact(count)
            .map(|logits| likeliest(logits, self.used))
            .collect();
        own.out[..num_tokens * hidden].fill(0.0);
        for expert in 0..count {
            let weight_of = |all: &[(usize, f32)]| all.iter().find(|(of, _)| *of == expert).map(|(_, weight)| *weight);
            let rows = chosen.iter().enumerate();
            let (rows, weights): (Vec<u32>, Vec<f32>) = rows
                .filter_map(|(row, all)| weight_of(all).map(|weight| (row as u32, weight)))
                .unzip();
            if rows.is_empty() {
                continue;
            }
            let (up, down, tokens) = (&self.up[expert], &self.down[expert], 0..rows.len());
            // SAFETY: the thread's own memory, which has room for the tile; the inputs are written.
            unsafe {
                let inner = own.gate.as_mut_ptr();
                matmul_gathered(
                    isa,
                    up,
                    0..up.num_groups(),
                    &own.input,
                    &rows,
                    tokens.clone(),
                    inner,
                    ffn,
                );
                for (index, row) in own.gate[..rows.len() * ffn].chunks_exact_mut(ffn).enumerate() {
                    elementwise::gelu(isa, row);
                    own.ffn_input.write_row(isa, index, row);
                }
                let given = own.low.as_mut_ptr();
                matmul(isa, down, 0..down.num_groups(), &own.ffn_input, tokens, given, hidden);
            }
            for ((row, weight), given) in rows.iter().zip(weights).zip(own.low.chunks_exact(hidden)) {
                let out = &mut own.out[*row as usize * hidden..][..hidden];
                out.iter_mut()
                    .zip(given)
                    .for_each(|(out, given)| *out += weight * given);
            }
        }
    }
}

/// The likeliest of all, with their probabilities among all; of equals the first.
fn likeliest(logits: &[f32], count: usize) -> Vec<(usize, f32)> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (f64::from(*logit) - f64::from(most)).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let first = order.into_iter().take(count);
    first.map(|expert| (expert, (weights[expert] / sum) as f32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The greatest come first, of equals the first; probabilities are those among all.
    #[test]
    fn the_likeliest_are_chosen_with_their_probabilities() {
        let found = likeliest(&[0.0, 2.0_f32.ln(), 0.0, f32::NEG_INFINITY], 2);
        assert_eq!(found, [(1, 0.5), (0, 0.25)]);
        assert_eq!(likeliest(&[1e30, 0.0], 1), [(0, 1.0)]);
        assert!(likeliest(&[f32::NAN, 0.0], 2)[0].1.is_nan());
    }
}

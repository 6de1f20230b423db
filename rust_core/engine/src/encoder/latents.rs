//! NV-Embed's latent attention (Lee et al. 2024, arXiv 2405.17428, section 3.1): each token attends to learned vectors,
//! and a gated feed-forward block follows, each added to the token's vector.
//!
//! Keys and values are the same for every text. So they are multiplied into the matrices around them when a model is
//! loaded: one matrix gives a token's scores of all heads, one makes what is added of its weights.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{Activations, matmul};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;
use serde_json::{Map, Value};

use super::forward::{Own, Shared, fill, multiply, multiply_into};
use super::weights::Norm;
use crate::config::hugging_face::{IRRELEVANT, JsonConfig};
use crate::config::invalid;
use crate::model::{Linear, pack, vector};
use crate::weights::{ModelFile, ModelFileError, TensorView, clipped};

/// What the names of its tensors begin with.
pub(super) const BEGIN: &str = "latent_attention_model.";
/// The first block, which attends, and the second one, which is fed forward.
const ATTENDS: &str = "latent_attention_model.cross_attend_blocks.0.";
const FEEDS: &str = "latent_attention_model.cross_attend_blocks.1.";
/// torch's own, of every LayerNorm.
const NORM_EPSILON: f32 = 1e-5;
/// How much wider than a token's vector the feed-forward block is inside.
const WIDENING: usize = 4;
/// Scores of a token, of all heads, at most: eight times NV-Embed's.
const MOST_SCORES: usize = 1 << 15;

/// The shape of latent attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latents {
    /// Learned vectors.
    pub num_latents: usize,
    /// Heads of attention.
    pub num_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Latents {
    /// Reads `latent_attention_config` of a model with vectors of so many numbers; NV-Embed's own files leave all out.
    pub(super) fn of(config: &Map<String, Value>, hidden: usize) -> Result<Self, ModelFileError> {
        let refused = |key: &str, expected: &str| {
            let value = config.get(key).unwrap_or(&Value::Null).to_string();
            invalid(format!(
                "config.json: 'latent_attention_config.{}' is {}; expected {expected}",
                clipped(key),
                clipped(&value)
            ))
        };
        let json = JsonConfig(config, None);
        let size = |key: &str, default: usize, most: usize| {
            let found = json.optional_size(key)?.unwrap_or(default);
            let is_right = (1..=most).contains(&found);
            is_right
                .then_some(found)
                .ok_or_else(|| refused(key, &format!("1 to {most}")))
        };
        let sizes = ["num_latents_value", "num_cross_heads", "cross_dim_head"];
        let widths = ["hidden_dim", "latent_dim"];
        for key in config.keys() {
            let is_other = |all: &str| all.split_whitespace().any(|name| name == key);
            let is_read = sizes.contains(&&**key) || widths.contains(&&**key);
            if !(is_read || is_other("model_type output_normalize") || is_other(IRRELEVANT)) {
                return Err(refused(key, "no such field"));
            }
        }
        for key in widths {
            if size(key, 4096, 1 << 16)? != hidden {
                return Err(refused(key, &format!("{hidden}, the width of the body's vectors")));
            }
        }
        let latents = Self {
            num_latents: size(sizes[0], 512, 1 << 13)?,
            num_heads: size(sizes[1], 8, 1 << 6)?,
            head_dim: size(sizes[2], 4096, 1 << 13)?,
        };
        // A row of memory for each: they may be many times as much as the file's tensors.
        if latents.num_heads * latents.num_latents > MOST_SCORES {
            let heads = latents.num_heads;
            return Err(refused(
                sizes[0],
                &format!("{} at most, of {heads} heads", MOST_SCORES / heads),
            ));
        }
        Ok(latents)
    }

    /// The widest row that a token has inside.
    pub(super) fn widest(&self, hidden: usize) -> usize {
        (self.num_heads * self.num_latents).max(2 * WIDENING * hidden)
    }

    /// Its tensors, with their rows and columns.
    pub(super) fn tensors(&self, hidden: usize) -> Vec<(String, usize, usize)> {
        let inner = self.num_heads * self.head_dim;
        let norm =
            |begin: &str, name: &str| ["weight", "bias"].map(|part| (format!("{begin}{name}.{part}"), 1, hidden));
        let mut all = vec![
            (format!("{BEGIN}latents"), self.num_latents, hidden),
            (format!("{ATTENDS}fn.to_q.weight"), inner, hidden),
            (format!("{ATTENDS}fn.to_kv.weight"), 2 * inner, hidden),
            (format!("{ATTENDS}fn.to_out.weight"), hidden, inner),
            (format!("{FEEDS}fn.net.0.weight"), 2 * WIDENING * hidden, hidden),
            (format!("{FEEDS}fn.net.0.bias"), 1, 2 * WIDENING * hidden),
            (format!("{FEEDS}fn.net.2.weight"), hidden, WIDENING * hidden),
            (format!("{FEEDS}fn.net.2.bias"), 1, hidden),
        ];
        all.extend(norm(ATTENDS, "norm"));
        all.extend(norm(ATTENDS, "norm_context"));
        all.extend(norm(FEEDS, "norm"));
        all
    }
}

/// Latent attention's weights.
pub(super) struct LatentWeights {
    num_latents: usize,
    norm: Norm,
    /// A row for each head and learned vector: what scores it.
    scores: Linear,
    /// A column for each of them: what is added of it.
    values: Linear,
    ffn_norm: Norm,
    /// What goes on, and the gates behind it.
    up: Linear,
    down: Linear,
}

impl LatentWeights {
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let all = [&self.scores, &self.values, &self.up, &self.down];
        all.into_iter().map(|linear| &linear.weight)
    }

    /// Loads them, using the pool's threads; their shapes were checked.
    pub(super) fn load(
        file: &ModelFile,
        shape: &Latents,
        hidden: usize,
        pool: &ThreadPool,
    ) -> Result<Self, ModelFileError> {
        let norm = |name: String| {
            let read = |part: &str| vector(&file.tensor(&format!("{name}.{part}"))?, hidden);
            Ok::<_, ModelFileError>(Norm {
                weight: read("weight")?,
                bias: read("bias")?,
            })
        };
        let linear = |name: &str, rows: usize, cols: usize| {
            Ok::<_, ModelFileError>(Linear {
                weight: pack(file, pool, &file.tensor(&format!("{FEEDS}{name}.weight"))?, rows, cols)?,
                bias: Some(vector(&file.tensor(&format!("{FEEDS}{name}.bias"))?, rows)?),
            })
        };
        let of_context = norm(format!("{ATTENDS}norm_context"))?;
        let mut context = vector(&file.tensor(&format!("{BEGIN}latents"))?, shape.num_latents * hidden)?;
        for row in context.chunks_exact_mut(hidden) {
            elementwise::layer_norm(Isa::detect(), row, &of_context.weight, &of_context.bias, NORM_EPSILON);
        }
        let (scores, values) = folded(file, shape, &context, hidden, pool)?;
        Ok(Self {
            num_latents: shape.num_latents,
            norm: norm(format!("{ATTENDS}norm"))?,
            scores,
            values,
            ffn_norm: norm(format!("{FEEDS}norm"))?,
            up: linear("fn.net.0", 2 * WIDENING * hidden, hidden)?,
            down: linear("fn.net.2", hidden, WIDENING * hidden)?,
        })
    }

    /// Brings a tile's tokens through both blocks. Each token's numbers depend on its own alone.
    pub(super) fn pass(&self, isa: Isa, hidden: &mut [f32], (integers, numbers): (bool, bool), own: &mut Own) {
        let width = self.norm.weight.len();
        let num_tokens = hidden.len() / width;
        let (scored, widened) = (self.scores.weight.rows(), self.up.weight.rows());
        let most = num_tokens * scored.max(widened).max(width);
        own.out.resize(own.out.len().max(most), 0.0);
        own.input.resize(num_tokens, width, integers, numbers);

        fill_normalised(isa, &self.norm, hidden, own);
        // SAFETY: the thread's own memory, which has room; so below.
        unsafe { multiply(isa, &self.scores, &own.input, own.out.as_mut_ptr(), scored) };
        for scores in own.out[..num_tokens * scored].chunks_exact_mut(self.num_latents) {
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum = elementwise::exp_sum(isa, scores, most, 1.0);
            elementwise::scale(isa, scores, (1.0 / sum) as f32);
        }
        own.ffn_input.resize(num_tokens, scored, integers, numbers);
        fill(isa, &own.ffn_input, &own.out[..num_tokens * scored]);
        // SAFETY: as above; the input was copied.
        unsafe { multiply(isa, &self.values, &own.ffn_input, own.out.as_mut_ptr(), width) };
        elementwise::add(isa, hidden, &own.out[..hidden.len()]);

        fill_normalised(isa, &self.ffn_norm, hidden, own);
        // SAFETY: as above.
        unsafe { multiply_into(isa, &self.up, &own.input, own.out.as_mut_ptr(), widened) };
        for row in own.out[..num_tokens * widened].chunks_exact_mut(widened) {
            let (inner, gates) = row.split_at_mut(widened / 2);
            elementwise::gelu(isa, gates);
            elementwise::mul(isa, inner, gates);
        }
        own.ffn_input.resize(num_tokens, widened / 2, integers, numbers);
        // SAFETY: the input is the thread's own; of each row the first half is read.
        unsafe {
            let rows = own.out.as_ptr();
            own.ffn_input
                .write_tile(isa, 0..num_tokens, 0..widened / 2, rows, widened);
            multiply_into(isa, &self.down, &own.ffn_input, own.out.as_mut_ptr(), width);
        }
        elementwise::add(isa, hidden, &own.out[..hidden.len()]);
    }
}

/// Writes the tokens, normalised, as a product's input; they stay as they are.
fn fill_normalised(isa: Isa, norm: &Norm, hidden: &[f32], own: &mut Own) {
    let normalised = &mut own.out[..hidden.len()];
    normalised.copy_from_slice(hidden);
    for row in normalised.chunks_exact_mut(norm.weight.len()) {
        elementwise::layer_norm(isa, row, &norm.weight, &norm.bias, NORM_EPSILON);
    }
    fill(isa, &own.input, normalised);
}

/// The matrices of scores and of what is added, from those of queries, keys, values and outputs.
fn folded(
    file: &ModelFile,
    shape: &Latents,
    context: &[f32],
    hidden: usize,
    pool: &ThreadPool,
) -> Result<(Linear, Linear), ModelFileError> {
    let Latents {
        num_latents,
        num_heads,
        head_dim,
    } = *shape;
    let (inner, num_columns) = (num_heads * head_dim, num_heads * num_latents);
    let tensor = |name: &str| file.tensor(&format!("{ATTENDS}fn.{name}.weight"));
    let (queries, both, outputs) = (tensor("to_q")?, tensor("to_kv")?, tensor("to_out")?);
    let (mut scores, mut values) = (
        Vec::with_capacity(num_columns * hidden),
        vec![0.0; hidden * num_columns],
    );
    for head in 0..num_heads {
        let first = head * head_dim;
        let of_context = |first: usize| {
            let part = numbers(&both, first..first + head_dim)?;
            product(pool, &matrix(&part, head_dim, hidden)?, context)
        };
        let mut keys = of_context(first)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        keys.iter_mut().for_each(|key| *key *= scale);
        let query = transposed(&numbers(&queries, first..first + head_dim)?, hidden);
        scores.extend(product(pool, &matrix(&query, hidden, head_dim)?, &keys)?);

        let mut output = Vec::with_capacity(hidden * head_dim);
        for row in 0..hidden {
            output.extend_from_slice(&numbers(&outputs, row..row + 1)?[first..first + head_dim]);
        }
        let added = product(pool, &matrix(&output, hidden, head_dim)?, &of_context(inner + first)?)?;
        for (latent, added) in added.chunks_exact(hidden).enumerate() {
            let column = head * num_latents + latent;
            added
                .iter()
                .enumerate()
                .for_each(|(row, x)| values[row * num_columns + column] = *x);
        }
    }
    for tensor in [queries, both, outputs] {
        file.drop_pages(tensor.bytes);
        file.note_loaded(tensor.bytes.len());
    }
    let linear = |numbers: &[f32], rows: usize, cols: usize| {
        matrix(numbers, rows, cols).map(|weight| Linear { weight, bias: None })
    };
    Ok((
        linear(&scores, num_columns, hidden)?,
        linear(&values, hidden, num_columns)?,
    ))
}

/// Some rows of a tensor, as numbers.
fn numbers(tensor: &TensorView<'_>, rows: Range<usize>) -> Result<Vec<f32>, ModelFileError> {
    let name = tensor.name;
    let part = tensor
        .part(&rows)
        .ok_or_else(|| invalid(format!("tensor '{name}' has too few rows")))?;
    part.to_f32()
        .map_err(|error| invalid(format!("tensor '{name}': {error}")))
}

fn matrix(numbers: &[f32], rows: usize, cols: usize) -> Result<PackedMatrix, ModelFileError> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    PackedMatrix::pack(GgmlType::F32, &bytes, rows, cols)
        .map_err(|error| invalid(format!("latent attention cannot be packed: {error}")))
}

fn transposed(numbers: &[f32], cols: usize) -> Vec<f32> {
    let column = |col: usize| numbers.iter().skip(col).step_by(cols).copied();
    (0..cols).flat_map(column).collect()
}

/// Multiplies rows by a matrix of `f32`, on all threads.
fn product(pool: &ThreadPool, weight: &PackedMatrix, rows: &[f32]) -> Result<Vec<f32>, ModelFileError> {
    let (isa, num_rows, width) = (Isa::detect(), rows.len() / weight.cols(), weight.rows());
    let mut input = Activations::default();
    input.resize(num_rows, weight.cols(), false, true);
    fill(isa, &input, rows);
    let mut out = vec![0.0; num_rows * width];
    let shared = Shared::of(&mut out, width);
    pool.run(&[weight.num_groups()], |piece| {
        let groups = piece.index..piece.index + 1;
        // SAFETY: each piece writes its own columns, which nobody reads before the run ends.
        unsafe { matmul(isa, weight, groups, &input, 0..num_rows, shared.at(0), width) };
    })
    .map_err(|error| invalid(format!("latent attention cannot be multiplied: {error}")))?;
    Ok(out)
}

//! Pooling by multi-head attention (Set Transformer, Lee et al. 2019, section 3.2), as CodeFuse's models have it: a learned
//! query attends to a text's tokens, and a feed-forward layer follows.
//!
//! The query is the same for every text, so a head's key matrix and its query are one vector, which scores a token. The
//! values of a head are a matrix, so the weighted mean of tokens goes through it once. All sums run in double precision over
//! the tokens in order.

use serde_json::{Map, Value};

use crate::config::hugging_face::JsonConfig;
use crate::config::invalid;
use crate::model::vector;
use crate::weights::{ModelFile, ModelFileError, clipped};

/// What the names of its tensors begin with.
pub(super) const BEGIN: &str = "mha_pma.";
const QUERY: &str = "mha_pma.S";
const BLOCK: &str = "mha_pma.mab.";
/// torch's own, of every LayerNorm.
const NORM_EPSILON: f64 = 1e-5;

/// Where the block has its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Behind attention and behind the feed-forward layer.
    Behind,
    /// Before each, and one at the end.
    Before,
    /// Before both, which stand beside each other, and one at the end.
    Beside,
}

/// The shape of a learned query's attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryPooling {
    /// Numbers of a text's vector.
    pub width: usize,
    /// Heads of attention.
    pub num_heads: usize,
    /// Where the norms are.
    pub place: NormPlace,
    /// Whether there are any.
    pub has_norms: bool,
}

impl QueryPooling {
    pub(super) fn of(config: &Map<String, Value>) -> Result<Self, ModelFileError> {
        let json = JsonConfig(config, None);
        let place = match json.text("pma_norm_mode") {
            Some("post_normal") => NormPlace::Behind,
            Some("pre_normal") => NormPlace::Before,
            Some("pre_gptj") => NormPlace::Beside,
            other => {
                let other = clipped(other.unwrap_or("(none)"));
                return Err(invalid(format!(
                    "config.json: 'pma_norm_mode' is {other}; expected post_normal, pre_normal or pre_gptj"
                )));
            }
        };
        let Some(has_norms) = config.get("pma_ln").and_then(Value::as_bool) else {
            return Err(invalid("config.json: 'pma_ln' must be true or false".to_owned()));
        };
        let (width, num_heads) = (json.size("compress_dim")?, json.size("pma_num_heads")?);
        if !(1..=1 << 14).contains(&width) || num_heads == 0 || !width.is_multiple_of(num_heads) {
            return Err(invalid(format!(
                "config.json: 'compress_dim' is {width} and 'pma_num_heads' {num_heads}; expected heads of one size, and \
                 16,384 numbers at most"
            )));
        }
        Ok(Self {
            width,
            num_heads,
            place,
            has_norms,
        })
    }

    fn norms(&self) -> &'static [&'static str] {
        match self.place {
            _ if !self.has_norms => &[],
            NormPlace::Behind => &["ln0", "ln1"],
            NormPlace::Before => &["ln_q", "ln_kv", "ln_o", "ln_final"],
            NormPlace::Beside => &["ln_q", "ln_kv", "ln_final"],
        }
    }

    /// Its tensors, with their rows and columns, over vectors of so many numbers.
    pub(super) fn tensors(&self, hidden: usize) -> Vec<(String, usize, usize)> {
        let width = self.width;
        let layers = [("fc_q", width), ("fc_k", hidden), ("fc_v", hidden), ("fc_o", width)];
        let mut all = vec![(QUERY.to_owned(), 1, width)];
        for (name, cols) in layers {
            all.push((format!("{BLOCK}{name}.weight"), width, cols));
            all.push((format!("{BLOCK}{name}.bias"), 1, width));
        }
        for name in self.norms() {
            all.extend(["weight", "bias"].map(|part| (format!("{BLOCK}{name}.{part}"), 1, width)));
        }
        all
    }

    /// Refuses a norm of tokens that are of another width.
    pub(super) fn check(&self, hidden: usize) -> Result<(), ModelFileError> {
        if self.has_norms && self.place != NormPlace::Behind && self.width != hidden {
            return Err(invalid(format!(
                "config.json: 'compress_dim' is {}, but its tokens are normalised, which have {hidden} numbers",
                self.width
            )));
        }
        Ok(())
    }
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    fn of(&self, row: &mut [f64]) {
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + NORM_EPSILON).sqrt();
        for (x, (weight, bias)) in row.iter_mut().zip(self.weight.iter().zip(&self.bias)) {
            *x = (*x - mean) * factor * f64::from(*weight) + f64::from(*bias);
        }
    }
}

struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Layer {
    /// A row of it, times a vector.
    fn row(&self, row: usize, x: &[f64]) -> f64 {
        let weights = &self.weight[row * x.len()..(row + 1) * x.len()];
        let products = weights.iter().zip(x).map(|(weight, x)| f64::from(*weight) * x);
        products.sum::<f64>() + f64::from(self.bias[row])
    }
}

/// The weights of a learned query's attention.
pub(super) struct QueryWeights {
    shape: QueryPooling,
    /// The learned query.
    query: Vec<f64>,
    /// The same, as attention takes it: normalised where the block has its norms before.
    normalised: Vec<f64>,
    /// Of each head what scores a token.
    probes: Vec<f64>,
    value: Layer,
    output: Layer,
    /// What normalises tokens.
    token_norm: Option<Norm>,
    /// What normalises the sum with attention.
    attention_norm: Option<Norm>,
    last_norm: Option<Norm>,
}

impl QueryWeights {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        (self.value.weight.len() + self.output.weight.len()) * 4 + self.probes.len() * 8
    }

    /// Loads them; their shapes were checked.
    pub(super) fn load(file: &ModelFile, shape: &QueryPooling, hidden: usize) -> Result<Self, ModelFileError> {
        let width = shape.width;
        let read = |name: String, count: usize| vector(&file.tensor(&name)?, count);
        let layer = |name: &str, cols: usize| {
            Ok::<_, ModelFileError>(Layer {
                weight: read(format!("{BLOCK}{name}.weight"), width * cols)?,
                bias: read(format!("{BLOCK}{name}.bias"), width)?,
            })
        };
        let norm = |name: &str| {
            let read = |part: &str| read(format!("{BLOCK}{name}.{part}"), width);
            let is_there = shape.norms().contains(&name);
            is_there
                .then(|| {
                    Ok::<_, ModelFileError>(Norm {
                        weight: read("weight")?,
                        bias: read("bias")?,
                    })
                })
                .transpose()
        };
        let query: Vec<f64> = read(QUERY.to_owned(), width)?.into_iter().map(f64::from).collect();
        let mut normalised = query.clone();
        if let Some(norm) = norm("ln_q")? {
            norm.of(&mut normalised);
        }
        let (of_query, of_keys) = (layer("fc_q", width)?, layer("fc_k", hidden)?);
        let head_dim = width / shape.num_heads;
        let mut probes = vec![0.0; shape.num_heads * hidden];
        for row in 0..width {
            // What the key's bias adds to all scores of a head cancels.
            let factor = of_query.row(row, &normalised) / (width as f64).sqrt();
            let probe = probes
                .chunks_exact_mut(hidden)
                .nth(row / head_dim)
                .expect("a head for each row");
            let keys = &of_keys.weight[row * hidden..(row + 1) * hidden];
            probe
                .iter_mut()
                .zip(keys)
                .for_each(|(probe, key)| *probe += factor * f64::from(*key));
        }
        Ok(Self {
            shape: shape.clone(),
            query,
            normalised,
            probes,
            value: layer("fc_v", hidden)?,
            output: layer("fc_o", width)?,
            token_norm: norm("ln_kv")?,
            attention_norm: norm(if shape.place == NormPlace::Behind {
                "ln0"
            } else {
                "ln_o"
            })?,
            last_norm: norm(if shape.place == NormPlace::Behind {
                "ln1"
            } else {
                "ln_final"
            })?,
        })
    }

    /// Writes a text's vector. `rows` has its tokens' vectors.
    pub(super) fn pool(&self, rows: &[f32], out: &mut [f32]) {
        let mut attended = self.query.clone();
        let means = self.means(rows);
        let hidden = means.len() / self.shape.num_heads;
        let head_dim = self.shape.width / self.shape.num_heads;
        for (row, sum) in attended.iter_mut().enumerate() {
            let head = row / head_dim;
            *sum += self.value.row(row, &means[head * hidden..(head + 1) * hidden]);
        }
        let is_beside = self.shape.place == NormPlace::Beside;
        if let Some(norm) = &self.attention_norm {
            norm.of(&mut attended);
        }
        let input = if is_beside { &self.normalised } else { &attended };
        let fed: Vec<f64> = (0..self.shape.width)
            .map(|row| self.output.row(row, input).max(0.0))
            .collect();
        attended.iter_mut().zip(fed).for_each(|(sum, fed)| *sum += fed);
        if let Some(norm) = &self.last_norm {
            norm.of(&mut attended);
        }
        out.iter_mut().zip(attended).for_each(|(out, x)| *out = x as f32);
    }

    /// Of each head the mean of the tokens, weighted by its scores.
    fn means(&self, rows: &[f32]) -> Vec<f64> {
        let hidden = self.probes.len() / self.shape.num_heads;
        let num_tokens = (rows.len() / hidden).max(1);
        let mut weights = vec![0.0; self.shape.num_heads * num_tokens];
        self.each_token(rows, |index, token| {
            for (probe, weights) in self
                .probes
                .chunks_exact(hidden)
                .zip(weights.chunks_exact_mut(num_tokens))
            {
                weights[index] = probe.iter().zip(token).map(|(probe, x)| probe * x).sum();
            }
        });
        for weights in weights.chunks_exact_mut(num_tokens) {
            let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            weights.iter_mut().for_each(|weight| *weight = (*weight - most).exp());
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let mut means = vec![0.0; self.probes.len()];
        self.each_token(rows, |index, token| {
            for (mean, weights) in means.chunks_exact_mut(hidden).zip(weights.chunks_exact(num_tokens)) {
                let weight = weights[index];
                mean.iter_mut().zip(token).for_each(|(mean, x)| *mean += weight * x);
            }
        });
        means
    }

    /// Calls `work` with each token's vector, normalised where the block does so: one at a time, as all of a long text's in
    /// double precision would take twice what its stream does.
    fn each_token(&self, rows: &[f32], mut work: impl FnMut(usize, &[f64])) {
        let hidden = self.probes.len() / self.shape.num_heads;
        let mut token = vec![0.0; hidden];
        for (index, row) in rows.chunks_exact(hidden).enumerate() {
            token.iter_mut().zip(row).for_each(|(token, x)| *token = f64::from(*x));
            if let Some(norm) = &self.token_norm {
                norm.of(&mut token);
            }
            work(index, &token);
        }
    }
}

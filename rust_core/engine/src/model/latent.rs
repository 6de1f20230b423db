//! Latent attention's weights, arranged for the absorbed form: of each head what makes a latent's query of a query, and
//! what makes the head's values of a latent.

use std::borrow::Cow;

use pyagent_kernels::elementwise::f32_to_f16;
use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::pack::PackedMatrix;

use super::names::Place;
use super::{Linear, Loader, Norm, expect, pack, vector};
use crate::config::{Latent, invalid};
use crate::quantised::Matrix;
use crate::weights::{ModelFileError, TensorView};

/// What rates earlier tokens, in a layer that has an indexer.
pub struct IndexerWeights {
    /// The queries of all index heads, of compressed ones.
    pub query: Linear,
    /// A token's index key.
    pub key: Linear,
    /// The key's norm.
    pub key_norm: Norm,
    /// What index heads' scores are weighed by.
    pub weight: Linear,
}

/// Latent attention's weights but for its output matrix.
pub struct LatentWeights {
    /// What compresses queries, and the norm of what they are then; none where they are not.
    pub query_down: Option<(Linear, Vec<f32>)>,
    /// The queries of all heads, of compressed ones where they are.
    pub query: Linear,
    /// A token's latent, and its rotated key after it.
    pub latent: Linear,
    /// The latent's norm.
    pub latent_norm: Vec<f32>,
    /// Of each head, what a latent's query is made with, [latent, plain dims].
    pub key_up: Vec<PackedMatrix>,
    /// Of each head, what its values are made with, [value dims, latent].
    pub value_up: Vec<PackedMatrix>,
    /// Sparse attention's indexer, of layers that have one.
    pub indexer: Option<IndexerWeights>,
}

impl LatentWeights {
    /// The matrices that the layer's input is multiplied by.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Linear> {
        let first = self.query_down.as_ref().map_or(&self.query, |(down, _)| down);
        let indexer = self.indexer.iter().flat_map(|indexer| [&indexer.key, &indexer.weight]);
        [first, &self.latent].into_iter().chain(indexer)
    }

    /// The matrices that compressed queries are multiplied by.
    pub(crate) fn of_queries(&self) -> impl Iterator<Item = &PackedMatrix> {
        let query = self.query_down.as_ref().map(|_| &self.query.weight);
        query
            .into_iter()
            .chain(self.indexer.iter().map(|indexer| &indexer.query.weight))
    }

    /// The other matrices.
    pub(super) fn inner(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.of_queries().chain(&self.key_up).chain(&self.value_up)
    }
}

/// The heads' matrices in a file: both in one, or in a stack each.
enum Ups<'a, T> {
    /// Rows of each head: what makes keys, then what makes values, [heads x (plain + value), latent].
    Together(T),
    /// `[heads, latent, plain]`, and `[heads, value, latent]`.
    Apart([TensorView<'a>; 2]),
}

impl<'a> Loader<'a> {
    /// Latent attention's weights, and its output matrix.
    pub(super) fn latent(&self, layer: usize, latent: &Latent) -> Result<(LatentWeights, Linear), ModelFileError> {
        let hidden = self.config.hidden_size;
        let place = |gguf, other| self.names.whole(layer, gguf, other);
        let queries = self.config.num_heads * latent.key_dims();
        let (query_down, query) = match latent.query_rank {
            None => (
                None,
                self.linear(&place("attn_q", "self_attn.q_proj"), queries, hidden)?,
            ),
            Some(rank) => {
                let down = self.linear(&place("attn_q_a", "self_attn.q_a_proj"), rank, hidden)?;
                let norm = place("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight");
                let query = self.linear(&place("attn_q_b", "self_attn.q_b_proj"), queries, rank)?;
                (Some((down, self.norm(&norm.name, rank)?)), query)
            }
        };
        let norm = place("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight");
        let [key_up, value_up] = self.ups(layer, latent)?;
        let weights = LatentWeights {
            query_down,
            query,
            latent: self.linear(&latent_place(self, layer), latent.cached_dims(), hidden)?,
            latent_norm: self.norm(&norm.name, latent.rank)?,
            key_up,
            value_up,
            indexer: self.indexer(layer, latent)?,
        };
        let output = place("attn_output", "self_attn.o_proj");
        Ok((weights, self.linear(&output, hidden, self.config.heads_sizes()[0])?))
    }

    /// The indexer of a layer that has one.
    fn indexer(&self, layer: usize, latent: &Latent) -> Result<Option<IndexerWeights>, ModelFileError> {
        let Some(indexer) = self.config.indexer(layer) else {
            return Ok(None);
        };
        let [query, key, weight] = self.indexer_places(layer, latent);
        let norm = self
            .names
            .whole(layer, "indexer.k_norm", "self_attn.indexer.k_norm")
            .name;
        let norm = |end: &str| vector(&self.file.tensor(&format!("{norm}.{end}"))?, indexer.key_dims);
        let linear = |(place, rows, cols): &(Place, usize, usize)| self.linear(place, *rows, *cols);
        Ok(Some(IndexerWeights {
            query: linear(&query)?,
            key: linear(&key)?,
            key_norm: Norm::Layer {
                weight: norm("weight")?,
                bias: norm("bias")?,
            },
            weight: linear(&weight)?,
        }))
    }

    /// An indexer's matrices of queries, keys and weights, and their sizes; nothing where the layer has none.
    fn indexer_places(&self, layer: usize, latent: &Latent) -> [(Place, usize, usize); 3] {
        let hidden = self.config.hidden_size;
        let (heads, dims) = self
            .config
            .indexer(layer)
            .map_or((0, 0), |indexer| (indexer.num_heads, indexer.key_dims));
        let place = |gguf, other| self.names.whole(layer, gguf, other);
        [
            (
                place("indexer.attn_q_b", "self_attn.indexer.wq_b"),
                heads * dims,
                latent.query_rank.unwrap_or(0),
            ),
            (place("indexer.attn_k", "self_attn.indexer.wk"), dims, hidden),
            (place("indexer.proj", "self_attn.indexer.weights_proj"), heads, hidden),
        ]
    }

    /// Of each head, what makes a latent's query, and what makes values.
    fn ups(&self, layer: usize, latent: &Latent) -> Result<[Vec<PackedMatrix>; 2], ModelFileError> {
        let Latent {
            rank,
            plain_dims: plain,
            value_dims: value,
            ..
        } = *latent;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let read;
        let ups = match self.find_ups(layer, latent)? {
            Ups::Together(matrix) => {
                read = matrix.read(self.file, self.pool)?;
                Ups::Together(read.view())
            }
            Ups::Apart(found) => Ups::Apart(found),
        };
        for head in 0..self.config.num_heads {
            let (key, of_value) = match &ups {
                Ups::Together(both) => {
                    let first = head * (plain + value);
                    let of_key = rows(both, first, plain)?;
                    (transposed(&of_key, rank)?, rows(both, first + plain, value)?)
                }
                Ups::Apart([of_keys, of_values]) => {
                    let (key, of_value) = (rows(of_keys, head * rank, rank)?, rows(of_values, head * value, value)?);
                    ((key.kind, Cow::Borrowed(key.bytes)), of_value)
                }
            };
            let (kind, bytes) = key;
            let key = TensorView {
                dims: &[plain, rank],
                kind,
                bytes: &bytes,
                ..of_value
            };
            keys.push(pack(self.file, self.pool, &key, rank, plain)?);
            values.push(pack(self.file, self.pool, &of_value, value, rank)?);
        }
        Ok([keys, values])
    }

    /// The heads' matrices, measured. Files of llama.cpp have them apart since 2025.
    fn find_ups(&self, layer: usize, latent: &Latent) -> Result<Ups<'a, Matrix<'a>>, ModelFileError> {
        let num_heads = self.config.num_heads;
        let together = self.names.whole(layer, "attn_kv_b", "self_attn.kv_b_proj");
        let apart = ["attn_k_b", "attn_v_b"].map(|name| self.names.whole(layer, name, "self_attn.kv_b_proj"));
        if let Some(both) = together.matrix(self.file, &self.matrices, latent.rank)? {
            let num_rows = num_heads * (latent.plain_dims + latent.value_dims);
            expect(both.name(), both.size(), (num_rows, latent.rank))?;
            return Ok(Ups::Together(both));
        }
        let expected = [
            [latent.plain_dims, latent.rank, num_heads],
            [latent.rank, latent.value_dims, num_heads],
        ];
        let find = |which: usize| {
            let name = format!("{}.weight", apart[which].name);
            let (tensor, expected) = (self.file.tensor(&name)?, expected[which]);
            let is_right = tensor.dims == expected;
            is_right
                .then_some(tensor)
                .ok_or_else(|| invalid(format!("tensor '{name}' is {:?}; expected {expected:?}", tensor.dims)))
        };
        Ok(Ups::Apart([find(0)?, find(1)?]))
    }

    /// Refuses latent attention whose tensors are missing, or of other sizes, before any memory is taken for weights.
    pub(super) fn check_latent(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let Some(latent) = &config.latent else { return Ok(()) };
        let queries = config.num_heads * latent.key_dims();
        for layer in config.all_layers().filter(|&layer| config.has_attention(layer)) {
            let place = |gguf, other| self.names.whole(layer, gguf, other);
            match latent.query_rank {
                None => self.check(&place("attn_q", "self_attn.q_proj"), queries, hidden)?,
                Some(rank) => {
                    self.check(&place("attn_q_a", "self_attn.q_a_proj"), rank, hidden)?;
                    self.check(&place("attn_q_b", "self_attn.q_b_proj"), queries, rank)?;
                }
            }
            self.check(&latent_place(self, layer), latent.cached_dims(), hidden)?;
            self.find_ups(layer, latent)?;
            if let Some(indexer) = config.indexer(layer) {
                for (place, rows, cols) in self.indexer_places(layer, latent) {
                    self.check(&place, rows, cols)?;
                }
                let norm = place("indexer.k_norm", "self_attn.indexer.k_norm").name;
                for end in ["weight", "bias"] {
                    vector(&self.file.tensor(&format!("{norm}.{end}"))?, indexer.key_dims)?;
                }
            }
            self.check(
                &place("attn_output", "self_attn.o_proj"),
                hidden,
                config.heads_sizes()[0],
            )?;
        }
        Ok(())
    }
}

fn latent_place(loader: &Loader<'_>, layer: usize) -> Place {
    let names = &loader.names;
    names.whole(layer, "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa")
}

/// Some rows of a tensor that was measured.
fn rows<'a>(tensor: &TensorView<'a>, first: usize, count: usize) -> Result<TensorView<'a>, ModelFileError> {
    let part = tensor.part(&(first..first + count));
    part.ok_or_else(|| {
        invalid(format!(
            "tensor '{}' has no rows {first} to {}",
            tensor.name,
            first + count
        ))
    })
}

/// A matrix of `cols` columns the other way round: plain numbers as they are, others as half precision.
fn transposed<'a>(tensor: &TensorView<'a>, cols: usize) -> Result<(GgmlType, Cow<'a, [u8]>), ModelFileError> {
    let turn = |bytes: &[u8], size: usize| {
        let num_rows = bytes.len() / (cols * size);
        let mut turned = Vec::with_capacity(bytes.len());
        for column in 0..cols {
            for row in 0..num_rows {
                let at = (row * cols + column) * size;
                turned.extend_from_slice(&bytes[at..at + size]);
            }
        }
        Cow::Owned(turned)
    };
    match tensor.kind {
        GgmlType::F32 => Ok((tensor.kind, turn(tensor.bytes, 4))),
        GgmlType::F16 | GgmlType::BF16 => Ok((tensor.kind, turn(tensor.bytes, 2))),
        _ => {
            let numbers = tensor.to_f32();
            let numbers = numbers.map_err(|error| invalid(format!("tensor '{}': {error}", tensor.name)))?;
            let mut halves = vec![0; numbers.len()];
            f32_to_f16(Isa::detect(), &numbers, &mut halves);
            let bytes: Vec<u8> = halves.into_iter().flat_map(u16::to_ne_bytes).collect();
            Ok((GgmlType::F16, turn(&bytes, 2)))
        }
    }
}

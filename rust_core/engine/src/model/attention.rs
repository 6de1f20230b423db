//! Tensors of attention: looked up, measured, and packed.

use super::names::{Part, Place};
use super::{Attention, Linear, Loader};
use crate::config::{Architecture, invalid};
use crate::weights::ModelFileError;

/// The groups in which `CodeGen`'s heads lie, for as many devices.
const CODE_GEN_GROUPS: usize = 4;

impl Loader<'_> {
    /// A layer's attention, and its output matrix.
    pub(super) fn attention(&self, layer: usize) -> Result<(Attention, Linear), ModelFileError> {
        let (config, hidden) = (self.config, self.config.attention_input_size(layer));
        let name = |part: Part| self.names.layer(layer, part, config);
        let (query_norm, key_norm) = config.qk_norm_sizes(layer);
        let query_size = config.query_size_of(layer);
        let of_kv = |part| self.linear(&name(part), config.kv_size_of(layer), hidden);
        let has_kv = config.makes_kv(layer);
        let architecture = config.architecture;
        let (query, key, value, gate) = if architecture.are_gates_apart() {
            let query = self.linear(&name(Part::Query), query_size, hidden)?;
            (
                query,
                None,
                None,
                Some(self.linear(&self.names.gates(layer), config.num_gates(), hidden)?),
            )
        } else if architecture.has_gated_attention() {
            let [query, gate] = self.interleaved_heads(&name(Part::Query))?;
            (query, None, None, Some(gate))
        } else if self.names.are_heads_in_turn(config) {
            let [query, key, value] = self.grouped_heads(&name(Part::Query))?;
            (query, Some(key), Some(value), None)
        } else {
            (self.linear(&name(Part::Query), query_size, hidden)?, None, None, None)
        };
        let attention = Attention {
            query,
            key: key.map_or_else(|| has_kv.then(|| of_kv(Part::Key)).transpose(), |key| Ok(Some(key)))?,
            value: match value {
                Some(value) => Some(value),
                None => (has_kv && !config.are_values_keys(layer))
                    .then(|| of_kv(Part::Value))
                    .transpose()?,
            },
            gate,
            query_norm: self.qk_norm(layer, Part::QueryNorm, query_norm)?,
            key_norm: self.qk_norm(layer, Part::KeyNorm, key_norm)?,
            value_norm: config.gemma4.map(|_| vec![1.0; key_norm]),
        };
        let output = self.linear(&name(Part::AttentionOutput), config.hidden_size, query_size)?;
        Ok((attention, output))
    }

    /// Refuses attention whose matrices are missing, or of other sizes, before any memory is taken for weights. Latent
    /// attention and Gemma 4's are checked for themselves.
    pub(super) fn check_attention(&self) -> Result<(), ModelFileError> {
        let config = self.config;
        let is_plain =
            |&layer: &usize| config.has_attention(layer) && config.latent.is_none() && config.gemma4.is_none();
        self.check_head_norms(is_plain)?;
        for layer in config.all_layers().filter(is_plain) {
            let hidden = config.attention_input_size(layer);
            self.check_joined(&self.names.layer(layer, Part::Value, config))?;
            let architecture = config.architecture;
            let gates = 1 + usize::from(architecture.has_gated_attention() && !architecture.are_gates_apart());
            if architecture.are_gates_apart() {
                self.check(&self.names.gates(layer), config.num_gates(), hidden)?;
            }
            let in_turn = config.query_size() + 2 * config.kv_size();
            let [query, key, value] = if self.names.are_heads_in_turn(config) {
                [in_turn; 3] // one matrix
            } else {
                [gates * config.query_size(), config.kv_size(), config.kv_size()]
            };
            for (part, rows, cols) in [
                (Part::Query, query, hidden),
                (Part::Key, key, hidden),
                (Part::Value, value, hidden),
                (Part::AttentionOutput, config.hidden_size, config.query_size()),
            ] {
                self.check(&self.names.layer(layer, part, config), rows, cols)?;
            }
        }
        Ok(())
    }

    /// Refuses files that have norms of queries or keys in some of these layers and not in all of them: one got lost.
    fn check_head_norms(&self, is_among: impl Fn(&usize) -> bool) -> Result<(), ModelFileError> {
        if self.config.has_bare_qk_norms {
            return Ok(());
        }
        let (mut has_any, mut missing) = (false, None);
        for layer in self.config.all_layers().filter(is_among) {
            let has_keys = self.config.kv_source(layer).is_none();
            for part in [Part::QueryNorm, Part::KeyNorm]
                .into_iter()
                .take(1 + usize::from(has_keys))
            {
                let name = self.names.layer(layer, part, self.config).name;
                match self.file.find_tensor(&name)? {
                    Some(_) => has_any = true,
                    None => drop(missing.get_or_insert(name)),
                }
            }
        }
        match missing.filter(|_| has_any) {
            None => Ok(()),
            Some(name) => Err(ModelFileError::TensorMissing { name }),
        }
    }

    /// Queries, keys and values of a matrix in which they lie by groups: of each head of keys the queries that share it, the
    /// keys, the values. `CodeGen`'s are in four groups, values before keys.
    fn grouped_heads(&self, place: &Place) -> Result<[Linear; 3], ModelFileError> {
        let config = self.config;
        let (query, kv) = (config.query_size(), config.kv_size());
        let (groups, [first, second]) = match config.architecture {
            Architecture::CodeGen => (CODE_GEN_GROUPS, [2, 1]),
            _ => (config.num_kv_heads, [1, 2]),
        };
        if !config.num_kv_heads.is_multiple_of(groups) {
            return Err(invalid(format!(
                "{} heads do not lie in {groups} groups of as many",
                config.num_kv_heads
            )));
        }
        let (each, all) = ([query / groups, kv / groups], (query + 2 * kv) / groups);
        let rows_of = |start: usize, count: usize| -> Vec<usize> {
            let group = |group: usize| group * all + start..group * all + start + count;
            (0..groups).flat_map(group).collect()
        };
        let [of_query, of_kv] = each;
        let starts = [0, of_query + (first - 1) * of_kv, of_query + (second - 1) * of_kv];
        let read = self
            .find(place, query + 2 * kv, config.hidden_size)?
            .read(self.file, self.pool)?;
        let bias = self.bias(place, query + 2 * kv)?;
        let linear = |(start, count)| self.some_rows(&read.view(), bias.as_deref(), &rows_of(start, count));
        Ok([
            linear((starts[0], of_query))?,
            linear((starts[1], of_kv))?,
            linear((starts[2], of_kv))?,
        ])
    }

    /// The norm of queries, or keys, where the layer has one.
    fn qk_norm(&self, layer: usize, part: Part, size: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        let config = self.config;
        if config.has_bare_qk_norms {
            return Ok(config.rotary_layers[layer].then(|| vec![1.0; size]));
        }
        let name = self.names.layer(layer, part, config).name;
        if config.architecture.needs_head_norms() {
            return self.norm(&name, size).map(Some);
        }
        self.optional_norm(&name, size)
    }
}

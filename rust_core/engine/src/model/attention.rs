//! Tensors of attention: looked up, measured, and packed.

use super::names::Part;
use super::{Attention, Linear, Loader};
use crate::weights::ModelFileError;

impl Loader<'_> {
    /// A layer's attention, and its output matrix.
    pub(super) fn attention(&self, layer: usize) -> Result<(Attention, Linear), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let name = |part: Part| self.names.layer(layer, part, config);
        let (query_norm, key_norm) = config.qk_norm_sizes(layer);
        let query_size = config.query_size_of(layer);
        let of_kv = |part| self.linear(&name(part), config.kv_size_of(layer), hidden);
        let has_kv = config.kv_source(layer).is_none();
        let (query, gate) = if config.architecture.has_gated_attention() {
            let [query, gate] = self.interleaved_heads(&name(Part::Query))?;
            (query, Some(gate))
        } else {
            (self.linear(&name(Part::Query), query_size, hidden)?, None)
        };
        let attention = Attention {
            query,
            key: has_kv.then(|| of_kv(Part::Key)).transpose()?,
            value: (has_kv && !config.are_values_keys(layer))
                .then(|| of_kv(Part::Value))
                .transpose()?,
            gate,
            query_norm: self.qk_norm(layer, Part::QueryNorm, query_norm)?,
            key_norm: self.qk_norm(layer, Part::KeyNorm, key_norm)?,
            value_norm: config.gemma4.map(|_| vec![1.0; key_norm]),
        };
        let output = self.linear(&name(Part::AttentionOutput), hidden, query_size)?;
        Ok((attention, output))
    }

    /// Refuses attention whose matrices are missing, or of other sizes, before any memory is taken for weights. Latent
    /// attention and Gemma 4's are checked for themselves.
    pub(super) fn check_attention(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let is_plain =
            |&layer: &usize| config.has_attention(layer) && config.latent.is_none() && config.gemma4.is_none();
        for layer in (0..config.num_layers).filter(is_plain) {
            let gates = 1 + usize::from(config.architecture.has_gated_attention());
            for (part, rows, cols) in [
                (Part::Query, gates * config.query_size(), hidden),
                (Part::Key, config.kv_size(), hidden),
                (Part::Value, config.kv_size(), hidden),
                (Part::AttentionOutput, hidden, config.query_size()),
            ] {
                self.check(&self.names.layer(layer, part, config), rows, cols)?;
            }
        }
        Ok(())
    }

    /// The norm of queries, or keys, where the layer has one.
    fn qk_norm(&self, layer: usize, part: Part, size: usize) -> Result<Option<Vec<f32>>, ModelFileError> {
        let config = self.config;
        if config.has_bare_qk_norms {
            return Ok(config.rotary_layers[layer].then(|| vec![1.0; size]));
        }
        self.optional_norm(&self.names.layer(layer, part, config).name, size)
    }
}

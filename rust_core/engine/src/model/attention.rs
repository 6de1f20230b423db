//! Tensors of attention: looked up, measured, and packed.

use super::names::Part;
use super::{Attention, Linear, Loader};
use crate::weights::ModelFileError;

impl Loader<'_> {
    /// A layer's attention, and its output matrix.
    pub(super) fn attention(&self, layer: usize) -> Result<(Attention, Linear), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let name = |part: Part| self.names.layer(layer, part, config);
        let (query_norm, key_norm) = config.qk_norm_sizes();
        let (query, gate) = if config.architecture.has_gated_attention() {
            let [query, gate] = self.interleaved_heads(&name(Part::Query))?;
            (query, Some(gate))
        } else {
            (self.linear(&name(Part::Query), config.query_size(), hidden)?, None)
        };
        let attention = Attention {
            query,
            key: self.linear(&name(Part::Key), config.kv_size(), hidden)?,
            value: self.linear(&name(Part::Value), config.kv_size(), hidden)?,
            gate,
            query_norm: self.qk_norm(layer, Part::QueryNorm, query_norm)?,
            key_norm: self.qk_norm(layer, Part::KeyNorm, key_norm)?,
        };
        let output = self.linear(&name(Part::AttentionOutput), hidden, config.query_size())?;
        Ok((attention, output))
    }

    /// Refuses attention whose matrices are missing, or of other sizes, before any memory is taken for weights. Latent
    /// attention is checked for itself.
    pub(super) fn check_attention(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        let is_plain = |&layer: &usize| config.has_attention(layer) && config.latent.is_none();
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

//! The weights that Gemma 4 has of its own: per-layer embeddings, a factor on each layer, and the norms of experts beside a
//! dense block.

use pyagent_kernels::pack::PackedMatrix;

use super::names::{Part, Place};
use super::{Linear, Loader, Norm, vector};
use crate::config::ModelConfig;
use crate::weights::{ModelFile, ModelFileError};

/// Per-layer embeddings: a table, and what makes a layer's inputs of a token's own embedding.
pub struct PerLayerInputs {
    /// [vocab, layers x size].
    pub table: PackedMatrix,
    /// [layers x size, hidden].
    pub projection: Linear,
    /// The norm of each layer's part of the projection.
    pub norm: Vec<f32>,
}

/// What a layer does with its part of them.
pub struct PerLayer {
    /// [size, hidden].
    pub gate: Linear,
    /// [hidden, size].
    pub projection: Linear,
    /// The norm of what the block gives.
    pub norm: Vec<f32>,
}

/// The norms of experts that lie beside a dense block, each with an input and an output of its own.
pub struct SeparateExperts {
    /// Of the router's input, its scale and the width's root in it.
    pub router_norm: Norm,
    /// Of the experts' input.
    pub input_norm: Norm,
    /// Of the dense block's output.
    pub dense_norm: Vec<f32>,
    /// Of the experts' output.
    pub output_norm: Vec<f32>,
    /// Factor on each expert's weight.
    pub scales: Vec<f32>,
}

impl Loader<'_> {
    pub(super) fn per_layer_inputs(&self) -> Result<Option<PerLayerInputs>, ModelFileError> {
        let (config, size) = (self.config, self.config.per_layer_size());
        if size == 0 {
            return Ok(None);
        }
        let all = config.num_layers * size;
        let norm = self
            .names
            .of_decoder("per_layer_proj_norm.weight", "per_layer_projection_norm.weight");
        Ok(Some(PerLayerInputs {
            table: self.matrix(&self.table().weight(), config.vocab_size, all)?,
            projection: self.linear(&self.projection(), all, config.hidden_size)?,
            norm: self.norm(&norm, size)?,
        }))
    }

    pub(super) fn per_layer(&self, layer: usize) -> Result<Option<PerLayer>, ModelFileError> {
        let (hidden, size) = (self.config.hidden_size, self.config.per_layer_size());
        if size == 0 {
            return Ok(None);
        }
        let [gate, projection] = self.per_layer_places(layer);
        let norm = self
            .names
            .whole(layer, "post_norm.weight", "post_per_layer_input_norm.weight");
        Ok(Some(PerLayer {
            gate: self.linear(&gate, size, hidden)?,
            projection: self.linear(&projection, hidden, size)?,
            norm: self.norm(&norm.name, hidden)?,
        }))
    }

    /// The factor on the stream after a layer; 1 where the file has none.
    pub(super) fn layer_scale(&self, layer: usize) -> Result<f32, ModelFileError> {
        if self.config.gemma4.is_none() {
            return Ok(1.0);
        }
        let place = self.names.whole(layer, "layer_output_scale.weight", "layer_scalar");
        let scale = self.file.find_tensor(&place.name)?;
        Ok(scale.map_or(Ok(vec![1.0]), |tensor| vector(&tensor, 1))?[0])
    }

    pub(super) fn separate_experts(&self, layer: usize) -> Result<Option<SeparateExperts>, ModelFileError> {
        let config = self.config;
        let Some(experts) = config.experts.filter(|_| config.has_separate_experts()) else {
            return Ok(None);
        };
        let hidden = config.hidden_size;
        let read = |gguf: &str, hugging_face: &str, size: usize| {
            vector(
                &self.file.tensor(&self.names.whole(layer, gguf, hugging_face).name)?,
                size,
            )
        };
        let root = (hidden as f32).powf(-0.5);
        let router = read("ffn_gate_inp.scale", "router.scale", hidden)?;
        Ok(Some(SeparateExperts {
            router_norm: Norm::Rms(router.into_iter().map(|scale| scale * root).collect()),
            input_norm: Norm::Rms(read(
                "pre_ffw_norm_2.weight",
                "pre_feedforward_layernorm_2.weight",
                hidden,
            )?),
            dense_norm: read("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", hidden)?,
            output_norm: read("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", hidden)?,
            scales: read("ffn_down_exps.scale", "router.per_expert_scale", experts.num_experts)?,
        }))
    }

    fn table(&self) -> Place {
        Place::whole(self.names.of_decoder("per_layer_token_embd", "embed_tokens_per_layer"))
    }

    fn projection(&self) -> Place {
        Place::whole(
            self.names
                .of_decoder("per_layer_model_proj", "per_layer_model_projection"),
        )
    }

    fn per_layer_places(&self, layer: usize) -> [Place; 2] {
        [("inp_gate", "per_layer_input_gate"), ("proj", "per_layer_projection")]
            .map(|(gguf, hugging_face)| self.names.whole(layer, gguf, hugging_face))
    }

    /// Refuses norms that are missing, and matrices that are, or of other sizes, before any memory is taken for weights.
    pub(super) fn check_gemma4(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        if config.gemma4.is_none() {
            return Ok(());
        }
        if matches!(self.file, ModelFile::Gguf(_)) {
            self.file.tensor("rope_freqs.weight")?; // which frequencies stand still is told nowhere else
        }
        for layer in 0..config.num_layers {
            self.check_layer(config, layer)?;
        }
        let size = config.per_layer_size();
        if size == 0 {
            return Ok(());
        }
        let all = config.num_layers * size;
        self.check(&self.table(), config.vocab_size, all)?;
        self.check(&self.projection(), all, hidden)?;
        (0..config.num_layers).try_for_each(|layer| {
            let [gate, projection] = self.per_layer_places(layer);
            self.check(&gate, size, hidden)?;
            self.check(&projection, hidden, size)
        })
    }

    fn check_layer(&self, config: &ModelConfig, layer: usize) -> Result<(), ModelFileError> {
        let (hidden, query, kv) = (
            config.hidden_size,
            config.query_size_of(layer),
            config.kv_size_of(layer),
        );
        let check = |part, rows, cols| self.check(&self.names.layer(layer, part, config), rows, cols);
        let need = |part| {
            self.file
                .tensor(&self.names.layer(layer, part, config).name)
                .map(|_| ())
        };
        [Part::PostAttentionNorm, Part::PostFfnNorm, Part::QueryNorm]
            .into_iter()
            .try_for_each(need)?;
        check(Part::Query, query, hidden)?;
        check(Part::AttentionOutput, hidden, query)?;
        if config.makes_kv(layer) {
            need(Part::KeyNorm)?;
            check(Part::Key, kv, hidden)?;
            if !config.are_values_keys(layer) {
                check(Part::Value, kv, hidden)?;
            }
        }
        if config.has_experts(layer) {
            return Ok(()); // measured with the experts
        }
        let ffn = config.dense_size_of(layer);
        check(Part::Gate, ffn, hidden)?;
        check(Part::Up, ffn, hidden)?;
        check(Part::Down, hidden, ffn)
    }
}

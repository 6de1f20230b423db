//! Latent attention in a `config.json`: DeepSeek-V2 and V3, GLM-4.7-Flash.

use serde_json::Value;

use super::JsonConfig;
use crate::config::latent::sharpened;
use crate::config::{Architecture, Experts, Latent, Rating, invalid};
use crate::weights::ModelFileError;

/// The families that have it.
pub(super) const FAMILIES: [&str; 3] = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"];

/// What is read of all of them besides; what only training reads, and what layers have that predict further tokens.
pub(super) const FIELDS: &str = "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim v_head_dim \
    rope_interleave n_group topk_group topk_method scoring_func norm_topk_prob routed_scaling_factor n_shared_experts \
    first_k_dense_replace mlp_layer_types num_nextn_predict_layers num_mtp_layers ep_size seq_aux aux_loss_alpha";

impl JsonConfig<'_> {
    /// The sizes of a family that has latent attention.
    pub(super) fn latent(
        &self,
        architecture: Architecture,
        num_heads: usize,
    ) -> Result<Option<Latent>, ModelFileError> {
        if architecture != Architecture::Deepseek2 {
            return Ok(None);
        }
        if self.optional_size("num_key_value_heads")?.is_some_and(|heads| heads != num_heads) {
            return Err(invalid(format!(
                "config.json: 'num_key_value_heads' must be {num_heads}, as 'num_attention_heads' is: all heads share a latent"
            )));
        }
        let latent = Latent {
            rank: self.size("kv_lora_rank")?,
            query_rank: match self.0.get("q_lora_rank") {
                Some(Value::Null) => None,
                _ => Some(self.size("q_lora_rank")?),
            },
            plain_dims: self.size("qk_nope_head_dim")?,
            rotary_dims: self.size("qk_rope_head_dim")?,
            value_dims: self.size("v_head_dim")?,
        };
        latent.check().map(Some)
    }

    /// Factor of the scores.
    pub(super) fn latent_scale(&self, latent: &Latent) -> f32 {
        let table = self.rope_table();
        let text = |key| table.and_then(|table| table.get(key)).and_then(Value::as_str);
        let number = |key| table.and_then(|table| table.get(key)).and_then(Value::as_f64);
        let is_yarn = text("rope_type").or_else(|| text("type")) == Some("yarn");
        let factor = number("factor").filter(|_| is_yarn).unwrap_or(1.0);
        sharpened(latent.key_dims(), factor, number("mscale_all_dim").unwrap_or(0.0))
    }

    /// Whether neighbours of a head turn together.
    pub(super) fn is_rope_interleaved(&self) -> bool {
        self.truth("rope_interleave").unwrap_or(true)
    }

    /// How experts are chosen: DeepSeek-V2 by a softmax, the others by corrected sigmoids, in groups.
    pub(super) fn read_latent_router(&self, name: &str, experts: &mut Experts) -> Result<(), ModelFileError> {
        let is_v2 = name == "deepseek_v2";
        let num_groups = self.optional_size("n_group")?.unwrap_or(1);
        let (rating, methods): (_, &[&str]) = match is_v2 {
            true if num_groups <= 1 => ("softmax", &["greedy", "group_limited_greedy"]),
            true => ("softmax", &["greedy"]),
            false => ("sigmoid", &["noaux_tc"]),
        };
        self.expect_text("scoring_func", &[rating])?;
        self.expect_text("topk_method", methods)?;
        if is_v2 && self.truth("norm_topk_prob") == Some(true) {
            let text = "config.json: 'norm_topk_prob' must be false for deepseek_v2: its reference does not read it";
            return Err(invalid(text.to_owned()));
        }
        experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(1.0) as f32;
        experts.shared_size = self.shared_size("n_shared_experts", if is_v2 { 2 } else { 1 })?;
        if !is_v2 {
            experts.rating = Rating::Sigmoid;
            experts.num_groups = num_groups;
            experts.num_used_groups = self.optional_size("topk_group")?.unwrap_or(1);
        }
        Ok(())
    }

    fn expect_text(&self, key: &str, expected: &[&str]) -> Result<(), ModelFileError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if value.as_str().is_some_and(|text| expected.contains(&text)) => Ok(()),
            Some(value) => Err(invalid(format!(
                "config.json: '{key}' {value} is not implemented here; expected {}",
                expected.join(" or ")
            ))),
        }
    }

    /// Which layers have no experts: those that `mlp_layer_types` calls dense, else so many first ones.
    pub(super) fn leading_dense_layers(&self, default: usize, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        if let Some(types) = self.0.get("mlp_layer_types").filter(|value| !value.is_null()) {
            let is_dense = |value: &Value| match value.as_str() {
                Some("dense") => Some(true),
                Some("sparse") => Some(false),
                _ => None,
            };
            let layers = types.as_array().and_then(|types| types.iter().map(is_dense).collect());
            return layers.ok_or_else(|| {
                invalid("config.json: 'mlp_layer_types' must have dense or sparse for each layer".to_owned())
            });
        }
        let first = self.optional_size("first_k_dense_replace")?.unwrap_or(default);
        Ok((0..num_layers).map(|layer| layer < first).collect())
    }
}

//! Hunyuan's published `config.json`: numbers that it gives each layer, and what it says that is so in all of its models.

use serde_json::Value;

use super::JsonConfig;
use crate::config::{Architecture, invalid};
use crate::weights::ModelFileError;

/// What is read of it besides; what only training, other parts of its models, or attention that it has not, read.
pub(super) const FIELDS: &str = "eod_token_id attention_head_dim num_shared_expert use_qk_norm norm_topk_prob routed_scaling_factor \
    use_mixed_mlp_moe moe_layer_num_skipped use_cla cla_share_factor use_mla kv_lora_rank q_lora_rank qk_rope_head_dim \
    qk_nope_head_dim v_head_dim use_rotary_pos_emb norm_type group_limited_greedy position_embedding_xdrope moe_drop_tokens \
    moe_random_routing_dropped_token capacity_factor add_classification_head class_num pool_type dense_list pad_id \
    org_vocab_size num_media_embeds mask_init_id text_start_id text_end_id im_start_id im_end_id im_newline_id image_token_id \
    video_start_id video_end_id skip_cls_token";

/// What is another model with another value than these; a field that is not there is as they are.
const EXPECTED: [(&str, &[&str]); 13] = [
    ("use_qk_norm", &["true"]),
    ("use_mixed_mlp_moe", &["true"]),
    ("use_rotary_pos_emb", &["true"]),
    ("norm_topk_prob", &["true"]),
    ("norm_type", &["\"rms\"", "\"hf_rms\""]),
    ("use_cla", &["false"]),
    ("use_mla", &["false"]),
    ("group_limited_greedy", &["false"]),
    ("position_embedding_xdrope", &["false"]),
    ("moe_random_routing_dropped_token", &["false"]),
    ("add_classification_head", &["false"]),
    ("moe_layer_num_skipped", &["0"]),
    ("routed_scaling_factor", &["1.0", "1"]),
];

impl JsonConfig<'_> {
    /// Refuses what would change a Hunyuan; nothing of other families. One without experts may say anything of them.
    pub(super) fn check_hunyuan(&self, architecture: Architecture) -> Result<(), ModelFileError> {
        if !matches!(architecture, Architecture::HunyuanDense | Architecture::HunyuanMoe) {
            return Ok(());
        }
        let is_dense = architecture == Architecture::HunyuanDense;
        let size = self.size("intermediate_size")?;
        match self.size_of_layers("moe_intermediate_size")? {
            Some(other) if other != size && !is_dense => {
                return Err(invalid(format!(
                    "config.json: 'moe_intermediate_size' {other} must be 'intermediate_size', {size}"
                )));
            }
            _ => {}
        }
        for (field, expected) in EXPECTED {
            let found = self.0.get(field).filter(|value| !value.is_null()).map(Value::to_string);
            let is_of_experts = field.contains("moe");
            if !(is_dense && is_of_experts) && found.is_some_and(|found| !expected.contains(&found.as_str())) {
                return Err(invalid(format!(
                    "config.json: '{field}' must be {} for {}",
                    expected[0],
                    architecture.name()
                )));
            }
        }
        Ok(())
    }

    /// How many experts all tokens share: one where nothing is said.
    pub(super) fn hunyuan_shared_size(&self) -> Result<usize, ModelFileError> {
        let count = self.size_of_layers("num_shared_expert")?.unwrap_or(1);
        Ok(count.saturating_mul(self.size("intermediate_size")?))
    }

    /// A number that is one for all layers, or in Hunyuan's files a list of the same for each.
    pub(super) fn size_of_layers(&self, key: &str) -> Result<Option<usize>, ModelFileError> {
        let is_hunyuan = self.text("model_type").is_some_and(|name| name.starts_with("hunyuan"));
        let Some(Value::Array(layers)) = self.0.get(key).filter(|_| is_hunyuan) else {
            return self.optional_size(key);
        };
        let (count, num_layers) = (layers.len(), self.size("num_hidden_layers")?);
        if count != num_layers {
            return Err(invalid(format!(
                "config.json: '{key}' has numbers for {count} layers; expected one for each of {num_layers}"
            )));
        }
        let sizes: Option<Vec<u64>> = layers.iter().map(Value::as_u64).collect();
        match sizes.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|size| size == first) => Ok(usize::try_from(*first).ok()),
            Some(_) => Err(invalid(format!(
                "config.json: '{key}' differs between layers, which is not implemented"
            ))),
            None => Err(invalid(format!("config.json: '{key}' must be whole numbers"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use crate::config::ModelConfig;

    /// What the published `config.json` of Hunyuan-A13B says of its sizes, of 3 layers.
    fn published(changes: Value) -> Result<ModelConfig, String> {
        let fields = json!({
            "model_type": "hunyuan_v1_moe", "vocab_size": 128_167, "hidden_size": 4_096, "intermediate_size": 3_072,
            "moe_intermediate_size": [3_072, 3_072, 3_072], "num_hidden_layers": 3, "num_attention_heads": 32,
            "num_key_value_heads": 8, "attention_head_dim": 128, "num_experts": 64, "moe_topk": [8, 8, 8],
            "num_shared_expert": [1, 1, 1], "use_mixed_mlp_moe": true, "use_cla": false, "use_qk_norm": true,
            "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
            "rope_theta": 10_000.0, "rope_scaling": {"alpha": 1_000.0, "factor": 1.0, "type": "dynamic"},
        });
        let mut fields: Map<String, Value> = fields.as_object().expect("an object").clone();
        fields.extend(changes.as_object().expect("an object").clone());
        ModelConfig::from_hugging_face(&fields, None).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_of_each_layer_are_one_where_they_are_the_same() {
        let config = published(json!({})).expect("a model that is supported");
        let experts = config.experts.expect("experts");
        assert_eq!(
            (experts.num_used, experts.shared_size, config.ffn_size),
            (8, 3_072, 3_072)
        );
        let two = published(json!({"num_shared_expert": [2, 2, 2]})).expect("two experts that are shared");
        assert_eq!(two.experts.expect("experts").shared_size, 6_144);
    }

    #[test]
    fn layers_of_other_numbers_are_refused_by_name() {
        for (changes, said) in [
            (json!({"moe_topk": [8, 4, 8]}), "'moe_topk' differs between layers"),
            (
                json!({"moe_topk": [8, 8]}),
                "'moe_topk' has numbers for 2 layers; expected one for each of 3",
            ),
            (
                json!({"num_shared_expert": [1, 1, "1"]}),
                "'num_shared_expert' must be whole numbers",
            ),
            (
                json!({"moe_intermediate_size": [3_072, 1_024, 3_072]}),
                "'moe_intermediate_size' differs between layers",
            ),
            (
                json!({"moe_intermediate_size": 1_024}),
                "'moe_intermediate_size' 1024 must be 'intermediate_size', 3072",
            ),
            (json!({"use_cla": true}), "'use_cla' must be false for hunyuan-moe"),
            (
                json!({"use_qk_norm": false}),
                "'use_qk_norm' must be true for hunyuan-moe",
            ),
        ] {
            let error = published(changes).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}

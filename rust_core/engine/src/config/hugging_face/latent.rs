//! Latent attention in a `config.json`: DeepSeek-V2 and V3, GLM-4.7-Flash, Youtu-LLM.

use serde_json::Value;

use super::{JsonConfig, kimi};
use crate::config::latent::sharpened;
use crate::config::{Architecture, Experts, Latent, Rating, invalid};
use crate::weights::{ModelFileError, clipped};

/// The families that have it.
pub(super) const FAMILIES: [&str; 7] = [
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "youtu",
    "minicpm3",
    MISTRAL4,
    kimi::NAME,
];

/// Mistral Small 4's name.
pub(super) const MISTRAL4: &str = "mistral4";

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
        if !architecture.has_latent_attention() {
            return Ok(None);
        }
        if self
            .optional_size("num_key_value_heads")?
            .is_some_and(|heads| heads != num_heads)
        {
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
            value_dims: match architecture {
                // Where nothing is said, heads share the stream.
                Architecture::MiniCpm3 => {
                    let shared = self.size("hidden_size")? / num_heads.max(1);
                    self.optional_size("v_head_dim")?.unwrap_or(shared)
                }
                _ => self.size("v_head_dim")?,
            },
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
        if name == MISTRAL4 {
            return self.read_mistral4_router(experts);
        }
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

    /// Mistral Small 4's experts are chosen by a softmax, in groups.
    fn read_mistral4_router(&self, experts: &mut Experts) -> Result<(), ModelFileError> {
        self.expect_text("scoring_func", &["softmax"])?;
        experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(1.0) as f32;
        experts.shared_size = self.shared_size("n_shared_experts", 1)?;
        experts.num_groups = self.optional_size("n_group")?.unwrap_or(1);
        experts.num_used_groups = self.optional_size("topk_group")?.unwrap_or(1);
        Ok(())
    }

    pub(super) fn expect_text(&self, key: &str, expected: &[&str]) -> Result<(), ModelFileError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if value.as_str().is_some_and(|text| expected.contains(&text)) => Ok(()),
            Some(value) => Err(invalid(format!(
                "config.json: '{key}' {} is not implemented here; expected {}",
                clipped(&value.to_string()),
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

#[cfg(test)]
mod tests {
    use pyagent_kernels::attention::{BLOCK_TOKENS, KvType};
    use serde_json::{Map, Value, json};

    use crate::config::ModelConfig;
    use crate::kv::KvPages;

    /// What the published `config.json` of GLM-4.7-Flash says of its sizes.
    fn flash() -> Map<String, Value> {
        let fields = json!({
            "model_type": "glm4_moe_lite", "vocab_size": 154_880, "hidden_size": 2_048, "intermediate_size": 10_240,
            "moe_intermediate_size": 1_536, "num_hidden_layers": 47, "num_attention_heads": 20,
            "num_key_value_heads": 20, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
            "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
            "norm_topk_prob": true, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
            "kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
            "v_head_dim": 256, "max_position_embeddings": 202_752, "rope_theta": 1_000_000, "rope_scaling": null,
            "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": false,
            "tie_word_embeddings": false,
        });
        fields.as_object().expect("an object").clone()
    }

    fn changed(key: &str, value: Value) -> Map<String, Value> {
        let mut fields = flash();
        fields.insert(key.to_owned(), value);
        fields
    }

    /// GLM-4.7-Flash: 54,144 bytes a token in bfloat16, where keys and values of its 20 heads would take 962,560.
    #[test]
    fn the_cache_holds_one_latent_a_token() {
        let config = ModelConfig::from_hugging_face(&flash(), None).expect("a model that is supported");
        let pages = KvPages::of(&config, KvType::Bf16);
        assert_eq!(pages.block_bytes() / BLOCK_TOKENS, 47 * (512 + 64) * 2);
        let latent = config.latent.expect("latent attention");
        assert_eq!(47 * 20 * (latent.key_dims() + latent.value_dims) * 2, 962_560);
        assert!((config.attention_scale - 1.0 / 16.0).abs() < 1e-9);
        assert_eq!(config.dense_layers.iter().filter(|is_dense| **is_dense).count(), 1);
    }

    /// YaRN's sharpness scales scores by its square where the file gives it a weight for them.
    #[test]
    fn scores_are_scaled_by_yarn() {
        let table = |weight: f64| {
            json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 40.0, "mscale": weight, "mscale_all_dim": weight,
                "original_max_position_embeddings": 4_096})
        };
        for (weight, sharpness) in [
            (0.0, 1.0),
            (1.0, 1.0 + 0.1 * 40.0_f64.ln()),
            (0.707, 1.0 + 0.0707 * 40.0_f64.ln()),
        ] {
            let config = ModelConfig::from_hugging_face(&changed("rope_parameters", table(weight)), None);
            let scale = f64::from(config.expect("a model that is supported").attention_scale);
            assert!((scale - sharpness * sharpness / 16.0).abs() < 1e-6, "{weight}: {scale}");
        }
    }

    /// What the reference does not compute, or no kernel does, is refused by its name.
    #[test]
    fn other_variants_are_refused_by_name() {
        for (key, value, said) in [
            ("index_topk", json!(2_048), "'index_topk' is not implemented"),
            (
                "partial_rotary_factor",
                json!(0.5),
                "'partial_rotary_factor' is not implemented",
            ),
            ("moe_layer_freq", json!(2), "'moe_layer_freq' is not implemented"),
            (
                "topk_method",
                json!("greedy"),
                "'topk_method' \"greedy\" is not implemented here; expected noaux_tc",
            ),
            (
                "scoring_func",
                json!("softmax"),
                "'scoring_func' \"softmax\" is not implemented here; expected sigmoid",
            ),
            ("num_key_value_heads", json!(4), "'num_key_value_heads' must be 20"),
            (
                "sliding_window",
                json!(512),
                "'sliding_window' is not implemented for glm4_moe_lite",
            ),
            (
                "mlp_layer_types",
                json!(["dense", "other"]),
                "'mlp_layer_types' must have dense or sparse",
            ),
            (
                "mlp_layer_types",
                json!(["dense"]),
                "the kinds of 1 layers are told, of 47",
            ),
            (
                "kv_lora_rank",
                json!(520),
                "a latent has 520 numbers, which is not supported",
            ),
            ("kv_lora_rank", json!(null), "lacks 'kv_lora_rank'"),
            ("q_lora_rank", json!(0), "numbers of a compressed query are 0"),
            (
                "qk_rope_head_dim",
                json!(72),
                "a latent and a rotated key has 584 numbers",
            ),
            ("v_head_dim", json!("256"), "'v_head_dim' must be a whole number"),
            (
                "model_type",
                json!("deepseek_v2"),
                "'topk_method' \"noaux_tc\" is not implemented here; expected greedy",
            ),
            (
                "model_type",
                json!("deepseek_v32"),
                "its attention sees the tokens that an indexer chooses",
            ),
        ] {
            let error = ModelConfig::from_hugging_face(&changed(key, value), None).expect_err(said);
            assert!(error.to_string().contains(said), "{key}: {error}");
        }
    }

    /// DeepSeek-V2's softmax has no groups here, and its weights are not divided by their sum.
    #[test]
    fn groups_of_a_softmax_are_refused() {
        let v2 = |changes: Value| {
            let mut fields = changed("model_type", json!("deepseek_v2"));
            fields.insert("norm_topk_prob".to_owned(), json!(false));
            fields.insert("topk_method".to_owned(), json!("group_limited_greedy"));
            fields.extend(changes.as_object().expect("an object").clone());
            ModelConfig::from_hugging_face(&fields, None).map_err(|error| error.to_string())
        };
        let experts = v2(json!({}))
            .expect("a model that is supported")
            .experts
            .expect("experts");
        assert!(!experts.is_renormalised && experts.shared_size == 1_536);
        let said = v2(json!({"n_group": 8})).expect_err("groups");
        assert!(
            said.contains("'topk_method' \"group_limited_greedy\" is not implemented here"),
            "{said}"
        );
        let said = v2(json!({"norm_topk_prob": true})).expect_err("a sum");
        assert!(
            said.contains("'norm_topk_prob' must be false for deepseek_v2"),
            "{said}"
        );
    }
}

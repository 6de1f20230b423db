//! Latent attention in a `config.json`: DeepSeek-V2 and V3, GLM-4.7-Flash, Youtu-LLM; with an indexer, DeepSeek-V3.2 and GLM-5.

use pyagent_kernels::elementwise::RopeStyle;
use serde_json::Value;

use super::{JsonConfig, kimi};
use crate::config::latent::sharpened;
use crate::config::{Architecture, Experts, Indexer, Latent, MOST_LAYERS, Rating, invalid};
use crate::weights::{ModelFileError, clipped};

/// The families that have it.
pub(super) const FAMILIES: [&str; 10] = [
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "youtu",
    DEEPSEEK_V32,
    GLM_DSA,
    "minicpm3",
    MISTRAL4,
    kimi::NAME,
    AXK1,
];

/// A.X K1's name.
pub(super) const AXK1: &str = "axk1";
/// Mistral Small 4's name.
pub(super) const MISTRAL4: &str = "mistral4";

/// DeepSeek-V3.2's name, and GLM-5's: those with an indexer.
pub(super) const DEEPSEEK_V32: &str = "deepseek_v32";
pub(super) const GLM_DSA: &str = "glm_moe_dsa";
/// What is read of these besides.
pub(super) const OF_DEEPSEEK_V32: &str = "index_topk index_n_heads index_head_dim";
pub(super) const OF_GLM_DSA: &str = "index_topk index_n_heads index_head_dim indexer_types index_topk_pattern index_topk_freq \
    index_skip_topk_offset indexer_rope_interleave index_share_for_mtp_iteration";
/// The first layers of a GLM-5 that all have an indexer, where only some of the later ones have.
const GLM_OFFSET: usize = 2;

/// What routed experts' weights are multiplied by where nothing is said.
const DEEPSEEK_WEIGHT_SCALE: f64 = 2.5;
const GLM_LITE_WEIGHT_SCALE: f64 = 1.8;

/// Whether a family has an indexer.
pub(super) fn has_indexer(name: &str) -> bool {
    [DEEPSEEK_V32, GLM_DSA].contains(&name)
}

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
        name: &str,
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
            indexer: match name {
                DEEPSEEK_V32 => Some(self.read_indexer(RopeStyle::Neox)?),
                GLM_DSA => Some(self.read_indexer(RopeStyle::Interleaved)?),
                _ => None,
            },
        };
        latent.check().map(Some)
    }

    /// The indexer of a family that has one; in each its rotated pairs lie in a way of their own.
    fn read_indexer(&self, rope_style: RopeStyle) -> Result<Indexer, ModelFileError> {
        if self.truth("indexer_rope_interleave") == Some(false) {
            let text = "config.json: 'indexer_rope_interleave' must be true: its reference does not read it";
            return Err(invalid(text.to_owned()));
        }
        Ok(Indexer {
            num_heads: self.size("index_n_heads")?,
            key_dims: self.size("index_head_dim")?,
            num_picked: self.size("index_topk")?,
            rope_style,
        })
    }

    /// Which layers have an indexer, in a family that has some: all of DeepSeek-V3.2; of GLM-5 those of a list or a pattern, or
    /// one of so many after the first.
    pub(super) fn indexed_layers(
        &self,
        name: &str,
        latent: Option<&Latent>,
        num_layers: usize,
    ) -> Result<Vec<bool>, ModelFileError> {
        if latent.is_none_or(|latent| latent.indexer.is_none()) {
            return Ok(Vec::new());
        }
        let layers = 0..num_layers.min(MOST_LAYERS);
        if name == DEEPSEEK_V32 {
            return Ok(vec![true; layers.len()]);
        }
        for key in ["indexer_types", "index_topk_pattern"] {
            let Some(kinds) = self.0.get(key).filter(|value| !value.is_null()) else {
                continue;
            };
            let kind = |kind: &str| match kind {
                "full" | "F" => Some(true),
                "shared" | "S" => Some(false),
                _ => None,
            };
            let kinds = match kinds {
                Value::String(pattern) => pattern.split("").filter(|part| !part.is_empty()).map(kind).collect(),
                Value::Array(kinds) => kinds.iter().map(|value| kind(value.as_str()?)).collect(),
                _ => None,
            };
            return kinds
                .ok_or_else(|| invalid(format!("config.json: '{key}' must have full or shared for each layer")));
        }
        let every = self.optional_size("index_topk_freq")?.unwrap_or(1).max(1);
        let offset = self.optional_size("index_skip_topk_offset")?.unwrap_or(GLM_OFFSET);
        Ok(layers
            .map(|layer| (layer + 1).saturating_sub(offset).is_multiple_of(every))
            .collect())
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
        let scale = match name {
            "deepseek_v3" | DEEPSEEK_V32 | GLM_DSA | AXK1 => DEEPSEEK_WEIGHT_SCALE,
            "glm4_moe_lite" => GLM_LITE_WEIGHT_SCALE,
            _ => 1.0,
        };
        experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(scale) as f32;
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

    /// A file that leaves the factor out has its family's, as transformers has it.
    #[test]
    fn factor_of_routed_experts_is_the_familys_where_nothing_is_said() {
        for (family, scale) in [("glm4_moe_lite", 1.8), ("deepseek_v3", 2.5), ("axk1", 2.5)] {
            let mut fields = changed("model_type", family.into());
            fields.remove("routed_scaling_factor");
            let config = ModelConfig::from_hugging_face(&fields, None).expect("a model that is supported");
            let found = config.experts.expect("experts").weight_scale;
            assert!((found - scale).abs() < 1e-6, "{family}: {found}");
        }
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
            ("model_type", json!("deepseek_v32"), "config.json lacks 'index_n_heads'"),
        ] {
            let error = ModelConfig::from_hugging_face(&changed(key, value), None).expect_err(said);
            assert!(error.to_string().contains(said), "{key}: {error}");
        }
    }

    /// GLM-5, as its published `config.json` has it, with what is said of its indexer beside.
    fn glm5(more: Value) -> Result<ModelConfig, String> {
        let mut fields = flash();
        let own = json!({
            "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
            "q_lora_rank": 2_048, "first_k_dense_replace": 3, "index_topk": 2_048, "index_n_heads": 32,
            "index_head_dim": 128, "indexer_rope_interleave": true, "moe_layer_freq": 1, "rope_interleave": true,
        });
        for table in [own, more] {
            fields.extend(table.as_object().expect("an object").clone());
        }
        ModelConfig::from_hugging_face(&fields, None).map_err(|error| error.to_string())
    }

    /// Layers with an indexer are those of a list, of a pattern, or one of so many; others keep no index keys.
    #[test]
    fn layers_with_an_indexer_are_told_in_three_ways() {
        let all = glm5(json!({})).expect("a model that is supported");
        assert_eq!(all.indexed_layers, vec![true; 78]);
        assert_eq!(all.num_picked(), Some(2_048));
        assert_eq!(
            KvPages::of(&all, KvType::Bf16).block_bytes() / BLOCK_TOKENS,
            78 * (512 + 64 + 128) * 2
        );
        let expected: Vec<bool> = (0..78_usize)
            .map(|layer| layer < 2 || (layer - 1).is_multiple_of(4))
            .collect();
        let letters: String = expected.iter().map(|full| if *full { 'F' } else { 'S' }).collect();
        let words: Vec<&str> = expected
            .iter()
            .map(|full| if *full { "full" } else { "shared" })
            .collect();
        for told in [
            json!({"index_topk_freq": 4}),
            json!({"index_topk_freq": 4, "index_skip_topk_offset": 2}),
            json!({"index_topk_pattern": letters}),
            json!({"indexer_types": words, "index_topk_freq": 1}),
        ] {
            let some = glm5(told).expect("a model that is supported");
            assert_eq!(some.indexed_layers, expected);
            assert!(some.indexer(0).is_some() && some.indexer(2).is_none());
        }
    }

    /// What an indexer's fields may not say, by name.
    #[test]
    fn indexers_of_other_kinds_are_refused_by_name() {
        for (more, said) in [
            (json!({"index_topk": 0}), "tokens that the indexer picks are 0"),
            (json!({"index_topk": null}), "lacks 'index_topk'"),
            (json!({"index_n_heads": 24}), "an indexer has 24 heads"),
            (json!({"index_head_dim": 72}), "an index key has 72 numbers"),
            (json!({"q_lora_rank": null}), "an indexer needs compressed queries"),
            (
                json!({"indexer_types": ["full", "other"]}),
                "'indexer_types' must have full or shared",
            ),
            (
                json!({"index_topk_pattern": "FS"}),
                "the indexers of 2 layers are told, of 78",
            ),
            (
                json!({"index_skip_topk_offset": 0, "index_topk_freq": 2}),
                "the first layer has no indexer",
            ),
            (
                json!({"indexer_rope_interleave": false}),
                "'indexer_rope_interleave' must be true",
            ),
            (json!({"index_kpool": 4}), "'index_kpool' is not implemented"),
        ] {
            let error = glm5(more).expect_err(said);
            assert!(error.contains(said), "{error}");
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

//! The experts of a `config.json`'s model: what each family calls them, and what it leaves out.

use serde_json::Value;

use super::nemotron::Kind;
use super::{JsonConfig, cohere2_moe, gemma4, jamba, kimi, latent, llama4, minimax, nemotron};
use crate::config::{Experts, MOST_LAYERS, Rating, invalid};
use crate::weights::ModelFileError;

/// What only training reads.
const OF_ROUTERS: &str = "output_router_logits router_aux_loss_coef router_jitter_noise";

/// EXAONE's factor on experts' weights, where nothing is said.
const EXAONE_WEIGHT_SCALE: f64 = 2.5;
/// Hunyuan 3's.
const HY_V3_WEIGHT_SCALE: f64 = 2.826;

/// What a family calls its experts' numbers.
struct Family {
    name: &'static str,
    /// Experts of a layer: the first of these names that is there.
    count: &'static str,
    /// Experts of a token.
    used: &'static str,
    /// Width inside an expert.
    size: &'static str,
    /// What is read besides.
    more: &'static str,
    /// Whether weights are divided by their sum, where the file does not say.
    is_renormalised: bool,
}

const FAMILIES: [Family; 38] = [
    Family {
        name: llama4::NAME,
        count: "num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: llama4::OF_EXPERTS,
        is_renormalised: false,
    },
    Family {
        name: nemotron::NAME,
        count: "n_routed_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts moe_shared_expert_intermediate_size",
        is_renormalised: true,
    },
    Family {
        name: jamba::NAME,
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: jamba::OF_EXPERTS,
        is_renormalised: false,
    },
    Family {
        name: "mixtral",
        count: "num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: true,
    },
    Family {
        name: minimax::NAME,
        count: "num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: true,
    },
    Family {
        name: "qwen3_moe",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob",
        is_renormalised: false,
    },
    Family {
        name: "mellum",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob mlp_layer_types num_nextn_predict_layers num_mtp_layers mtp_layer_types mtp_mlp_layer_types",
        is_renormalised: true,
    },
    Family {
        name: "olmoe",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "norm_topk_prob",
        is_renormalised: false,
    },
    Family {
        name: "gpt_oss",
        count: "num_local_experts num_experts",
        used: "num_experts_per_tok experts_per_token",
        size: "intermediate_size",
        more: "swiglu_alpha swiglu_limit initial_context_length",
        is_renormalised: true,
    },
    Family {
        name: "qwen2_moe",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob shared_expert_intermediate_size decoder_sparse_step mlp_only_layers",
        is_renormalised: false,
    },
    Family {
        name: "glm4_moe",
        count: "n_routed_experts num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts first_k_dense_replace \
               num_nextn_predict_layers num_mtp_layers use_qk_norm partial_rotary_factor",
        is_renormalised: true,
    },
    Family {
        name: "ernie4_5_moe",
        count: "moe_num_experts num_experts num_local_experts",
        used: "moe_k num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "moe_num_shared_experts moe_layer_start_index moe_layer_end_index moe_layer_interval moe_norm_min \
               moe_capacity moe_gate moe_use_aux_free",
        is_renormalised: true,
    },
    Family {
        name: "hunyuan_v1_moe",
        count: "num_experts num_local_experts",
        used: "moe_topk num_experts_per_tok",
        size: "intermediate_size",
        more: "moe_intermediate_size num_shared_expert",
        is_renormalised: true,
    },
    of_latent_attention("deepseek_v2", false),
    of_latent_attention("deepseek_v3", true),
    of_latent_attention("glm4_moe_lite", true),
    of_latent_attention(latent::DEEPSEEK_V32, true),
    of_latent_attention(latent::GLM_DSA, true),
    of_latent_attention(latent::MISTRAL4, true),
    of_latent_attention(kimi::NAME, true),
    Family {
        name: "lfm2_moe",
        count: "num_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob routed_scaling_factor num_dense_layers",
        is_renormalised: true,
    },
    Family {
        name: "qwen3_next",
        more: "norm_topk_prob shared_expert_intermediate_size decoder_sparse_step mlp_only_layers",
        ..QWEN35
    },
    QWEN35,
    Family {
        name: gemma4::NAME,
        count: "num_experts",
        used: "top_k_experts",
        size: "moe_intermediate_size",
        more: "",
        is_renormalised: true,
    },
    Family {
        name: GRANITE,
        count: "num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: true,
    },
    Family {
        name: "hy_v3",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "num_shared_experts router_scaling_factor mlp_layer_types first_k_dense_replace",
        is_renormalised: true,
    },
    Family {
        name: cohere2_moe::NAME,
        count: "num_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: cohere2_moe::OF_EXPERTS,
        is_renormalised: true,
    },
    Family {
        name: "flex_olmo",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "norm_topk_prob",
        is_renormalised: false,
    },
    of_latent_attention(latent::AXK1, true),
    of_granite("granitemoe_swa"),
    of_granite("granitemoe"),
    of_granite("granitemoeshared"),
    Family {
        name: "dots1",
        count: "n_routed_experts num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts first_k_dense_replace \
               scoring_func topk_method",
        is_renormalised: false,
    },
    Family {
        name: "afmoe",
        count: "num_experts num_local_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "num_shared_experts num_dense_layers route_scale n_group topk_group num_expert_groups num_limited_groups",
        is_renormalised: true,
    },
    Family {
        name: "exaone_moe",
        count: "num_experts num_local_experts n_routed_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob n_group topk_group routed_scaling_factor num_shared_experts first_k_dense_replace \
               mlp_layer_types num_nextn_predict_layers scoring_func topk_method",
        is_renormalised: true,
    },
    Family {
        name: "solar_open",
        count: "n_routed_experts num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: "norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts first_k_dense_replace \
               partial_rotary_factor num_nextn_predict_layers intermediate_size mlp_layer_types",
        is_renormalised: true,
    },
    Family {
        name: "phimoe",
        count: "num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: false,
    },
    Family {
        name: "minimax_m2",
        count: "num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: true,
    },
];

const fn of_granite(name: &'static str) -> Family {
    Family {
        name,
        count: "num_local_experts",
        used: "num_experts_per_tok",
        size: "intermediate_size",
        more: "",
        is_renormalised: true,
    }
}

const GRANITE: &str = "granitemoehybrid";

const QWEN35: Family = Family {
    name: "qwen3_5_moe_text",
    count: "num_experts",
    used: "num_experts_per_tok",
    size: "moe_intermediate_size",
    more: "shared_expert_intermediate_size",
    is_renormalised: true,
};

const fn of_latent_attention(name: &'static str, is_renormalised: bool) -> Family {
    Family {
        name,
        count: "n_routed_experts num_local_experts num_experts",
        used: "num_experts_per_tok",
        size: "moe_intermediate_size",
        more: latent::FIELDS,
        is_renormalised,
    }
}

fn family(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

/// The fields that are read of a family's experts, or change nothing of them.
pub(super) fn fields(name: &str) -> [&'static str; 6] {
    let of_indexer = match name {
        latent::DEEPSEEK_V32 => latent::OF_DEEPSEEK_V32,
        latent::GLM_DSA => latent::OF_GLM_DSA,
        _ => "",
    };
    family(name).map_or([""; 6], |family| {
        [
            family.count,
            family.used,
            family.size,
            family.more,
            of_indexer,
            OF_ROUTERS,
        ]
    })
}

impl JsonConfig<'_> {
    /// The experts of a family that has any.
    pub(super) fn experts(&self, name: &str) -> Result<Option<Experts>, ModelFileError> {
        let Some(family) = family(name) else {
            return Ok(None);
        };
        if name == GRANITE && self.optional_size(family.count)?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        if name == jamba::NAME && self.first_size(family.count)? <= 1 {
            return Ok(None);
        }
        if name == gemma4::NAME && self.truth("enable_moe_block") != Some(true) {
            return Ok(None);
        }
        if name == nemotron::NAME && !self.kinds()?.contains(&Kind::Experts) {
            return Ok(None);
        }
        if name == "exaone_moe" {
            self.expect_text("scoring_func", &["sigmoid"])?;
            self.expect_text("topk_method", &["noaux_tc"])?;
        }
        let mut experts = Experts::of(self.first_size(family.count)?, self.first_size(family.used)?);
        experts.is_renormalised = match self.truth("norm_topk_prob") {
            Some(is_renormalised) if family.more.contains("norm_topk_prob") => is_renormalised,
            _ => family.is_renormalised,
        };
        match name {
            "qwen2_moe" | "qwen3_next" | "qwen3_5_moe_text" => {
                experts.shared_size = self.size("shared_expert_intermediate_size")?;
                experts.is_shared_gated = true;
            }
            "glm4_moe" | "dots1" | "solar_open" | "exaone_moe" => {
                let scale = if name == "exaone_moe" { EXAONE_WEIGHT_SCALE } else { 1.0 };
                experts.rating = Rating::Sigmoid;
                experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(scale) as f32;
                experts.num_groups = self.optional_size("n_group")?.unwrap_or(1);
                experts.num_used_groups = self.optional_size("topk_group")?.unwrap_or(1);
                let default = usize::from(name != "dots1");
                let count = if name == "exaone_moe" {
                    "num_shared_experts"
                } else {
                    "n_shared_experts"
                };
                experts.shared_size = self.shared_size(count, default)?;
            }
            "afmoe" => self.read_afmoe_router(&mut experts)?,
            "hy_v3" => {
                experts.rating = Rating::Sigmoid;
                experts.weight_scale = self.number("router_scaling_factor").unwrap_or(HY_V3_WEIGHT_SCALE) as f32;
                experts.shared_size = self.shared_size("num_shared_experts", 1)?;
            }
            cohere2_moe::NAME => self.read_cohere2_moe_router(&mut experts)?,
            llama4::NAME => {
                experts.rating = Rating::Sigmoid;
                experts.weighs_inputs = true;
                experts.shared_size = self.size("intermediate_size")?;
            }
            nemotron::NAME => {
                experts.rating = Rating::Sigmoid;
                experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(1.0) as f32;
                experts.num_groups = self.optional_size("n_group")?.unwrap_or(1);
                experts.num_used_groups = self.optional_size("topk_group")?.unwrap_or(1);
                experts.shared_size = self.size("moe_shared_expert_intermediate_size")?;
            }
            _ if latent::FAMILIES.contains(&name) => self.read_latent_router(name, &mut experts)?,
            "lfm2_moe" => {
                experts.rating = Rating::Sigmoid;
                experts.weight_scale = self.number("routed_scaling_factor").unwrap_or(1.0) as f32;
            }
            "ernie4_5_moe" => experts.shared_size = self.shared_size("moe_num_shared_experts", 2)?,
            "minimax_m2" => experts.rating = Rating::Sigmoid,
            "phimoe" => {
                self.expect_jitter()?;
                experts.rating = Rating::InTurn;
            }
            "granitemoeshared" | "granitemoe_swa" => {
                experts.shared_size = self.optional_size("shared_intermediate_size")?.unwrap_or(0);
            }
            GRANITE => experts.shared_size = self.size("shared_intermediate_size")?,
            gemma4::NAME => experts.shared_size = self.size("intermediate_size")?,
            "hunyuan_v1_moe" => experts.shared_size = self.hunyuan_shared_size()?,
            _ => {}
        }
        if self
            .dense_layers(name, self.size("num_hidden_layers")?)?
            .contains(&true)
        {
            experts.dense_size = match name {
                llama4::NAME => self.size("intermediate_size_mlp")?,
                cohere2_moe::NAME => self.cohere2_moe_dense_size()?,
                _ => self.size("intermediate_size")?,
            };
        }
        Ok(Some(experts))
    }

    /// Refuses a Phi-3.5-MoE of which other experts are far below the best.
    fn expect_jitter(&self) -> Result<(), ModelFileError> {
        match self.number("router_jitter_noise") {
            Some(jitter) if jitter != Experts::JITTER => Err(invalid(format!(
                "config.json: 'router_jitter_noise' {jitter} is not implemented; expected {}",
                Experts::JITTER
            ))),
            _ => Ok(()),
        }
    }

    /// Trinity's experts: by corrected sigmoids, all in one group.
    fn read_afmoe_router(&self, experts: &mut Experts) -> Result<(), ModelFileError> {
        self.expect_text("score_func", &["sigmoid"])?;
        for (key, expected) in [
            ("n_group", 1),
            ("topk_group", 1),
            ("num_expert_groups", 1),
            ("num_limited_groups", 1),
        ] {
            if let Some(found) = self.optional_size(key)?.filter(|found| *found != expected) {
                return Err(invalid(format!(
                    "config.json: '{key}' {found} is not implemented for afmoe; expected 1"
                )));
            }
        }
        if self.truth("route_norm") == Some(false) {
            return Err(invalid("config.json: 'route_norm' must be true for afmoe".to_owned()));
        }
        experts.rating = Rating::Sigmoid;
        experts.weight_scale = self.number("route_scale").unwrap_or(1.0) as f32;
        experts.shared_size = self.shared_size("num_shared_experts", 2)?;
        Ok(())
    }

    /// Width inside a feed-forward block, or an expert.
    pub(super) fn ffn_size(&self, name: &str) -> Result<usize, ModelFileError> {
        self.size(family(name).map_or("intermediate_size", |family| family.size))
    }

    /// The first of these fields that is there.
    fn first_size(&self, names: &str) -> Result<usize, ModelFileError> {
        let is_there = |name: &&str| self.0.get(*name).is_some_and(|value| !value.is_null());
        let mut all = names.split_whitespace();
        let name = all.clone().find(is_there).or_else(|| all.next());
        let name = name.unwrap_or_default();
        match self.size_of_layers(name)? {
            Some(size) => Ok(size),
            None => self.size(name),
        }
    }

    /// Width of several experts beside each other.
    pub(super) fn shared_size(&self, count: &str, default: usize) -> Result<usize, ModelFileError> {
        let count = self.optional_size(count)?.unwrap_or(default);
        Ok(count.saturating_mul(self.size("moe_intermediate_size")?))
    }

    /// Which layers of a mixture have no experts.
    pub(super) fn dense_layers(&self, name: &str, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let layers = 0..num_layers.min(MOST_LAYERS);
        Ok(match name {
            "glm4_moe" => {
                let first = self.optional_size("first_k_dense_replace")?.unwrap_or(1);
                layers.map(|layer| layer < first).collect()
            }
            "afmoe" => {
                let first = self.optional_size("num_dense_layers")?.unwrap_or(1);
                layers.map(|layer| layer < first).collect()
            }
            "dots1" | "solar_open" | latent::MISTRAL4 => self.leading_dense_layers(0, layers.len())?,
            "exaone_moe" | "hy_v3" | latent::AXK1 => self.leading_dense_layers(1, layers.len())?,
            cohere2_moe::NAME => self.leading_dense_layers(0, layers.len())?,
            "deepseek_v2" | "mellum" => self.leading_dense_layers(0, layers.len())?,
            "deepseek_v3" | latent::DEEPSEEK_V32 | latent::GLM_DSA => self.leading_dense_layers(3, layers.len())?,
            "glm4_moe_lite" | kimi::NAME => self.leading_dense_layers(1, layers.len())?,
            llama4::NAME => self.layers_without_experts(layers.len())?,
            jamba::NAME => self.jamba_dense_layers(layers.len())?,
            nemotron::NAME => self.kinds()?.iter().map(|kind| *kind == Kind::Dense).collect(),
            "lfm2_moe" => {
                let first = self.optional_size("num_dense_layers")?.unwrap_or(2);
                layers.map(|layer| layer < first).collect()
            }
            "ernie4_5_moe" => {
                let first = self.optional_size("moe_layer_start_index")?.unwrap_or(1);
                let step = self.optional_size("moe_layer_interval")?.unwrap_or(1).max(1);
                let last = self.number("moe_layer_end_index").filter(|last| *last >= 0.0);
                let last = last.map_or(usize::MAX, |last| last as usize);
                let has_experts = |layer: usize| (first..=last).contains(&layer) && (layer + 1).is_multiple_of(step);
                layers.map(|layer| !has_experts(layer)).collect()
            }
            "qwen2_moe" | "qwen3_next" => {
                let step = self.optional_size("decoder_sparse_step")?.unwrap_or(1).max(1);
                let only = self.0.get("mlp_only_layers").filter(|value| !value.is_null());
                let only: Vec<u64> = match only.map(Value::as_array) {
                    None => Vec::new(),
                    Some(layers) => {
                        let layers = layers.and_then(|layers| layers.iter().map(Value::as_u64).collect());
                        layers.ok_or_else(|| {
                            invalid("config.json: 'mlp_only_layers' must be a list of layers".to_owned())
                        })?
                    }
                };
                let is_dense = |layer: usize| only.contains(&(layer as u64)) || !(layer + 1).is_multiple_of(step);
                layers.map(is_dense).collect()
            }
            _ => vec![false; layers.len()],
        })
    }
}

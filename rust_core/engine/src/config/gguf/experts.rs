//! The experts of a GGUF's model.

use super::{Keys, number};
use crate::config::{Architecture, Experts, MOST_LAYERS, Rating, invalid};
use crate::weights::ModelFileError;

/// What is read of all mixtures of experts.
const OF_EXPERTS: &[&str] = &["expert_count", "expert_feed_forward_length", "expert_used_count"];

/// What is read of those whose files say how experts are chosen.
const OF_ROUTERS: &[&str] = &[
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_norm",
    "expert_weights_scale",
];

/// What is read of those that have layers without experts, or an expert that all tokens share.
const OF_SHARED: &[&str] = &[
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "nextn_predict_layers",
];

/// The keys that are read of a family's experts.
pub(super) fn keys(architecture: Architecture, has_experts: bool) -> &'static [&'static [&'static str]] {
    match architecture {
        // Files of Youtu-LLM, which has none, tell of them all the same.
        Architecture::Deepseek2 if !has_experts => &[OF_EXPERTS, OF_SHARED],
        // Files of a Jamba without experts say that it has one.
        Architecture::Jamba => &[OF_EXPERTS],
        _ if !has_experts => &[],
        Architecture::GptOss | Architecture::MiniMaxM2 => &[OF_EXPERTS, OF_ROUTERS],
        _ if has_shared(architecture) => &[OF_EXPERTS, OF_ROUTERS, OF_SHARED],
        _ => &[OF_EXPERTS],
    }
}

fn has_shared(architecture: Architecture) -> bool {
    matches!(
        architecture,
        Architecture::Qwen2Moe
            | Architecture::Glm4Moe
            | Architecture::Ernie45Moe
            | Architecture::HunyuanMoe
            | Architecture::Deepseek2
            | Architecture::Lfm2Moe
            | Architecture::Qwen3Next
            | Architecture::Qwen35Moe
            | Architecture::GraniteHybrid
            | Architecture::NemotronH
            | Architecture::Llama4
            | Architecture::GraniteMoe
            | Architecture::BailingMoe2
            | Architecture::Dots1
            | Architecture::Afmoe
            | Architecture::ExaoneMoe
            | Architecture::Mistral4
            | Architecture::KimiLinear
            | Architecture::HyV3
            | Architecture::Cohere2Moe
            | Architecture::GraniteSwa
            | Architecture::BailingMoe
    )
}

impl Keys<'_> {
    /// Layers of the decoder, two for each of a Falcon-H1's: those that predict further tokens come after them.
    pub(super) fn num_layers(&self, architecture: Architecture) -> Result<usize, ModelFileError> {
        let all = self.size("block_count")?;
        let predict = if has_shared(architecture) || architecture.has_delta_nets() {
            self.optional_size("nextn_predict_layers")?.unwrap_or(0)
        } else {
            0
        };
        let halves = 1 + usize::from(architecture == Architecture::FalconH1);
        Ok(all.saturating_sub(predict).saturating_mul(halves))
    }

    /// The experts of a family that may have some; files of Mixtral are a `llama`'s, and those
    /// of Granite 4 have them or not.
    pub(super) fn experts(&self, architecture: Architecture) -> Result<Option<Experts>, ModelFileError> {
        let count = self.optional_size("expert_count")?.unwrap_or(0);
        match architecture {
            Architecture::Llama
            | Architecture::GraniteHybrid
            | Architecture::GraniteSwa
            | Architecture::NemotronH
            | Architecture::Deepseek2
                if count == 0 =>
            {
                return Ok(None);
            }
            Architecture::Jamba if count <= 1 => return Ok(None),
            Architecture::Llama
            | Architecture::Jamba
            | Architecture::Qwen3Moe
            | Architecture::Mellum
            | Architecture::OlMoe
            | Architecture::GptOss
            | Architecture::MiniMaxM2
            | Architecture::MiniMax01
            | Architecture::PhiMoe => {}
            _ if has_shared(architecture) => {}
            _ => return Ok(None),
        }
        let mut experts = Experts::of(count, self.size("expert_used_count")?);
        experts.is_renormalised = !matches!(
            architecture,
            Architecture::OlMoe
                | Architecture::Qwen2Moe
                | Architecture::Deepseek2
                | Architecture::Llama4
                | Architecture::Jamba
        );
        if architecture == Architecture::PhiMoe {
            experts.rating = Rating::InTurn;
        }
        if keys(architecture, true).contains(&OF_ROUTERS) {
            self.read_router(architecture, &mut experts)?;
        }
        if has_shared(architecture) {
            self.read_shared(architecture, &mut experts)?;
        }
        if architecture == Architecture::Jamba {
            experts.dense_size = self.size("feed_forward_length")?;
        }
        Ok(Some(experts))
    }

    fn read_router(&self, architecture: Architecture, experts: &mut Experts) -> Result<(), ModelFileError> {
        if let Some(is_renormalised) = self.file.find(&self.key("expert_weights_norm")).and_then(number) {
            experts.is_renormalised = is_renormalised != 0.0;
        }
        let scale = self.number_or("expert_weights_scale", 0.0)? as f32;
        experts.weight_scale = if scale == 0.0 { 1.0 } else { scale };
        let by_family = match architecture {
            Architecture::Glm4Moe
            | Architecture::Lfm2Moe
            | Architecture::NemotronH
            | Architecture::Llama4
            | Architecture::BailingMoe2
            | Architecture::Dots1
            | Architecture::MiniMaxM2
            | Architecture::Afmoe
            | Architecture::ExaoneMoe
            | Architecture::KimiLinear
            | Architecture::HyV3
            | Architecture::Cohere2Moe => 2,
            Architecture::Deepseek2 if self.has_corrections()? => 2,
            _ => 1,
        };
        experts.rating = match self.optional_size("expert_gating_func")?.unwrap_or(by_family) {
            1 => Rating::Softmax,
            2 => Rating::Sigmoid,
            // Of those chosen alone: the same as of all and divided by their sum.
            3 if experts.is_renormalised => Rating::Softmax,
            other => {
                let key = self.key("expert_gating_func");
                return Err(invalid(format!(
                    "'{key}' {other} is not implemented; expected 1 (softmax) or 2 (sigmoid)"
                )));
            }
        };
        experts.num_groups = self.optional_size("expert_group_count")?.unwrap_or(1).max(1);
        let used = self.optional_size("expert_group_used_count")?.unwrap_or(1).max(1);
        experts.num_used_groups = if experts.num_groups == 1 { 1 } else { used };
        if architecture == Architecture::Deepseek2 && experts.num_groups > 1 && experts.rating == Rating::Softmax {
            let key = self.key("expert_group_count");
            return Err(invalid(format!(
                "'{key}' {} is not implemented for experts chosen by a softmax; expected 1",
                experts.num_groups
            )));
        }
        Ok(())
    }

    /// Whether ratings are corrected before experts are chosen by them, in the first layer that has some.
    fn has_corrections(&self) -> Result<bool, ModelFileError> {
        let name = format!("blk.{}.exp_probs_b.bias", self.first_expert_layer()?);
        Ok(self.file.find_tensor(&name).is_some())
    }

    fn read_shared(&self, architecture: Architecture, experts: &mut Experts) -> Result<(), ModelFileError> {
        let own = self.optional_size("expert_feed_forward_length")?;
        let size = own.map_or_else(|| self.size("feed_forward_length"), Ok)?;
        let of_count = |count: usize| count.saturating_mul(size);
        let by_count = self.optional_size("expert_shared_count")?.map(of_count);
        let by_family = match architecture {
            Architecture::Qwen2Moe | Architecture::HunyuanMoe => self.size("feed_forward_length")?,
            Architecture::Llama4 => size,
            _ => 0,
        };
        let told = self.optional_size("expert_shared_feed_forward_length")?;
        experts.shared_size = told.or(by_count).unwrap_or(by_family);
        experts.weighs_inputs = architecture == Architecture::Llama4;
        if architecture == Architecture::Cohere2Moe {
            experts.is_renormalised |= experts.rating == Rating::Softmax; // of the chosen alone
            experts.average();
        }
        experts.is_shared_gated = architecture == Architecture::Qwen2Moe || architecture.has_delta_nets();
        let has_dense = self.first_expert_layer()? > 0 || self.expert_layer_step()? > 1;
        experts.dense_size = if has_dense || architecture == Architecture::HyV3 {
            self.size("feed_forward_length")?
        } else {
            0
        };
        Ok(())
    }

    fn first_expert_layer(&self) -> Result<usize, ModelFileError> {
        Ok(self.optional_size("leading_dense_block_count")?.unwrap_or(0))
    }

    fn expert_layer_step(&self) -> Result<usize, ModelFileError> {
        Ok(self.optional_size("interleave_moe_layer_step")?.unwrap_or(1).max(1))
    }

    /// Which layers of a mixture have no experts: files of Jamba and Hunyuan 3 do not say, but that
    /// those have no router, or a block.
    pub(super) fn dense_layers(
        &self,
        architecture: Architecture,
        has_experts: bool,
        num_layers: usize,
    ) -> Result<Vec<bool>, ModelFileError> {
        let num_layers = num_layers.min(MOST_LAYERS);
        if !has_experts {
            return Ok(vec![false; num_layers]);
        }
        if architecture == Architecture::HyV3 {
            let down = |layer| format!("blk.{layer}.ffn_down.weight");
            let layers = (0..num_layers).map(|layer| self.file.find_tensor(&down(layer)).is_some());
            return Ok(layers.collect());
        }
        if architecture == Architecture::Jamba {
            let router = |layer| format!("blk.{layer}.ffn_gate_inp.weight");
            let layers = (0..num_layers).map(|layer| self.file.find_tensor(&router(layer)).is_none());
            return Ok(layers.collect());
        }
        let (first, step) = (self.first_expert_layer()?, self.expert_layer_step()?);
        let is_dense = |layer: usize| layer < first || !(layer + 1).is_multiple_of(step);
        Ok((0..num_layers).map(is_dense).collect())
    }
}

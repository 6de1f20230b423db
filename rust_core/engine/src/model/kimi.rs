//! What a layer of Kimi Delta Attention has besides what every recurrent layer has, and where Kimi Linear's files have blocks
//! without experts.

use super::names::{Names, Part, Place};
use super::{Linear, Loader};
use crate::config::{Architecture, KimiDelta};
use crate::weights::ModelFileError;

/// What makes a layer's decays and gates of the few numbers of a token that they depend on.
pub struct KimiWeights {
    /// Makes the steps of decays, [heads x head size, head size].
    pub decays: Linear,
    /// Makes gates, likewise.
    pub gates: Linear,
}

impl Loader<'_> {
    fn of_decays_and_gates(&self, layer: usize) -> [Place; 2] {
        [("ssm_f_b", "self_attn.f_b_proj"), ("ssm_g_b", "self_attn.g_b_proj")]
            .map(|(gguf, hugging_face)| self.names.whole(layer, gguf, hugging_face))
    }

    pub(super) fn kimi(&self, layer: usize, shape: &KimiDelta) -> Result<KimiWeights, ModelFileError> {
        let [decays, gates] = self.of_decays_and_gates(layer);
        Ok(KimiWeights {
            decays: self.linear(&decays, shape.inner_size(), shape.head_size)?,
            gates: self.linear(&gates, shape.inner_size(), shape.head_size)?,
        })
    }

    /// Refuses a layer whose matrices are missing or of other sizes.
    pub(super) fn check_kimi(&self, layer: usize, shape: &KimiDelta) -> Result<(), ModelFileError> {
        let mut places = self.of_decays_and_gates(layer).into_iter();
        places.try_for_each(|place| self.check(&place, shape.inner_size(), shape.head_size))
    }

    /// Names of the convolution's tensors: Kimi Linear's queries, keys and values have one each.
    pub(super) fn convolutions_of_kimi(&self, layer: usize) -> Vec<String> {
        let name = |which| {
            let (gguf, hugging_face) = (format!("ssm_conv1d_{which}"), format!("self_attn.{which}_conv1d"));
            self.names.whole(layer, &gguf, &hugging_face).name
        };
        ["q", "k", "v"].map(name).into()
    }

    /// Where a matrix is of a layer's block without experts. transformers writes Kimi Linear's under the name of experts.
    pub(super) fn dense_place(&self, layer: usize, part: Part) -> Place {
        let place = self.names.layer(layer, part, self.config);
        if self.config.architecture != Architecture::KimiLinear || matches!(self.names, Names::Gguf) {
            return place;
        }
        let other = Place::whole(place.name.replace(".mlp.", ".block_sparse_moe."));
        match self.file.find_stored(&other.weight()) {
            Ok(Some(_)) => other,
            _ => place,
        }
    }
}

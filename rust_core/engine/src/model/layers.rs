//! What a decoder's weights are in memory, layer by layer.

use std::sync::Arc;

use pyagent_kernels::attention::ScoreBias;
use pyagent_kernels::pack::PackedMatrix;

use super::{Curve, LatentWeights, MtpWeights, Norm, PerLayer, PerLayerInputs, RecurrentWeights, SeparateExperts};

/// A matrix and its optional bias.
pub struct Linear {
    /// The matrix, [out, in].
    pub weight: PackedMatrix,
    /// One value per row.
    pub bias: Option<Vec<f32>>,
}

/// One decoder layer's weights. Which norms there are is the family's; a layer of one block has nothing of the other.
#[expect(missing_docs, reason = "the fields are the names every model card uses")]
pub struct Layer {
    pub attention_norm: Option<Norm>,
    pub mixer: Mixer,
    /// The output matrix of attention, or of what a recurrent layer has instead.
    pub attention_output: Option<Linear>,
    /// Of each query head a score without a value, where the family has them.
    pub sinks: Option<Vec<f32>>,
    /// What is added to scores by distance, where the family has it; layers may share it.
    pub score_bias: Option<Arc<ScoreBias>>,
    pub post_attention_norm: Option<Vec<f32>>,
    pub ffn_norm: Option<Norm>,
    pub ffn: FeedForward,
    pub post_ffn_norm: Option<Vec<f32>>,
    /// Gemma 4: what experts beside a dense block have of their own.
    pub separate_experts: Option<SeparateExperts>,
    /// Gemma 4: what the layer does with its part of per-layer embeddings.
    pub per_layer: Option<PerLayer>,
    /// Gemma 4: factor on the stream after the layer.
    pub scale: f32,
}

impl Layer {
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let mixer = self.mixer.inputs().into_iter().chain(&self.attention_output);
        let ffn = self
            .ffn
            .gated()
            .iter()
            .chain(self.ffn.shared().map(|shared| &shared.gated));
        let ffn = ffn.flat_map(|gated| gated.inputs().chain([&gated.down]));
        let per_layer = self.per_layer.iter();
        let per_layer = per_layer.flat_map(|per_layer| [&per_layer.gate, &per_layer.projection]);
        let linears = mixer.chain(self.ffn.raters()).chain(ffn).chain(per_layer);
        linears.map(|linear| &linear.weight).chain(self.mixer.inner())
    }
}

/// What brings a layer's tokens together.
pub enum Mixer {
    /// Attention.
    Attention(Box<Attention>),
    /// Attention to latents.
    Latent(Box<LatentWeights>),
    /// A state that each token changes.
    Recurrent(Box<RecurrentWeights>),
    /// Nothing, in layers that have a feed-forward block alone.
    Absent,
}

impl Mixer {
    /// The matrices that the layer's input is multiplied by.
    pub fn inputs(&self) -> Vec<&Linear> {
        match self {
            Self::Attention(attention) => {
                let linears = std::iter::once(&attention.query).chain(&attention.key);
                linears.chain(&attention.value).chain(&attention.gate).collect()
            }
            Self::Latent(latent) => latent.inputs().collect(),
            Self::Recurrent(recurrent) => recurrent.inputs.iter().collect(),
            Self::Absent => Vec::new(),
        }
    }

    /// The matrices that come after these.
    fn inner(&self) -> impl Iterator<Item = &PackedMatrix> {
        let (latent, recurrent) = match self {
            Self::Latent(latent) => (Some(latent.inner()), None),
            Self::Recurrent(recurrent) => (None, Some(recurrent)),
            _ => (None, None),
        };
        let channels = recurrent.and_then(|recurrent| recurrent.channels.as_ref());
        let channels = channels.map(|channels| [&channels.select.weight, &channels.steps.weight]);
        let kimi = recurrent.and_then(|recurrent| recurrent.kimi.as_ref());
        let kimi = kimi.map(|kimi| [&kimi.decays.weight, &kimi.gates.weight]);
        let inner = channels.into_iter().chain(kimi).flatten();
        latent.into_iter().flatten().chain(inner)
    }
}

/// Attention's weights but for its output matrix.
#[expect(missing_docs, reason = "the fields are the names every model card uses")]
pub struct Attention {
    pub query: Linear,
    /// None where the layer reads another layer's keys and values.
    pub key: Option<Linear>,
    /// None there too, and where values are keys before their norm.
    pub value: Option<Linear>,
    /// Qwen 3.5: gates of what heads attended to.
    pub gate: Option<Linear>,
    pub query_norm: Option<Vec<f32>>,
    pub key_norm: Option<Vec<f32>>,
    /// Gemma 4: values have a norm, without weights.
    pub value_norm: Option<Vec<f32>>,
}

/// A feed-forward block.
#[expect(missing_docs, reason = "the fields are the names every model card uses")]
pub struct Gated {
    /// None where the activation has no gate.
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
    /// Apertus: its activation's curve.
    pub curve: Option<Curve>,
}

impl Gated {
    /// The matrices that its input is multiplied by.
    pub fn inputs(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up])
    }
}

/// A layer's feed-forward block, or its experts.
pub enum FeedForward {
    /// Nothing, in layers that have none.
    Absent,
    /// One block for all tokens.
    Dense(Gated),
    /// Blocks of which each token has a few.
    Experts {
        /// Rates them, [experts, hidden].
        router: Linear,
        /// What is added to ratings before experts are chosen by them.
        correction: Option<Vec<f32>>,
        /// The blocks.
        experts: Vec<Gated>,
        /// The block that all tokens have.
        shared: Option<Box<Shared>>,
    },
}

/// An expert that all tokens share.
pub struct Shared {
    /// The block.
    pub gated: Gated,
    /// Says how much of it a token gets, by a sigmoid, [1, hidden]; all of it where there is none.
    pub gate: Option<Linear>,
}

impl FeedForward {
    /// What rates the experts, where there are any.
    pub fn router(&self) -> Option<&Linear> {
        match self {
            Self::Dense(_) | Self::Absent => None,
            Self::Experts { router, .. } => Some(router),
        }
    }

    /// The router, and what says how much a token gets of a shared expert.
    pub fn raters(&self) -> impl Iterator<Item = &Linear> {
        let gate = self.shared().and_then(|shared| shared.gate.as_ref());
        self.router().into_iter().chain(gate)
    }

    /// The expert that all tokens share, where there is one.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Experts { shared, .. } => shared.as_deref(),
            Self::Dense(_) | Self::Absent => None,
        }
    }

    /// The block, or the experts' blocks.
    pub fn gated(&self) -> &[Gated] {
        match self {
            Self::Absent => &[],
            Self::Dense(gated) => std::slice::from_ref(gated),
            Self::Experts { experts, .. } => experts,
        }
    }
}

/// A decoder's weights.
pub struct Weights {
    /// Token embeddings, [vocab, hidden]; also the output matrix when that is absent.
    pub embedding: Arc<PackedMatrix>,
    /// What is added to a token's row by its position, where that is learned: [positions, hidden], with what comes before the
    /// first.
    pub positions: Option<PackedMatrix>,
    /// The norm of that sum, where the family has one.
    pub embedding_norm: Option<Norm>,
    /// The layers, in order; last that of a head that drafts, if there is one.
    pub layers: Vec<Layer>,
    /// The norm before the output matrix.
    pub final_norm: Norm,
    /// The output matrix, [vocab, hidden], when it is not the embedding.
    pub output: Option<PackedMatrix>,
    /// Phi-2: what is added to logits.
    pub output_bias: Option<Vec<f32>>,
    /// Gemma 4: per-layer embeddings.
    pub per_layer: Option<PerLayerInputs>,
    /// What a head that drafts has besides its layer.
    pub mtp: Option<MtpWeights>,
}

impl Weights {
    /// The matrix that gives logits.
    pub fn output_matrix(&self) -> &PackedMatrix {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// The layers' matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.layers.iter().flat_map(Layer::matrices)
    }

    /// Bytes of what is added to scores; once of what layers share.
    fn score_bias_bytes(&self) -> usize {
        let mut biases: Vec<_> = self
            .layers
            .iter()
            .filter_map(|layer| layer.score_bias.as_ref())
            .collect();
        biases.sort_by_key(|bias| Arc::as_ptr(bias));
        biases.dedup_by_key(|bias| Arc::as_ptr(bias));
        biases.into_iter().map(|bias| bias.bytes()).sum()
    }

    /// Bytes held by matrices, and by what is added to scores.
    pub fn bytes(&self) -> usize {
        let per_layer = self.per_layer.as_ref();
        let mtp = self.mtp.as_ref();
        self.matrices().map(PackedMatrix::bytes).sum::<usize>()
            + self.score_bias_bytes()
            + self.embedding.bytes()
            + self.positions.as_ref().map_or(0, PackedMatrix::bytes)
            + mtp.map_or(0, |mtp| mtp.entry_matrix().bytes())
            + per_layer.map_or(0, |inputs| inputs.table.bytes() + inputs.projection.weight.bytes())
            + self.output.as_ref().map_or(0, PackedMatrix::bytes)
    }
}

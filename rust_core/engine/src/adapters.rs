//! Adapters: low-rank additions to some of a decoder's projections, which rows of a step name one by one.
//!
//! `LoRA` (Hu et al. 2021, arXiv 2106.09685): `y = W x + s B A x`, with `s` the file's `alpha` divided by the rank, or by
//! its root (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732). `DoRA` (Liu et al. 2024, arXiv 2402.09353) then makes each row
//! of `W + s B A` as long as the file says. The model's weights stay as they are: rows without an adapter never see one.

mod about;
mod dora;
mod file;
mod load;
mod loader;
mod merge;
mod settings;
mod stack;

use pyagent_kernels::low_rank::UpMatrix;
use pyagent_kernels::pack::PackedMatrix;

pub use about::AdapterAbout;
pub use loader::AdapterLoader;
pub use merge::{AdapterMerge, MergedShard, MergedTensor};
pub use stack::AdapterStack;

use crate::model::{Layer, Linear, Mixer};

/// The largest rank that is read.
pub const MAX_RANK: usize = 512;

/// A projection of a decoder's layer that adapters may add to.
#[expect(missing_docs, reason = "the variants are the names every model card uses")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl Projection {
    /// All of them, in the order of the forward pass.
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Whether the forward pass adds the bias before what adapters add.
    pub(crate) fn adds_bias_first(self) -> bool {
        !matches!(self, Self::AttentionOutput | Self::Down)
    }

    /// A layer's matrix, unless the layer has something else in its place.
    pub(crate) fn linear(self, layer: &Layer) -> Option<&Linear> {
        let attention = match &layer.mixer {
            Mixer::Attention(attention) if attention.gate.is_none() => Some(attention),
            _ => None,
        };
        let gated = match layer.ffn.router() {
            None => layer.ffn.gated().first(),
            Some(_) => None,
        };
        match self {
            Self::Query => attention.map(|attention| &attention.query),
            Self::Key => attention.and_then(|attention| attention.key.as_ref()),
            Self::Value => attention.and_then(|attention| attention.value.as_ref()),
            Self::AttentionOutput => attention.and(layer.attention_output.as_ref()),
            Self::Gate => gated.and_then(|gated| gated.gate.as_ref()),
            Self::Up => gated.map(|gated| &gated.up),
            Self::Down => gated.map(|gated| &gated.down),
        }
    }
}

/// The input that some projections share.
#[expect(missing_docs, reason = "the variants are named after what reads the input")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    Attention,
    AttentionOutput,
    FeedForward,
    Down,
}

impl Site {
    /// The projections that read it.
    pub(crate) fn projections(self) -> &'static [Projection] {
        match self {
            Self::Attention => &[Projection::Query, Projection::Key, Projection::Value],
            Self::AttentionOutput => &[Projection::AttentionOutput],
            Self::FeedForward => &[Projection::Gate, Projection::Up],
            Self::Down => &[Projection::Down],
        }
    }

    /// The most projections that read one input.
    pub(crate) const MOST_PROJECTIONS: usize = 3;

    /// Where a projection's input is, and its place among those that read it.
    pub(crate) fn of(projection: Projection) -> (Self, usize) {
        match projection {
            Projection::Query => (Self::Attention, 0),
            Projection::Key => (Self::Attention, 1),
            Projection::Value => (Self::Attention, 2),
            Projection::AttentionOutput => (Self::AttentionOutput, 0),
            Projection::Gate => (Self::FeedForward, 0),
            Projection::Up => (Self::FeedForward, 1),
            Projection::Down => (Self::Down, 0),
        }
    }
}

/// What an adapter adds to one projection.
#[derive(Debug)]
pub struct LowRank {
    /// `A`, [rank, in].
    pub(crate) down: PackedMatrix,
    /// `B`, [out, rank].
    pub(crate) up: UpMatrix,
    /// What `A x` is multiplied by.
    pub(crate) scale: f32,
    /// How outputs are resized after the addition, where the adapter is a `DoRA`.
    pub(crate) resizing: Option<Resizing>,
}

/// `y = factors * y + shift`, where `y` has the bias already: that one is not resized.
#[derive(Debug)]
pub(crate) struct Resizing {
    pub(crate) factors: Vec<f32>,
    /// `(1 - factors) * bias`, where there is a bias that was added.
    pub(crate) shift: Option<Vec<f32>>,
}

impl LowRank {
    pub(crate) fn rank(&self) -> usize {
        self.up.rank()
    }

    fn bytes(&self) -> usize {
        let resizing = self.resizing.as_ref().map_or(0, |resizing| {
            let shift = resizing.shift.as_ref().map_or(0, Vec::len);
            size_of::<f32>() * (resizing.factors.len() + shift)
        });
        self.down.bytes() + self.up.bytes() + resizing
    }
}

/// What an adapter adds to a model's projections, by layer and [`Projection`].
#[derive(Debug)]
pub struct Adapter {
    layers: Vec<[Option<LowRank>; 7]>,
}

impl Adapter {
    /// What is added to a projection.
    pub(crate) fn of(&self, layer: usize, projection: Projection) -> Option<&LowRank> {
        self.layers.get(layer)?[projection as usize].as_ref()
    }

    fn all(&self) -> impl Iterator<Item = &LowRank> {
        self.layers.iter().flatten().flatten()
    }

    /// Whether something of a layer that reads an input is added to.
    pub(crate) fn touches(&self, layer: usize, site: Site) -> bool {
        let mut projections = site.projections().iter();
        projections.any(|projection| self.of(layer, *projection).is_some())
    }

    /// The largest rank.
    pub fn rank(&self) -> usize {
        self.all().map(LowRank::rank).max().unwrap_or(0)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.all().map(LowRank::bytes).sum()
    }
}

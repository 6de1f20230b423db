//! What a forward pass is a list of.

use super::AssistantStage;
use crate::adapters::Site;

/// A stage of a pass; its pieces can be computed at the same time, when the stages before it are over.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// What is looked up for a row: per-layer embeddings.
    LookUp,
    /// Tokens' vectors for all layers.
    Vectors,
    /// Rows of the stream that all threads share, after so many blocks, of which a layer has two or three places; and their
    /// norm.
    Stream(usize),
    /// A layer's queries, keys and values; or what a recurrent layer makes of its input.
    Project(usize),
    /// The norm of a layer's queries and keys over all heads, where the family has it; only then are they rotated and
    /// stored.
    NormaliseHeads(usize),
    /// Latent attention's norms, and the store of latents.
    Compress(usize),
    /// The queries of a layer's index heads.
    AskIndexer(usize),
    /// What a layer's index heads make of earlier positions, and which of these tokens attend to.
    RatePositions(usize),
    /// The queries of a layer's heads, made queries of latents.
    Absorb(usize),
    /// A layer's attention.
    Attend(usize),
    /// The values of a layer's heads, made of the latents they attended to.
    Expand(usize),
    /// What drafts bring to a recurrent layer, to be kept.
    KeepDrafts(usize),
    /// What was kept of drafts that were right, in the place of a recurrent layer's projections.
    TakeKept(usize),
    /// A recurrent layer's convolution.
    Convolve(usize),
    /// What Kimi Delta Attention's decays and gates are made of, handed on.
    HandOnGates(usize),
    /// What Mamba selects of what was convolved: compressed steps, and what tokens write and read their states along.
    Select(usize),
    /// The norms of that, and its hand-over.
    Settle(usize),
    /// A recurrent layer's delta rule, or state space.
    Scan(usize),
    /// The norm of a state space's outputs, whose groups several heads have.
    NormaliseScan(usize),
    /// A block's output: of attention, or what a layer has instead; of the feed-forward block; of per-layer embeddings.
    Block(usize),
    /// Which experts a layer's tokens have.
    Route(usize),
    /// The inside of a layer's feed-forward block, or of its experts'.
    Gate(usize),
    /// The gate of a layer's part of per-layer embeddings.
    GateVectors(usize),
    /// The norm of the rows that give logits, where all threads share a stream.
    OutputNorm,
    /// The logits.
    Output,
    /// What adapters of the batch make of a layer's input, before the product that it is added to.
    Adapt(usize, Site),
    /// One of the places of the stream that a head of another file reads.
    Tap(usize),
    /// The decoder's outputs, for a head that drafts.
    KeepOutputs,
    /// What stands for them is made of such places: these, normalised.
    FuseInput,
    /// The matrix that makes it.
    Fuse,
    /// The head's input.
    MtpInput,
    /// The matrix that makes one of both parts of it.
    MtpJoin,
    /// Rows of the head's stream before a block of its layer, and their norm.
    MtpStream(usize),
    /// The head's outputs.
    MtpOutput,
    /// Outputs that the next step's head goes on from.
    KeepRecords,
    /// Those of an assistant.
    Assistant(AssistantStage),
}

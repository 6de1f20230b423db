//! What the layers of BERT are, and of what came of it.

use pyagent_kernels::elementwise::{RopeScaling, RopeTable};

use super::config::MOST_POSITIONS;
use super::distances::DistanceKind;
use super::experts::{EncoderExperts, MOST_EXPERTS};
use crate::config::invalid;
use crate::weights::{ModelFileError, clipped};

/// The family: what tensors are called, and what is peculiar to its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderArchitecture {
    /// BERT (Devlin et al. 2018, arXiv 1810.04805): positions from 0.
    Bert,
    /// RoBERTa and XLM-RoBERTa: positions from the padding token's id on.
    Roberta,
    /// ModernBERT (Warner et al. 2024, arXiv 2412.13663): norms before the blocks, most layers see their neighbours alone.
    ModernBert,
    /// nomic-embed-text (Nussbaum et al. 2024, arXiv 2402.01613): BERT with rotary positions and a gate.
    NomicBert,
    /// nomic-embed-text-v2-moe (Nussbaum and Duderstadt 2025, arXiv 2502.07972): the same with biases, without a gate, and with
    /// experts in every second layer.
    NomicBertMoe,
    /// GTE (Zhang et al. 2024, arXiv 2407.19669): the same with biases.
    Gte,
    /// jina-embeddings-v2 (Günther et al. 2023, arXiv 2310.19923): BERT with a gate, whose scores fall with distance (ALiBi).
    JinaBert,
    /// That of code: the gate is the second half of its matrix, and the stream is added and normalised twice after attention.
    JinaCodeBert,
    /// jina-embeddings-v3 (Sturua et al. 2024, arXiv 2409.10173): BERT with rotary positions, and tasks.
    JinaBertV3,
    /// MPNet (Song et al. 2020, arXiv 2004.09297): RoBERTa whose scores a table of distances adds to.
    Mpnet,
    /// DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT without token types.
    DistilBert,
}

impl EncoderArchitecture {
    /// The family that `config.json` names.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "bert" => Some(Self::Bert),
            "roberta" | "xlm-roberta" | "camembert" => Some(Self::Roberta),
            "modernbert" => Some(Self::ModernBert),
            "nomic_bert" => Some(Self::NomicBert),
            "gte" => Some(Self::Gte),
            "mpnet" => Some(Self::Mpnet),
            "distilbert" => Some(Self::DistilBert),
            "jina_embeddings_v3" => Some(Self::JinaBertV3),
            _ => None,
        }
    }

    /// The family that a GGUF file names.
    pub(super) fn from_gguf(name: &str) -> Option<Self> {
        match name {
            "bert" => Some(Self::Bert),
            "modern-bert" => Some(Self::ModernBert),
            "nomic-bert" => Some(Self::NomicBert),
            "nomic-bert-moe" => Some(Self::NomicBertMoe),
            "jina-bert-v2" => Some(Self::JinaBert),
            "jina-bert-v3" => Some(Self::JinaBertV3),
            _ => None,
        }
    }

    /// The name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::ModernBert => "modernbert",
            Self::NomicBert | Self::NomicBertMoe => "nomic_bert",
            Self::Gte => "gte",
            Self::JinaBert | Self::JinaCodeBert => "jina-bert-v2",
            Self::JinaBertV3 => "jina-bert-v3",
            Self::Mpnet => "mpnet",
            Self::DistilBert => "distilbert",
        }
    }

    /// Whether positions begin after the padding token's id, at which padding itself stands.
    pub(super) fn counts_from_padding(self) -> bool {
        matches!(self, Self::Roberta | Self::Mpnet)
    }
}

/// The activation inside a feed-forward block, or of its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderActivation {
    /// GELU with the error function.
    Gelu,
    /// Its tanh form.
    GeluTanh,
    /// SiLU.
    Silu,
}

impl EncoderActivation {
    pub(super) fn from_name(name: &str) -> Result<Self, ModelFileError> {
        match name {
            "gelu" => Ok(Self::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Self::GeluTanh),
            "silu" | "swish" => Ok(Self::Silu),
            other => {
                let other = clipped(other);
                Err(invalid(format!(
                    "activation '{other}' is not supported; expected gelu, gelu_new or silu"
                )))
            }
        }
    }
}

/// How a token's place in its text is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// A row of a table is added to a token's.
    Table {
        /// Rows of the table.
        num_rows: usize,
        /// The row of a text's first token.
        first: usize,
    },
    /// Queries and keys are rotated.
    Rotary {
        /// The base of the angles where a layer sees the whole text.
        base: f64,
        /// The same where it sees neighbours alone.
        local_base: f64,
    },
    /// Scores of attention fall with distance, in each head at another rate (ALiBi, Press et al. 2021, arXiv 2108.12409).
    Alibi,
}

/// Which matrices and norms add something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Those of attention.
    pub attention: bool,
    /// Those into the feed-forward block.
    pub up: bool,
    /// That out of it.
    pub down: bool,
    /// Norms.
    pub norms: bool,
}

impl Biases {
    pub(super) const ALL: Self = Self {
        attention: true,
        up: true,
        down: true,
        norms: true,
    };
    pub(super) const OF_NORMS: Self = Self {
        attention: false,
        up: false,
        down: false,
        norms: true,
    };
}

/// What BERT's layers are.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// The family.
    pub architecture: EncoderArchitecture,
    /// Attention heads.
    pub num_heads: usize,
    /// Width inside the feed-forward block.
    pub ffn_size: usize,
    /// How places are told.
    pub positions: Positions,
    /// The padding token, at which RoBERTa's positions stand still.
    pub pad_id: usize,
    /// Rows of the table of token types; a text is of the first type. 0: there is no such table.
    pub num_types: usize,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// The activation.
    pub activation: EncoderActivation,
    /// Whether it is a gate's, by which what goes in is multiplied.
    pub is_gated: bool,
    /// Whether norms come before the blocks, and one after the last layer.
    pub is_pre_norm: bool,
    /// How many tokens before and behind itself a token sees in each layer, None for all; empty: all in each.
    pub reach: Vec<Option<usize>>,
    /// What adds something.
    pub biases: Biases,
    /// Whether queries and keys are normalised, over all heads together.
    pub has_query_key_norms: bool,
    /// Experts of its feed-forward blocks.
    pub experts: Option<EncoderExperts>,
}

impl BertConfig {
    /// The type of a token, by whether it is of a pair's second text.
    pub(super) fn kind_of(&self, is_second: bool) -> usize {
        // RoBERTa's table of types has one row, or another that no tokenizer names.
        usize::from(is_second && self.num_types > 1 && self.architecture != EncoderArchitecture::Roberta)
    }

    /// Whether the stream is added and normalised once more after attention.
    pub(super) fn is_added_twice(&self) -> bool {
        self.architecture == EncoderArchitecture::JinaCodeBert
    }

    /// The experts of a layer that has any.
    pub(super) fn experts_of(&self, layer: usize) -> Option<EncoderExperts> {
        self.experts.filter(|experts| layer % experts.period == 1)
    }

    /// What is added to scores by distance.
    pub(super) fn distance_kind(&self) -> Option<DistanceKind> {
        match (self.positions, self.architecture) {
            (Positions::Alibi, _) => Some(DistanceKind::Alibi),
            (_, EncoderArchitecture::Mpnet) => Some(DistanceKind::Buckets),
            _ => None,
        }
    }

    /// How many tokens before and behind itself a token sees.
    pub(super) fn reach(&self, layer: usize) -> Option<usize> {
        self.reach.get(layer).copied().flatten()
    }

    /// Whether a layer has a norm before attention: the first one's would follow that of the embedding.
    pub(super) fn has_attention_norm(&self, layer: usize) -> bool {
        !self.is_pre_norm || layer > 0
    }

    /// The angles of layers that see everything and of those that see neighbours, where there are any.
    pub(super) fn rope_tables(
        &self,
        hidden_size: usize,
        most: usize,
    ) -> Result<Option<[RopeTable; 2]>, ModelFileError> {
        let Positions::Rotary { base, local_base } = self.positions else {
            return Ok(None);
        };
        let table = |base: f64| {
            RopeTable::new(hidden_size / self.num_heads, base as f32, &RopeScaling::None, most)
                .map_err(|error| invalid(error.to_string()))
        };
        Ok(Some([table(base)?, table(local_base)?]))
    }

    /// What its sizes may be.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&'static str, usize, usize, usize)> {
        let experts = self
            .experts
            .map(|experts| (experts.count, experts.used, experts.period));
        let (count, used, period) = experts.unwrap_or((1, 1, 1));
        let rows = match self.positions {
            Positions::Table { num_rows, .. } => num_rows,
            Positions::Rotary { .. } | Positions::Alibi => 1,
        };
        [
            ("attention heads", self.num_heads, 1, 4_096),
            ("feed-forward size", self.ffn_size, 1, 1 << 20),
            ("table of positions", rows, 1, MOST_POSITIONS),
            ("table of token types", self.num_types, 0, 1 << 16),
            ("experts of a layer", count, 1, MOST_EXPERTS),
            ("experts of a token", used, 1, count),
            ("period of layers with experts", period, 1, 1_000),
        ]
        .into_iter()
    }

    /// Refuses what cannot be computed.
    pub(super) fn check(&self, hidden_size: usize) -> Result<(), ModelFileError> {
        if !hidden_size.is_multiple_of(self.num_heads) {
            return Err(invalid(format!(
                "{} attention heads cannot share a hidden size of {hidden_size} evenly",
                self.num_heads
            )));
        }
        if !(self.norm_epsilon.is_finite() && self.norm_epsilon >= 0.0) {
            return Err(invalid("norm epsilon is not a number from 0 on".to_owned()));
        }
        self.rope_tables(hidden_size, 1).map(drop)
    }
}

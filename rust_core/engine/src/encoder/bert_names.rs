//! What files call the tensors of BERT's families, and their shapes.

use std::ops::Range;

use super::bert_config::{BertConfig, EncoderArchitecture, Positions};
use super::config::{EncoderConfig, Layers};
use super::distances::{DistanceKind, NUM_BUCKETS};
use super::gguf::{HEAD_DENSE, HEAD_NORM, LABELS};
use super::head::{Head, HeadKind};
use super::layer_names::{PARTS, Part, layer_names};
use crate::weights::ModelFile;

/// A tensor of the layers: its name, which of its rows, its columns, and of a matrix or norm whether something is added.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// The name without its end, `.weight`.
    pub(super) name: String,
    /// Rows of this part.
    pub(super) rows: Range<usize>,
    /// Rows of the whole tensor.
    pub(super) num_rows: usize,
    pub(super) cols: usize,
    pub(super) has_bias: bool,
    is_norm: bool,
    /// The name of the matrix, or of a norm's factors.
    pub(super) weight: String,
}

impl Place {
    /// Values of the part's bias.
    pub(super) fn bias_rows(&self) -> Range<usize> {
        if self.is_norm { 0..self.cols } else { self.rows.clone() }
    }

    /// Values of the whole bias.
    pub(super) fn num_biases(&self) -> usize {
        if self.is_norm { self.cols } else { self.num_rows }
    }
}

/// What names of tensors begin with in models that were saved with a head.
pub(super) const PREFIXES: [&str; 8] = [
    "",
    "bert.",
    "roberta.",
    "model.",
    "nomic_bert.",
    "gte.",
    "mpnet.",
    "distilbert.",
];

/// What a file calls tensors.
pub(super) struct Names<'a> {
    config: &'a BertConfig,
    hidden: usize,
    is_gguf: bool,
    /// Whether a GGUF file has gates in a matrix of their own.
    is_gate_apart: bool,
    /// Whether matrices and tables have names that leave room for what is added to them.
    is_parametrized: bool,
    prefix: &'static str,
}

impl<'a> Names<'a> {
    /// Finds what names begin with.
    pub(super) fn of(file: &ModelFile, config: &'a BertConfig, hidden: usize) -> Self {
        let mut names = Self {
            config,
            hidden,
            is_gguf: matches!(file, ModelFile::Gguf(_)),
            is_gate_apart: matches!(file.find_tensor("blk.0.ffn_gate.weight"), Ok(Some(_))),
            is_parametrized: false,
            prefix: "",
        };
        for prefix in PREFIXES {
            names.prefix = prefix;
            for is_parametrized in [false, true] {
                names.is_parametrized = is_parametrized;
                if matches!(file.find_tensor(&names.weight(&names.words())), Ok(Some(_))) {
                    return names;
                }
            }
        }
        (names.prefix, names.is_parametrized) = ("", false);
        names
    }

    fn top(&self, hugging_face: &str, gguf: &str) -> String {
        if self.is_gguf {
            gguf.to_owned()
        } else {
            format!("{}{hugging_face}", self.prefix)
        }
    }

    /// The whole name of a matrix or table.
    pub(super) fn weight(&self, name: &str) -> String {
        if self.is_parametrized {
            format!("{name}.parametrizations.weight.original")
        } else {
            format!("{name}.weight")
        }
    }

    pub(super) fn words(&self) -> String {
        match self.config.architecture {
            EncoderArchitecture::ModernBert => self.top("embeddings.tok_embeddings", "token_embd"),
            _ => self.top("embeddings.word_embeddings", "token_embd"),
        }
    }

    pub(super) fn positions(&self) -> String {
        self.top("embeddings.position_embeddings", "position_embd")
    }

    pub(super) fn types(&self) -> String {
        self.top("embeddings.token_type_embeddings", "token_types")
    }

    /// The table of what is added to scores by distance.
    pub(super) fn distances(&self) -> String {
        self.top("encoder.relative_attention_bias", "")
    }

    pub(super) fn embedding_norm(&self) -> Place {
        let name = match self.config.architecture {
            EncoderArchitecture::ModernBert => "embeddings.norm",
            EncoderArchitecture::NomicBert | EncoderArchitecture::NomicBertMoe | EncoderArchitecture::JinaBertV3 => {
                "emb_ln"
            }
            _ => "embeddings.LayerNorm",
        };
        self.norm(self.top(name, "token_embd_norm"))
    }

    /// The norm after the last layer, of families that have one.
    pub(super) fn final_norm(&self) -> Option<Place> {
        let is_there = self.config.is_pre_norm;
        is_there.then(|| self.norm(self.top("final_norm", "output_norm")))
    }

    fn norm(&self, name: String) -> Place {
        Place {
            weight: format!("{name}.weight"),
            name,
            rows: 0..1,
            num_rows: 1,
            cols: self.hidden,
            has_bias: self.config.biases.norms,
            is_norm: true,
        }
    }

    /// A part of a layer; `None` for what the layer has not.
    pub(super) fn part(&self, layer: usize, part: Part) -> Option<Place> {
        let (names, layers) = layer_names(self.config.architecture, self.is_gguf, self.is_gate_apart);
        let name = names.get(part as usize).copied().unwrap_or_default();
        let is_there = match part {
            Part::AttentionNorm => self.config.has_attention_norm(layer),
            Part::QueryNorm | Part::KeyNorm => self.config.has_query_key_norms,
            Part::SecondNorm => self.config.is_added_twice(),
            Part::Gate | Part::Up | Part::Down => self.config.experts_of(layer).is_none(),
            _ => true,
        };
        if name.is_empty() || !is_there {
            return None;
        }
        let (name, share) = name.split_once(' ').unwrap_or((name, ""));
        let name = self.top(&format!("{layers}.{layer}.{name}"), &format!("blk.{layer}.{name}"));
        let (hidden, ffn, biases) = (self.hidden, self.config.ffn_size, self.config.biases);
        let (rows, cols, shares, has_bias) = match part {
            Part::AttentionNorm | Part::FfnNorm | Part::QueryNorm | Part::KeyNorm | Part::SecondNorm => {
                return Some(self.norm(name));
            }
            Part::Query | Part::Key | Part::Value => (hidden, hidden, 3, biases.attention),
            Part::AttentionOutput => (hidden, hidden, 1, biases.attention),
            Part::Gate | Part::Up => (ffn, hidden, 2, biases.up),
            Part::Down => (hidden, ffn, 1, biases.down),
        };
        let (index, shares) = share.parse().map_or((0, 1), |index: usize| (index, shares));
        Some(Place {
            weight: self.weight(&name),
            name,
            rows: index * rows..(index + 1) * rows,
            num_rows: shares * rows,
            cols,
            has_bias,
            is_norm: false,
        })
    }

    /// The names of a layer's experts.
    pub(super) fn experts(&self, layer: usize) -> ExpertNames {
        let name = |hugging_face: &str, gguf: &str| {
            self.top(
                &format!("encoder.layers.{layer}.mlp.{hugging_face}"),
                &format!("blk.{layer}.{gguf}"),
            )
        };
        ExpertNames {
            router: name("router.layer.weight", "ffn_gate_inp.weight"),
            up: name("experts.mlp.w1", "ffn_up_exps.weight"),
            down: name("experts.mlp.w2", "ffn_down_exps.weight"),
            is_down_turned: !self.is_gguf,
            // llama.cpp's converter leaves it out.
            bias: (!self.is_gguf).then(|| name("experts.bias", "")),
        }
    }

    /// Every tensor with its rows and columns, once for each share of it.
    pub(super) fn all(&self, config: &EncoderConfig) -> Vec<(String, usize, usize)> {
        let hidden = self.hidden;
        let mut all = vec![(self.weight(&self.words()), config.vocab_size, hidden)];
        if let Positions::Table { num_rows, .. } = self.config.positions {
            all.push((self.weight(&self.positions()), num_rows, hidden));
        }
        if self.config.distance_kind() == Some(DistanceKind::Buckets) {
            all.push((
                format!("{}.weight", self.distances()),
                NUM_BUCKETS,
                self.config.num_heads,
            ));
        }
        if self.config.num_types > 0 {
            all.push((self.weight(&self.types()), self.config.num_types, hidden));
        }
        for (name, rows) in [(self.words(), config.vocab_size), (self.types(), self.config.num_types)] {
            if let Some(tasks) = config.tasks.as_ref().filter(|_| rows > 0) {
                all.extend(tasks.of_table(&name, rows, hidden));
            }
        }
        for layer in 0..config.num_layers {
            if let Some(experts) = self.config.experts_of(layer) {
                let (names, ffn) = (self.experts(layer), self.config.ffn_size);
                let (rows, cols) = if names.is_down_turned {
                    (ffn, hidden)
                } else {
                    (hidden, ffn)
                };
                all.push((names.router, experts.count, hidden));
                all.push((names.up, experts.count * ffn, hidden));
                all.push((names.down, experts.count * rows, cols));
                all.extend(names.bias.map(|bias| (bias, 1, hidden)));
            }
        }
        let parts =
            (0..config.num_layers).flat_map(|layer| PARTS.iter().filter_map(move |part| self.part(layer, *part)));
        let norms = [self.embedding_norm()].into_iter().chain(self.final_norm());
        for place in norms.chain(parts).filter(|place| place.rows.start == 0) {
            if let Some(tasks) = config.tasks.as_ref().filter(|_| !place.is_norm) {
                all.extend(tasks.of_matrix(&place));
            }
            all.push((place.weight.clone(), place.num_rows, place.cols));
            if place.has_bias {
                all.push((format!("{}.bias", place.name), 1, place.num_biases()));
            }
        }
        all
    }
}

/// The tensors of a layer's experts.
pub(super) struct ExpertNames {
    pub(super) router: String,
    pub(super) up: String,
    pub(super) down: String,
    /// Whether each expert's last matrix has a row for each of its inputs.
    pub(super) is_down_turned: bool,
    pub(super) bias: Option<String>,
}

/// The tensors of a head.
pub(super) struct HeadNames {
    pub(super) dense: Option<String>,
    pub(super) has_dense_bias: bool,
    /// A norm after it.
    pub(super) norm: Option<String>,
    pub(super) labels: String,
    pub(super) has_bias: bool,
}

impl HeadNames {
    pub(super) fn of(file: &ModelFile, config: &EncoderConfig) -> Self {
        let has_dense_bias = config.head.as_ref().is_some_and(|head| head.has_dense_bias);
        if let ModelFile::Gguf(gguf) = file {
            let found = |name: &str| gguf.find_tensor(&format!("{name}.weight")).map(|_| name.to_owned());
            return Self {
                dense: found(HEAD_DENSE),
                has_dense_bias,
                norm: found(HEAD_NORM),
                labels: LABELS.to_owned(),
                has_bias: gguf.find_tensor(&format!("{LABELS}.bias")).is_some(),
            };
        }
        let kind = config.head.as_ref().map_or(HeadKind::Texts, |head| head.kind);
        let (dense, norm, labels) = match &config.layers {
            Layers::Decoder(_) if kind == HeadKind::Steps => (Some("score.0"), None, "score.2"),
            Layers::Decoder(_) => (None, None, "score"),
            Layers::Bert(bert) => match bert.architecture {
                EncoderArchitecture::ModernBert => (Some("head.dense"), Some("head.norm"), "classifier"),
                _ if kind == HeadKind::Tokens => (None, None, "classifier"),
                EncoderArchitecture::Bert | EncoderArchitecture::JinaBert | EncoderArchitecture::JinaCodeBert => {
                    (Some("bert.pooler.dense"), None, "classifier")
                }
                EncoderArchitecture::Roberta | EncoderArchitecture::Mpnet | EncoderArchitecture::JinaBertV3 => {
                    (Some("classifier.dense"), None, "classifier.out_proj")
                }
                EncoderArchitecture::DistilBert => (Some("pre_classifier"), None, "classifier"),
                EncoderArchitecture::NomicBert | EncoderArchitecture::NomicBertMoe => {
                    (Some("nomic_bert.pooler.dense"), None, "classifier")
                }
                EncoderArchitecture::Gte => (Some("gte.pooler.dense"), None, "classifier"),
            },
        };
        Self {
            has_bias: dense.is_some() || kind == HeadKind::Tokens,
            has_dense_bias: dense.is_some() && has_dense_bias,
            dense: dense.map(str::to_owned),
            norm: norm.map(str::to_owned),
            labels: labels.to_owned(),
        }
    }

    /// Every tensor with its rows and columns.
    pub(super) fn all(&self, head: &Head, hidden: usize) -> Vec<(String, usize, usize)> {
        let mut all = Vec::new();
        let dense = self.dense.iter().map(|name| (name, hidden, self.has_dense_bias));
        for (name, rows, has_bias) in dense.chain([(&self.labels, head.labels.len(), self.has_bias)]) {
            all.push((format!("{name}.weight"), rows, hidden));
            if has_bias {
                all.push((format!("{name}.bias"), 1, rows));
            }
        }
        all.extend(self.norm.iter().map(|name| (format!("{name}.weight"), 1, hidden)));
        all
    }
}

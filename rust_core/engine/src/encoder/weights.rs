//! An encoder's weights: what files call them, that they are all there in their shapes, and loading them.

use pyagent_kernels::elementwise::{RopeError, RopeTable};
use pyagent_kernels::ggml::{self, GgmlType};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::config::{BertConfig, EncoderArchitecture, EncoderConfig, Layers};
use super::head::Head;
use super::steps::DenseStep;
use crate::config::invalid;
use crate::model::{self, Linear, Weights, pack, vector};
use crate::weights::{ModelFile, ModelFileError, TensorView};

/// A norm: its factors and what is added.
pub(super) struct Norm {
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

/// Rows that are looked up one by one, as the file has them.
pub(super) struct Table {
    kind: GgmlType,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl Table {
    /// Writes a row's numbers.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let bytes = &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes];
        ggml::dequantise(self.kind, bytes, out).expect("a row of whole blocks");
    }
}

/// One layer.
pub(super) struct EncoderLayer {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) attention_output: Linear,
    pub(super) attention_norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) ffn_norm: Norm,
}

impl EncoderLayer {
    pub(super) fn linears(&self) -> [&Linear; 6] {
        [
            &self.query,
            &self.key,
            &self.value,
            &self.attention_output,
            &self.up,
            &self.down,
        ]
    }
}

/// The matrices of a model that ranks or classifies.
pub(super) struct HeadWeights {
    /// What comes before the labels' matrix, with tanh, in BERT's families.
    pub(super) dense: Option<Linear>,
    pub(super) labels: Linear,
}

impl HeadWeights {
    pub(super) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.dense.iter().chain([&self.labels])
    }
}

/// All weights.
pub(super) struct EncoderWeights {
    pub(super) layers: LayerWeights,
    /// What follows pooling.
    pub(super) dense: Vec<Linear>,
    pub(super) head: Option<HeadWeights>,
}

/// What the layers multiply with.
pub(super) enum LayerWeights {
    Bert(BertWeights),
    Decoder(Box<DecoderWeights>),
}

/// A decoder's, and the angles of layers that see everything and of those with a window.
pub(super) struct DecoderWeights {
    pub(super) model: Weights,
    pub(super) rope: [RopeTable; 2],
}

/// BERT's. `types` has a row for each token type.
pub(super) struct BertWeights {
    pub(super) words: Table,
    pub(super) positions: Table,
    pub(super) types: Option<Vec<f32>>,
    pub(super) embedding_norm: Norm,
    pub(super) layers: Vec<EncoderLayer>,
}

impl EncoderWeights {
    /// Bytes held by matrices and tables.
    pub(super) fn bytes(&self) -> usize {
        let last: usize = self.last_matrices().map(PackedMatrix::bytes).sum();
        last + match &self.layers {
            LayerWeights::Bert(bert) => bert.bytes(),
            LayerWeights::Decoder(decoder) => decoder.model.bytes(),
        }
    }

    /// The matrices after the layers.
    pub(super) fn last_matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let linears = self.dense.iter().chain(self.head.iter().flat_map(HeadWeights::linears));
        linears.map(|linear| &linear.weight)
    }

    /// Has the angles of so many positions.
    pub(super) fn reach(&mut self, num_positions: usize) -> Result<(), RopeError> {
        match &mut self.layers {
            LayerWeights::Bert(_) => Ok(()),
            LayerWeights::Decoder(decoder) => decoder.rope.iter_mut().try_for_each(|rope| rope.grow_to(num_positions)),
        }
    }
}

impl BertWeights {
    /// The layers' matrices.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let linears = self.layers.iter().flat_map(EncoderLayer::linears);
        linears.map(|linear| &linear.weight)
    }

    fn bytes(&self) -> usize {
        let packed: usize = self.matrices().map(PackedMatrix::bytes).sum();
        packed + self.words.bytes.len() + self.positions.bytes.len()
    }
}

/// The places of a layer's tensors, in the order of [`part_shapes`].
const HUGGING_FACE: [&str; 8] = [
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
];
const GGUF: [&str; 8] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
];

/// Rows and columns of a layer's tensors; a norm's is one row.
fn part_shapes(hidden: usize, ffn: usize) -> [(usize, usize); 8] {
    let square = (hidden, hidden);
    let norm = (1, hidden);
    [square, square, square, square, norm, (ffn, hidden), (hidden, ffn), norm]
}

/// Whether a part's tensor is a norm's.
fn is_norm(part: usize) -> bool {
    matches!(part, 4 | 7)
}

/// What a file calls tensors.
struct Names {
    is_gguf: bool,
    prefix: &'static str,
}

impl Names {
    /// Models saved with a head of another task have a prefix.
    fn of(file: &ModelFile) -> Self {
        let has = |prefix: &str| {
            let name = format!("{prefix}embeddings.word_embeddings.weight");
            matches!(file.find_tensor(&name), Ok(Some(_)))
        };
        let prefix = ["", "bert.", "roberta."].into_iter().find(|prefix| has(prefix));
        Self {
            is_gguf: matches!(file, ModelFile::Gguf(_)),
            prefix: prefix.unwrap_or_default(),
        }
    }

    fn table(&self, hugging_face: &str, gguf: &str) -> String {
        if self.is_gguf {
            format!("{gguf}.weight")
        } else {
            format!("{}embeddings.{hugging_face}.weight", self.prefix)
        }
    }

    fn words(&self) -> String {
        self.table("word_embeddings", "token_embd")
    }

    fn positions(&self) -> String {
        self.table("position_embeddings", "position_embd")
    }

    fn types(&self) -> String {
        self.table("token_type_embeddings", "token_types")
    }

    fn embedding_norm(&self) -> String {
        let name = self.table("LayerNorm", "token_embd_norm");
        name.trim_end_matches(".weight").to_owned()
    }

    fn part(&self, layer: usize, part: usize) -> String {
        if self.is_gguf {
            format!("blk.{layer}.{}", GGUF[part])
        } else {
            format!("{}encoder.layer.{layer}.{}", self.prefix, HUGGING_FACE[part])
        }
    }

    /// Every tensor with its rows and columns. All biases are there.
    fn all(&self, config: &EncoderConfig, bert: &BertConfig) -> Vec<(String, usize, usize)> {
        let hidden = config.hidden_size;
        let mut all = vec![
            (self.words(), config.vocab_size, hidden),
            (self.positions(), bert.num_positions, hidden),
        ];
        if bert.num_types > 0 {
            all.push((self.types(), bert.num_types, hidden));
        }
        let mut with_bias = |name: String, rows: usize, cols: usize, num_biases: usize| {
            all.push((format!("{name}.weight"), rows, cols));
            all.push((format!("{name}.bias"), 1, num_biases));
        };
        with_bias(self.embedding_norm(), 1, hidden, hidden);
        for layer in 0..config.num_layers {
            for (part, (rows, cols)) in part_shapes(hidden, bert.ffn_size).into_iter().enumerate() {
                let num_biases = if is_norm(part) { cols } else { rows };
                with_bias(self.part(layer, part), rows, cols, num_biases);
            }
        }
        all
    }
}

/// The tensors of a head.
struct HeadNames {
    dense: Option<String>,
    labels: String,
    has_bias: bool,
}

impl HeadNames {
    fn of(config: &EncoderConfig) -> Self {
        let (dense, labels) = match &config.layers {
            Layers::Decoder(_) => (None, "score"),
            Layers::Bert(bert) => match bert.architecture {
                EncoderArchitecture::Bert => (Some("bert.pooler.dense"), "classifier"),
                EncoderArchitecture::Roberta => (Some("classifier.dense"), "classifier.out_proj"),
            },
        };
        Self {
            has_bias: dense.is_some(),
            dense: dense.map(str::to_owned),
            labels: labels.to_owned(),
        }
    }

    /// Every tensor with its rows and columns.
    fn all(&self, head: &Head, hidden: usize) -> Vec<(String, usize, usize)> {
        let mut all = Vec::new();
        let labels = (&self.labels, head.labels.len());
        for (name, rows) in self.dense.iter().map(|name| (name, hidden)).chain([labels]) {
            all.push((format!("{name}.weight"), rows, hidden));
            if self.has_bias {
                all.push((format!("{name}.bias"), 1, rows));
            }
        }
        all
    }
}

/// Every tensor of BERT's layers, and of a head, with its rows and columns.
fn all(file: &ModelFile, config: &EncoderConfig) -> Vec<(String, usize, usize)> {
    let layers = match &config.layers {
        Layers::Bert(bert) => Names::of(file).all(config, bert),
        Layers::Decoder(_) => Vec::new(),
    };
    let head = config.head.iter();
    let head = head.flat_map(|head| HeadNames::of(config).all(head, config.hidden_size));
    layers.into_iter().chain(head).collect()
}

/// Refuses a file in which a tensor is missing or has another shape than the configuration says.
pub(super) fn check(file: &ModelFile, config: &EncoderConfig) -> Result<(), ModelFileError> {
    for (name, rows, cols) in all(file, config) {
        expect(&file.tensor(&name)?, rows, cols)?;
    }
    if let Layers::Decoder(decoder) = &config.layers {
        model::check(file, &decoder.model)?;
    }
    for step in &config.dense {
        let opened = open_dense(file, step)?;
        let tensor = opened.tensor(&format!("{DENSE}.weight"));
        tensor
            .and_then(|tensor| expect(&tensor, step.num_outputs, step.num_inputs))
            .map_err(|error| error.in_file(opened.path()))?;
    }
    Ok(())
}

fn expect(tensor: &TensorView<'_>, rows: usize, cols: usize) -> Result<(), ModelFileError> {
    if (tensor.rows(), tensor.cols()) == (rows, cols) {
        return Ok(());
    }
    let (name, got) = (tensor.name, (tensor.rows(), tensor.cols()));
    Err(invalid(format!(
        "tensor '{name}' is {} x {}; expected {rows} x {cols}",
        got.0, got.1
    )))
}

/// Bytes that matrices and tables take once loaded: as many as in the file, groups of rows filled up.
pub(super) fn bytes(file: &ModelFile, config: &EncoderConfig) -> Result<usize, ModelFileError> {
    let sizes = all(file, config).into_iter().map(|(name, rows, _)| {
        let tensor = file.tensor(&name)?;
        let row_bytes = tensor.bytes.len() / rows.max(1);
        Ok(rows.next_multiple_of(if rows == 1 { 1 } else { 16 }) * row_bytes)
    });
    let named: usize = sizes.sum::<Result<usize, ModelFileError>>()?;
    let dense: usize = config
        .dense
        .iter()
        .map(|step| step.num_inputs * step.num_outputs * 4)
        .sum();
    Ok(named
        + dense
        + match &config.layers {
            Layers::Bert(_) => 0,
            Layers::Decoder(_) => file.file_bytes() as usize,
        })
}

/// Loads every tensor, using the pool's threads.
pub(super) fn load(
    file: &ModelFile,
    config: &EncoderConfig,
    pool: &ThreadPool,
) -> Result<EncoderWeights, ModelFileError> {
    let hidden = config.hidden_size;
    let head = config.head.as_ref().map(|head| {
        let names = HeadNames::of(config);
        let linear = |name: &str, rows: usize| linear(file, pool, name, (rows, hidden), names.has_bias);
        Ok::<_, ModelFileError>(HeadWeights {
            dense: names.dense.as_deref().map(|name| linear(name, hidden)).transpose()?,
            labels: linear(&names.labels, head.labels.len())?,
        })
    });
    let layers = match &config.layers {
        Layers::Bert(bert) => LayerWeights::Bert(load_bert(file, config, bert, pool)?),
        Layers::Decoder(decoder) => LayerWeights::Decoder(Box::new(DecoderWeights {
            model: model::load(file, &decoder.model, pool)?,
            rope: decoder.model.rope_tables()?,
        })),
    };
    let dense = config.dense.iter().map(|step| {
        let opened = open_dense(file, step)?;
        let shape = (step.num_outputs, step.num_inputs);
        linear(&opened, pool, DENSE, shape, step.has_bias).map_err(|error| error.in_file(opened.path()))
    });
    Ok(EncoderWeights {
        layers,
        dense: dense.collect::<Result<_, ModelFileError>>()?,
        head: head.transpose()?,
    })
}

/// What a dense step's matrix is called in its own file.
const DENSE: &str = "linear";

fn open_dense(file: &ModelFile, step: &DenseStep) -> Result<ModelFile, ModelFileError> {
    ModelFile::open(&file.path().join(&step.folder))
}

fn linear(
    file: &ModelFile,
    pool: &ThreadPool,
    name: &str,
    (rows, cols): (usize, usize),
    has_bias: bool,
) -> Result<Linear, ModelFileError> {
    let bias = |name: String| vector(&file.tensor(&name)?, rows);
    Ok(Linear {
        weight: pack(file, pool, &file.tensor(&format!("{name}.weight"))?, rows, cols)?,
        bias: has_bias.then(|| bias(format!("{name}.bias"))).transpose()?,
    })
}

fn load_bert(
    file: &ModelFile,
    config: &EncoderConfig,
    bert: &BertConfig,
    pool: &ThreadPool,
) -> Result<BertWeights, ModelFileError> {
    let names = Names::of(file);
    let hidden = config.hidden_size;
    let norm = |name: String, size: usize| {
        Ok::<_, ModelFileError>(Norm {
            weight: vector(&file.tensor(&format!("{name}.weight"))?, size)?,
            bias: vector(&file.tensor(&format!("{name}.bias"))?, size)?,
        })
    };
    let shapes = part_shapes(hidden, bert.ffn_size);
    let linear = |layer: usize, part: usize| linear(file, pool, &names.part(layer, part), shapes[part], true);
    let layers = (0..config.num_layers).map(|layer| {
        Ok(EncoderLayer {
            query: linear(layer, 0)?,
            key: linear(layer, 1)?,
            value: linear(layer, 2)?,
            attention_output: linear(layer, 3)?,
            attention_norm: norm(names.part(layer, 4), hidden)?,
            up: linear(layer, 5)?,
            down: linear(layer, 6)?,
            ffn_norm: norm(names.part(layer, 7), hidden)?,
        })
    });
    let types = (bert.num_types > 0).then(|| {
        let (table, mut rows) = (table(file, &names.types(), bert.num_types, hidden)?, Vec::new());
        rows.resize(bert.num_types * hidden, 0.0);
        for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
            table.row(row, out);
        }
        Ok::<_, ModelFileError>(rows)
    });
    Ok(BertWeights {
        words: table(file, &names.words(), config.vocab_size, hidden)?,
        positions: table(file, &names.positions(), bert.num_positions, hidden)?,
        types: types.transpose()?,
        embedding_norm: norm(names.embedding_norm(), hidden)?,
        layers: layers.collect::<Result<_, ModelFileError>>()?,
    })
}

fn table(file: &ModelFile, name: &str, rows: usize, cols: usize) -> Result<Table, ModelFileError> {
    let tensor = file.tensor(name)?;
    expect(&tensor, rows, cols)?;
    let bytes = tensor.bytes.to_vec();
    file.drop_pages(tensor.bytes);
    Ok(Table {
        kind: tensor.kind,
        row_bytes: bytes.len() / rows,
        bytes,
    })
}

/// Whether a product takes its input as integers, and whether as `f32`, of all these matrices.
pub(super) fn input_forms<'a>(matrices: impl Iterator<Item = &'a PackedMatrix>) -> (bool, bool) {
    matrices.fold((false, false), |(quantised, dense), matrix| {
        (quantised || matrix.is_quantised(), dense || !matrix.is_quantised())
    })
}

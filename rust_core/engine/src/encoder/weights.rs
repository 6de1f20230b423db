//! An encoder's weights: what files call them, that they are all there in their shapes, and loading them.

use pyagent_kernels::ggml::{self, GgmlType};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::config::{EncoderArchitecture, EncoderConfig};
use crate::config::invalid;
use crate::model::{Linear, pack, vector};
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
    pub(super) dense: Linear,
    pub(super) labels: Linear,
}

/// All weights. `types` has a row for each token type.
pub(super) struct EncoderWeights {
    pub(super) words: Table,
    pub(super) positions: Table,
    pub(super) types: Option<Vec<f32>>,
    pub(super) embedding_norm: Norm,
    pub(super) layers: Vec<EncoderLayer>,
    pub(super) head: Option<HeadWeights>,
}

impl EncoderWeights {
    /// Bytes held by matrices and tables.
    pub(super) fn bytes(&self) -> usize {
        let matrices = self.layers.iter().flat_map(EncoderLayer::linears);
        let head = self.head.iter().flat_map(|head| [&head.dense, &head.labels]);
        let packed: usize = matrices.chain(head).map(|linear| linear.weight.bytes()).sum();
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
fn part_shapes(config: &EncoderConfig) -> [(usize, usize); 8] {
    let (hidden, ffn) = (config.hidden_size, config.ffn_size);
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

    /// The dense layer and the labels' matrix.
    fn head(&self, config: &EncoderConfig) -> [String; 2] {
        match config.architecture {
            EncoderArchitecture::Bert => [format!("{}pooler.dense", self.prefix), "classifier".to_owned()],
            EncoderArchitecture::Roberta => ["classifier.dense", "classifier.out_proj"].map(str::to_owned),
        }
    }

    /// Every tensor with its rows and columns. All biases are there.
    fn all(&self, config: &EncoderConfig) -> Vec<(String, usize, usize)> {
        let hidden = config.hidden_size;
        let mut all = vec![
            (self.words(), config.vocab_size, hidden),
            (self.positions(), config.num_positions, hidden),
        ];
        if config.num_types > 0 {
            all.push((self.types(), config.num_types, hidden));
        }
        let mut with_bias = |name: String, rows: usize, cols: usize, num_biases: usize| {
            all.push((format!("{name}.weight"), rows, cols));
            all.push((format!("{name}.bias"), 1, num_biases));
        };
        with_bias(self.embedding_norm(), 1, hidden, hidden);
        for layer in 0..config.num_layers {
            for (part, (rows, cols)) in part_shapes(config).into_iter().enumerate() {
                let num_biases = if is_norm(part) { cols } else { rows };
                with_bias(self.part(layer, part), rows, cols, num_biases);
            }
        }
        if let Some(head) = &config.head {
            let [dense, labels] = self.head(config);
            with_bias(dense, hidden, hidden, hidden);
            with_bias(labels, head.labels.len(), hidden, head.labels.len());
        }
        all
    }
}

/// Refuses a file in which a tensor is missing or has another shape than the configuration says.
pub(super) fn check(file: &ModelFile, config: &EncoderConfig) -> Result<(), ModelFileError> {
    for (name, rows, cols) in Names::of(file).all(config) {
        expect(&file.tensor(&name)?, rows, cols)?;
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
    let named = Names::of(file).all(config);
    let sizes = named.into_iter().map(|(name, rows, _)| {
        let tensor = file.tensor(&name)?;
        let row_bytes = tensor.bytes.len() / rows.max(1);
        Ok(rows.next_multiple_of(if rows == 1 { 1 } else { 16 }) * row_bytes)
    });
    sizes.sum()
}

/// Loads every tensor, using the pool's threads.
pub(super) fn load(
    file: &ModelFile,
    config: &EncoderConfig,
    pool: &ThreadPool,
) -> Result<EncoderWeights, ModelFileError> {
    let names = Names::of(file);
    let hidden = config.hidden_size;
    let norm = |name: String, size: usize| {
        Ok::<_, ModelFileError>(Norm {
            weight: vector(&file.tensor(&format!("{name}.weight"))?, size)?,
            bias: vector(&file.tensor(&format!("{name}.bias"))?, size)?,
        })
    };
    let shapes = part_shapes(config);
    let named = |name: String, rows: usize, cols: usize| {
        Ok::<_, ModelFileError>(Linear {
            weight: pack(file, pool, &file.tensor(&format!("{name}.weight"))?, rows, cols)?,
            bias: Some(vector(&file.tensor(&format!("{name}.bias"))?, rows)?),
        })
    };
    let linear = |layer: usize, part: usize| named(names.part(layer, part), shapes[part].0, shapes[part].1);
    let head = config.head.as_ref().map(|head| {
        let [dense, labels] = names.head(config);
        Ok::<_, ModelFileError>(HeadWeights {
            dense: named(dense, hidden, hidden)?,
            labels: named(labels, head.labels.len(), hidden)?,
        })
    });
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
    let types = (config.num_types > 0).then(|| {
        let (table, mut rows) = (table(file, &names.types(), config.num_types, hidden)?, Vec::new());
        rows.resize(config.num_types * hidden, 0.0);
        for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
            table.row(row, out);
        }
        Ok::<_, ModelFileError>(rows)
    });
    Ok(EncoderWeights {
        words: table(file, &names.words(), config.vocab_size, hidden)?,
        positions: table(file, &names.positions(), config.num_positions, hidden)?,
        types: types.transpose()?,
        embedding_norm: norm(names.embedding_norm(), hidden)?,
        layers: layers.collect::<Result<_, ModelFileError>>()?,
        head: head.transpose()?,
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

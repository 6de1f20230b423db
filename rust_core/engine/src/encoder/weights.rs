//! An encoder's weights: that they are all there in their shapes, and loading them.

use pyagent_kernels::elementwise::{RopeError, RopeTable};
use pyagent_kernels::ggml::{self, GgmlType};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::thread_pool::ThreadPool;

use super::attention_pooling::PoolingAttention;
use super::bert_config::{BertConfig, Positions};
use super::bert_gguf::refuse_unread;
use super::bert_names::{HeadNames, Names, Place};
use super::config::{EncoderConfig, Layers};
use super::distances::{DistanceKind, Distances, NUM_BUCKETS};
use super::experts::Experts;
use super::latents::LatentWeights;
use super::layer_names::Part;
use super::query_pooling::QueryWeights;
use super::steps::{DensePlace, DenseStep, LabelWords};
use super::tasks::{LayerTasks, TaskTable};
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
    /// Bytes held.
    pub(super) fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

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
    pub(super) attention_norm: Option<Norm>,
    pub(super) feed_forward: FeedForward,
    pub(super) ffn_norm: Norm,
    pub(super) query_norm: Option<Norm>,
    pub(super) key_norm: Option<Norm>,
    /// What follows when the stream is added a second time after attention.
    pub(super) second_norm: Option<Norm>,
    /// What is added for texts of a task.
    pub(super) tasks: Option<LayerTasks>,
}

/// What follows attention.
pub(super) enum FeedForward {
    Dense(Box<DenseBlock>),
    Experts(Box<Experts>),
}

/// A block that every token goes through.
pub(super) struct DenseBlock {
    pub(super) gate: Option<Linear>,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl FeedForward {
    /// What is added at last.
    pub(super) fn bias(&self) -> Option<&[f32]> {
        match self {
            Self::Dense(block) => block.down.bias.as_deref(),
            Self::Experts(experts) => experts.bias.as_deref(),
        }
    }

    fn matrices(&self) -> Box<dyn Iterator<Item = &PackedMatrix> + '_> {
        match self {
            Self::Dense(block) => {
                let linears = [&block.up, &block.down].into_iter().chain(&block.gate);
                Box::new(linears.map(|linear| &linear.weight))
            }
            Self::Experts(experts) => Box::new(experts.matrices()),
        }
    }
}

impl EncoderLayer {
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let own = [&self.query, &self.key, &self.value, &self.attention_output];
        let own = own.into_iter().map(|linear| &linear.weight);
        own.chain(self.feed_forward.matrices())
    }
}

/// The matrices of a model that ranks or classifies.
pub(super) struct HeadWeights {
    /// What comes before the labels' matrix, with an activation, in BERT's families.
    pub(super) dense: Option<Linear>,
    pub(super) norm: Option<Norm>,
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
    /// What attends when a text is pooled.
    pub(super) attention: Option<AttentionWeights>,
}

/// What attends when a text is pooled.
pub(super) enum AttentionWeights {
    Latents(Box<LatentWeights>),
    Query(Box<QueryWeights>),
}

impl AttentionWeights {
    fn load(
        file: &ModelFile,
        attention: &PoolingAttention,
        hidden: usize,
        pool: &ThreadPool,
    ) -> Result<Self, ModelFileError> {
        Ok(match attention {
            PoolingAttention::Latents(shape) => {
                Self::Latents(Box::new(LatentWeights::load(file, shape, hidden, pool)?))
            }
            PoolingAttention::Query(shape) => Self::Query(Box::new(QueryWeights::load(file, shape, hidden)?)),
        })
    }
}

/// What the layers multiply with.
pub(super) enum LayerWeights {
    Bert(Box<BertWeights>),
    Decoder(Box<DecoderWeights>),
}

/// A decoder's, and the angles of layers that see everything and of those with a window.
pub(super) struct DecoderWeights {
    pub(super) model: Weights,
    pub(super) rope: [RopeTable; 2],
    /// An encoder-decoder's: what is added to scores by distance, of all layers or of each.
    pub(super) distances: Vec<Distances>,
}

impl DecoderWeights {
    /// What is added to a layer's scores by distance, if anything.
    pub(super) fn distances_of(&self, layer: usize) -> Option<&Distances> {
        self.distances.get(layer).or_else(|| self.distances.first())
    }
}

/// BERT's. `types` has a row for each token type; `rope` the angles of layers that see everything and of the others.
pub(super) struct BertWeights {
    pub(super) words: Table,
    pub(super) positions: Option<Table>,
    pub(super) types: Option<Vec<f32>>,
    pub(super) embedding_norm: Norm,
    pub(super) layers: Vec<EncoderLayer>,
    pub(super) final_norm: Option<Norm>,
    pub(super) rope: Option<[RopeTable; 2]>,
    pub(super) distances: Option<Distances>,
    /// What is added to rows of `words`, and of `types`, for texts of a task.
    pub(super) task_tables: Option<(TaskTable, Option<TaskTable>)>,
}

impl EncoderWeights {
    /// Bytes held by matrices and tables.
    pub(super) fn bytes(&self) -> usize {
        let last: usize = self.last_matrices().map(PackedMatrix::bytes).sum();
        let query = match &self.attention {
            Some(AttentionWeights::Query(query)) => query.bytes(),
            _ => 0,
        };
        last + query
            + match &self.layers {
                LayerWeights::Bert(bert) => bert.bytes(),
                LayerWeights::Decoder(decoder) => decoder.model.bytes(),
            }
    }

    /// The matrices after the layers.
    pub(super) fn last_matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let linears = self.dense.iter().chain(self.head.iter().flat_map(HeadWeights::linears));
        let latents = self.latents().into_iter().flat_map(LatentWeights::matrices);
        linears.map(|linear| &linear.weight).chain(latents)
    }

    /// What each token goes through after the layers.
    pub(super) fn latents(&self) -> Option<&LatentWeights> {
        match &self.attention {
            Some(AttentionWeights::Latents(latents)) => Some(latents),
            _ => None,
        }
    }

    /// Has the angles of so many positions.
    pub(super) fn reach(&mut self, num_positions: usize) -> Result<(), RopeError> {
        match &mut self.layers {
            LayerWeights::Bert(bert) => {
                if let Some(distances) = &mut bert.distances {
                    distances.grow_to(num_positions);
                }
                let mut tables = bert.rope.iter_mut().flatten();
                tables.try_for_each(|rope| rope.grow_to(num_positions))
            }
            LayerWeights::Decoder(decoder) => decoder.rope.iter_mut().try_for_each(|rope| rope.grow_to(num_positions)),
        }
    }
}

impl BertWeights {
    /// The layers' matrices.
    pub(super) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.layers.iter().flat_map(EncoderLayer::matrices)
    }

    fn bytes(&self) -> usize {
        let packed: usize = self.matrices().map(PackedMatrix::bytes).sum();
        let tables = self.positions.iter().chain([&self.words]).map(Table::num_bytes);
        let of_layers = self.layers.iter().filter_map(|layer| layer.tasks.as_ref());
        let of_tables = self
            .task_tables
            .iter()
            .flat_map(|(words, types)| types.iter().chain([words]));
        let tasks = of_layers.map(LayerTasks::bytes).chain(of_tables.map(TaskTable::bytes));
        packed + tables.chain(tasks).sum::<usize>()
    }
}

/// The matrix that decoders multiply their last vector with: their own, or the embedding.
fn output_name(file: &ModelFile) -> Result<&'static str, ModelFileError> {
    let own = file.find_tensor("lm_head.weight")?.map(|_| "lm_head.weight");
    let is_inner = || {
        file.find_tensor("model.embed_tokens.weight")
            .map(|found| found.is_some())
    };
    match own {
        Some(name) => Ok(name),
        None if is_inner()? => Ok("model.embed_tokens.weight"),
        None => Ok("embed_tokens.weight"),
    }
}

/// One row: how much likelier a decoder says one word than another.
fn word_matrix(file: &ModelFile, words: LabelWords, hidden: usize) -> Result<Linear, ModelFileError> {
    let name = output_name(file)?;
    let row = |token: usize| {
        let tensor = file.tensor(name)?;
        let part = tensor.part(&(token..token + 1)).filter(|part| part.cols() == hidden);
        let missing = || {
            invalid(format!(
                "tensor '{name}' has no row of {hidden} numbers for token {token}"
            ))
        };
        vector(&part.ok_or_else(missing)?, hidden)
    };
    let mut numbers = row(words.yes)?;
    if let Some(no) = words.no {
        numbers.iter_mut().zip(row(no)?).for_each(|(yes, no)| *yes -= no);
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let refused = |error| invalid(format!("tensor '{name}' cannot be packed: {error}"));
    let weight = PackedMatrix::allocate(GgmlType::F32, 1, hidden).map_err(refused)?;
    weight.check_source(&bytes).map_err(refused)?;
    // SAFETY: nobody else has it yet.
    unsafe { weight.pack_groups(&bytes, 0..weight.num_groups()) };
    Ok(Linear { weight, bias: None })
}

/// Every tensor of BERT's layers, and of a head, with its rows and columns.
fn all(file: &ModelFile, config: &EncoderConfig) -> Vec<(String, usize, usize)> {
    let layers = match &config.layers {
        Layers::Bert(bert) => Names::of(file, bert, config.hidden_size).all(config),
        Layers::Decoder(_) => Vec::new(),
    };
    let head = config.head.iter().filter(|head| head.words.is_none());
    let head = head.flat_map(|head| HeadNames::of(file, config).all(head, config.hidden_size));
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
    if let Some(attention) = &config.attention {
        attention.check(file, config.hidden_size)?;
    }
    for step in &config.dense {
        in_dense(file, step, |file, name| {
            expect(
                &file.tensor(&format!("{name}.weight"))?,
                step.num_outputs,
                step.num_inputs,
            )
        })?;
    }
    Ok(())
}

pub(super) fn expect(tensor: &TensorView<'_>, rows: usize, cols: usize) -> Result<(), ModelFileError> {
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
            Layers::Bert(bert) => {
                let names = Names::of(file, bert, config.hidden_size);
                let of_layer = |layer| {
                    config
                        .tasks
                        .as_ref()
                        .map_or(0, |tasks| tasks.bytes_of_layer(&names, layer))
                };
                (0..config.num_layers).map(of_layer).sum()
            }
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
    file.forget_asked();
    let head = config.head.as_ref().map(|head| {
        let names = HeadNames::of(file, config);
        let linear = |name: &str, rows: usize, has_bias| linear(file, pool, name, (rows, hidden), has_bias);
        let dense = |name: &String| linear(name, hidden, names.has_dense_bias);
        let norm = |name: &String| {
            Ok::<_, ModelFileError>(Norm {
                weight: vector(&file.tensor(&format!("{name}.weight"))?, hidden)?,
                bias: vec![0.0; hidden],
            })
        };
        if let Some(words) = head.words {
            return Ok(HeadWeights {
                dense: None,
                norm: None,
                labels: word_matrix(file, words, hidden)?,
            });
        }
        Ok::<_, ModelFileError>(HeadWeights {
            dense: names.dense.as_ref().map(dense).transpose()?,
            norm: names.norm.as_ref().map(norm).transpose()?,
            labels: linear(&names.labels, head.labels.len(), names.has_bias)?,
        })
    });
    let attention = config.attention.as_ref();
    let attention = attention.map(|attention| AttentionWeights::load(file, attention, hidden, pool));
    let layers = match &config.layers {
        Layers::Bert(bert) => {
            let weights = load_bert(file, config, bert, pool)?;
            refuse_unread(file, config.num_layers, config.head.is_some())?;
            LayerWeights::Bert(Box::new(weights))
        }
        Layers::Decoder(decoder) => LayerWeights::Decoder(Box::new(DecoderWeights {
            model: model::load(file, &decoder.model, pool)?,
            rope: decoder.model.rope_tables()?,
            distances: Vec::new(),
        })),
    };
    let dense = config.dense.iter().map(|step| {
        let shape = (step.num_outputs, step.num_inputs);
        in_dense(file, step, |file, name| linear(file, pool, name, shape, step.has_bias))
    });
    Ok(EncoderWeights {
        layers,
        dense: dense.collect::<Result<_, ModelFileError>>()?,
        head: head.transpose()?,
        attention: attention.transpose()?,
    })
}

/// Does something with the file that a dense step's matrix is in, and the matrix's name there.
fn in_dense<T>(
    file: &ModelFile,
    step: &DenseStep,
    work: impl FnOnce(&ModelFile, &str) -> Result<T, ModelFileError>,
) -> Result<T, ModelFileError> {
    match &step.place {
        DensePlace::Tensor(name) => work(file, name),
        DensePlace::Folder(folder) => {
            let opened = ModelFile::open(&file.path().join(folder))?;
            work(&opened, "linear").map_err(|error| error.in_file(opened.path()))
        }
    }
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
    let hidden = config.hidden_size;
    let names = Names::of(file, bert, hidden);
    let tasks = config.tasks.as_ref();
    let norm = |place: Place| {
        let added = |name: String| vector(&file.tensor(&name)?, place.cols);
        let bias = place.has_bias.then(|| added(format!("{}.bias", place.name)));
        Ok::<_, ModelFileError>(Norm {
            weight: vector(&file.tensor(&format!("{}.weight", place.name))?, place.cols)?,
            bias: bias.transpose()?.unwrap_or_else(|| vec![0.0; place.cols]),
        })
    };
    let layers = (0..config.num_layers).map(|layer| {
        let find = |part: Part| names.part(layer, part).map(|place| share(file, pool, &place));
        let need = |part: Part| find(part).expect("every family has it");
        let norm = |part: Part| names.part(layer, part).map(norm);
        Ok(EncoderLayer {
            query: need(Part::Query)?,
            key: need(Part::Key)?,
            value: need(Part::Value)?,
            attention_output: need(Part::AttentionOutput)?,
            attention_norm: norm(Part::AttentionNorm).transpose()?,
            feed_forward: match bert.experts_of(layer) {
                Some(experts) => {
                    let (names, sizes) = (names.experts(layer), (hidden, bert.ffn_size));
                    FeedForward::Experts(Box::new(Experts::load(file, &names, experts, sizes, pool)?))
                }
                None => FeedForward::Dense(Box::new(DenseBlock {
                    gate: find(Part::Gate).transpose()?,
                    up: need(Part::Up)?,
                    down: need(Part::Down)?,
                })),
            },
            ffn_norm: norm(Part::FfnNorm).expect("every family has it")?,
            query_norm: norm(Part::QueryNorm).transpose()?,
            key_norm: norm(Part::KeyNorm).transpose()?,
            second_norm: norm(Part::SecondNorm).transpose()?,
            tasks: tasks
                .map(|tasks| LayerTasks::load(file, &names, tasks, layer))
                .transpose()?,
        })
    });
    let rows = |name: String, rows| table(file, &names.weight(&name), rows, hidden);
    let added = |tasks, name: String, rows| TaskTable::load(file, &name, tasks, (rows, hidden));
    let task_tables = tasks.map(|tasks| {
        let types = (bert.num_types > 0).then(|| added(tasks, names.types(), bert.num_types));
        Ok::<_, ModelFileError>((added(tasks, names.words(), config.vocab_size)?, types.transpose()?))
    });
    let types = (bert.num_types > 0).then(|| {
        let (table, mut rows) = (rows(names.types(), bert.num_types)?, Vec::new());
        rows.resize(bert.num_types * hidden, 0.0);
        for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
            table.row(row, out);
        }
        Ok::<_, ModelFileError>(rows)
    });
    Ok(BertWeights {
        words: rows(names.words(), config.vocab_size)?,
        positions: match bert.positions {
            Positions::Table { num_rows, .. } => Some(rows(names.positions(), num_rows)?),
            Positions::Rotary { .. } | Positions::Alibi => None,
        },
        types: types.transpose()?,
        embedding_norm: norm(names.embedding_norm())?,
        layers: layers.collect::<Result<_, ModelFileError>>()?,
        final_norm: names.final_norm().map(norm).transpose()?,
        rope: bert.rope_tables(hidden, config.max_tokens)?,
        distances: distances(file, &names, bert)?,
        task_tables: task_tables.transpose()?,
    })
}

/// What is added to scores by distance, if anything.
fn distances(file: &ModelFile, names: &Names<'_>, bert: &BertConfig) -> Result<Option<Distances>, ModelFileError> {
    let table = match bert.distance_kind() {
        None => return Ok(None),
        Some(DistanceKind::Alibi) => None,
        Some(DistanceKind::Buckets) => {
            let name = format!("{}.weight", names.distances());
            Some(vector(&file.tensor(&name)?, NUM_BUCKETS * bert.num_heads)?)
        }
    };
    Ok(Some(Distances::new(bert.num_heads, table)))
}

/// Loads a matrix, or the share of one that is this part's.
fn share(file: &ModelFile, pool: &ThreadPool, place: &Place) -> Result<Linear, ModelFileError> {
    let Place { name, rows, cols, .. } = place;
    let whole = file.tensor(&place.weight)?;
    expect(&whole, place.num_rows, *cols)?;
    let part = whole.part(rows).expect("rows of a whole that has them");
    let bias = place.has_bias.then(|| {
        let whole = vector(&file.tensor(&format!("{name}.bias"))?, place.num_biases())?;
        Ok::<_, ModelFileError>(whole[place.bias_rows()].to_vec())
    });
    Ok(Linear {
        weight: pack(file, pool, &part, rows.len(), *cols)?,
        bias: bias.transpose()?,
    })
}

/// Loads rows that are looked up.
pub(super) fn table(file: &ModelFile, name: &str, rows: usize, cols: usize) -> Result<Table, ModelFileError> {
    let tensor = file.tensor(name)?;
    expect(&tensor, rows, cols)?;
    let bytes = tensor.bytes.to_vec();
    file.drop_pages(tensor.bytes);
    file.note_loaded(bytes.len());
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

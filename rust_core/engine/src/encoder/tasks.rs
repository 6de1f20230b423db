//! Tasks of one model: what is added to its matrices and tables for a text of a task (`LoRA`, Hu et al. 2021, arXiv
//! 2106.09685), as jina-embeddings-v3 has it (Sturua et al. 2024, arXiv 2409.10173).
//!
//! Rows of other tasks, and of none, never see what is added, so a text's vector does not depend on its batch.

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::isa::Isa;
use pyagent_kernels::low_rank::{UpMatrix, add_low_rank};
use pyagent_kernels::matmul::{Activations, matmul_gathered};
use pyagent_kernels::pack::PackedMatrix;
use serde_json::{Map, Value};

use super::bert_names::{Names, Place as Tensor};
use super::forward::Place;
use super::layer_names::{MATRICES, Part};
use super::weights::{Table, table};
use crate::config::hugging_face::JsonConfig;
use crate::config::invalid;
use crate::weights::{ModelFile, ModelFileError, clipped};

/// Tasks of a model at most: a text's task is told in this many values of a token.
pub(super) const MOST_TASKS: usize = 15;
/// The largest rank that is read.
const MOST_RANK: usize = 512;

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// What is put before its texts.
    pub instruction: String,
}

/// The tasks of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tasks {
    /// In the order of their matrices.
    pub all: Vec<Task>,
    /// Numbers between the two matrices of what is added.
    pub rank: usize,
    /// Its factor.
    pub scale: f32,
}

impl Tasks {
    /// Reads what `config.json` says; None of a model without tasks, or whose tasks are not trained.
    pub(super) fn of(config: &Map<String, Value>) -> Result<Option<Self>, ModelFileError> {
        let names = match config.get("lora_adaptations") {
            None | Some(Value::Null) => return Ok(None),
            _ if config.get("load_trained_adapters") == Some(&Value::Bool(false)) => return Ok(None),
            Some(names) => names.as_array().map(Vec::as_slice).unwrap_or_default(),
        };
        if !(1..=MOST_TASKS).contains(&names.len()) {
            return Err(invalid(format!(
                "config.json: 'lora_adaptations' names {} tasks; expected 1 to {MOST_TASKS}",
                names.len()
            )));
        }
        let json = JsonConfig(config, None);
        let rank = json.optional_size("lora_rank")?.unwrap_or(4);
        let alpha = match config.get("lora_alpha") {
            None | Some(Value::Null) => 1.0,
            Some(alpha) => alpha.as_f64().unwrap_or(f64::NAN),
        };
        if !(1..=MOST_RANK).contains(&rank) || !alpha.is_finite() {
            return Err(invalid(format!(
                "config.json: 'lora_rank' is {rank} and 'lora_alpha' {alpha}; expected 1 to {MOST_RANK}, and a number"
            )));
        }
        let instructions = match config.get("task_instructions") {
            None | Some(Value::Null) => None,
            Some(Value::Object(texts)) => Some(texts),
            Some(_) => {
                return Err(invalid(
                    "config.json: 'task_instructions' must be a table with a text for each task".to_owned(),
                ));
            }
        };
        let mut all: Vec<Task> = Vec::new();
        for name in names {
            let name = name.as_str().filter(|name| !name.is_empty());
            let Some(name) = name.filter(|name| all.iter().all(|task| task.name != *name)) else {
                return Err(invalid(
                    "config.json: 'lora_adaptations' has an entry that is no name, or one twice".to_owned(),
                ));
            };
            let instruction = match instructions.map(|texts| texts.get(name)) {
                None => "",
                Some(Some(Value::String(text))) => text,
                Some(_) => {
                    let name = clipped(name);
                    return Err(invalid(format!(
                        "config.json: 'task_instructions' has no text for the task '{name}'"
                    )));
                }
            };
            all.push(Task {
                name: name.to_owned(),
                instruction: instruction.to_owned(),
            });
        }
        Ok(Some(Self {
            all,
            rank,
            scale: (alpha / rank as f64) as f32,
        }))
    }

    /// The tensors of what is added to a matrix, with their rows and columns.
    pub(super) fn of_matrix(&self, place: &Tensor) -> [(String, usize, usize); 2] {
        let (count, rank) = (self.all.len(), self.rank);
        [
            (lora(&place.name, 'A'), count * rank, place.cols),
            (lora(&place.name, 'B'), count * place.num_rows, rank),
        ]
    }

    /// Bytes that what is added to a layer's matrices takes once loaded.
    pub(super) fn bytes_of_layer(&self, names: &Names<'_>, layer: usize) -> usize {
        let places = MATRICES.into_iter().filter_map(|part| names.part(layer, part));
        let of_place = |place: Tensor| {
            let down = self.rank.next_multiple_of(16) * place.cols * 4;
            self.all.len() * (down + UpMatrix::bytes_of(self.rank, place.rows.len()))
        };
        places.map(of_place).sum()
    }

    /// The tensors of what is added to a table whose rows are looked up.
    pub(super) fn of_table(&self, name: &str, num_rows: usize, cols: usize) -> [(String, usize, usize); 2] {
        let (count, rank) = (self.all.len(), self.rank);
        [
            (lora(name, 'A'), count * num_rows, rank),
            (lora(name, 'B'), count * rank, cols),
        ]
    }
}

fn lora(name: &str, which: char) -> String {
    format!("{name}.parametrizations.weight.0.lora_{which}")
}

/// What is added to a matrix for one task: `B A x`, with the factor in `B`.
struct LowRank {
    down: PackedMatrix,
    up: UpMatrix,
}

/// What is added to the matrices of a layer, for each task.
pub(super) struct LayerTasks {
    parts: Vec<(Part, Vec<LowRank>)>,
}

/// What is added to the rows of a table, for each task.
pub(super) struct TaskTable {
    /// A row for each task and row of the table, of as many numbers as the rank.
    rows: Table,
    num_rows: usize,
    rank: usize,
    up: Vec<UpMatrix>,
}

impl LayerTasks {
    /// Loads those of a layer's matrices.
    pub(super) fn load(
        file: &ModelFile,
        names: &Names<'_>,
        tasks: &Tasks,
        layer: usize,
    ) -> Result<Self, ModelFileError> {
        let parts = MATRICES.into_iter().filter_map(|part| {
            let place = names.part(layer, part)?;
            let all = (0..tasks.all.len()).map(|task| LowRank::load(file, &place, tasks, task));
            Some(all.collect::<Result<_, _>>().map(|all| (part, all)))
        });
        Ok(Self {
            parts: parts.collect::<Result<_, ModelFileError>>()?,
        })
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let all = self.parts.iter().flat_map(|(_, all)| all);
        all.map(|low| low.down.bytes() + low.up.bytes()).sum()
    }

    /// Adds to what a part's matrix gave of a tile's tokens, each by its task.
    ///
    /// # Safety
    /// At `out` there is a row for each token, `stride` numbers apart, that nobody else uses; the input is written.
    #[expect(clippy::too_many_arguments, reason = "as a product, and whose tokens")]
    pub(super) unsafe fn add(
        &self,
        isa: Isa,
        part: Part,
        tokens: &[Place],
        input: &Activations,
        out: *mut f32,
        stride: usize,
        scratch: &mut Vec<f32>,
    ) {
        let Some((_, all)) = self.parts.iter().find(|(of, _)| *of == part) else {
            return;
        };
        for (task, low) in all.iter().enumerate() {
            let rows = tokens.iter().enumerate().filter(|(_, token)| token.task == task + 1);
            let rows: Vec<u32> = rows.map(|(row, _)| row as u32).collect();
            if rows.is_empty() {
                continue;
            }
            let rank = low.up.rank();
            scratch.resize(rows.len() * rank, 0.0);
            let groups = 0..low.down.num_groups();
            // SAFETY: by contract; the scratch has a row of the rank's numbers for each.
            unsafe {
                matmul_gathered(
                    isa,
                    &low.down,
                    groups,
                    input,
                    &rows,
                    0..rows.len(),
                    scratch.as_mut_ptr(),
                    rank,
                );
            }
            for (row, numbers) in rows.iter().zip(scratch.chunks_exact(rank)) {
                // SAFETY: by contract, and written.
                let added =
                    unsafe { std::slice::from_raw_parts_mut(out.wrapping_add(*row as usize * stride), low.up.rows()) };
                add_low_rank(isa, added, numbers, &low.up, 0);
            }
        }
    }
}

impl LowRank {
    fn load(file: &ModelFile, place: &Tensor, tasks: &Tasks, task: usize) -> Result<Self, ModelFileError> {
        let [(down, ..), (up, ..)] = tasks.of_matrix(place);
        let (rank, rows) = (tasks.rank, place.rows.len());
        let first = task * place.num_rows + place.rows.start;
        let down = numbers_of(file, &down, task * rank..(task + 1) * rank)?;
        let bytes: Vec<u8> = down.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut up = numbers_of(file, &up, first..first + rows)?;
        up.iter_mut().for_each(|number| *number *= tasks.scale);
        Ok(Self {
            down: PackedMatrix::pack(GgmlType::F32, &bytes, rank, place.cols)
                .map_err(|error| invalid(format!("what a task adds to '{}': {error}", place.name)))?,
            up: UpMatrix::new(rank, rows, |row| &up[row * rank..][..rank]),
        })
    }
}

impl TaskTable {
    /// Loads what is added to a table of so many rows.
    pub(super) fn load(
        file: &ModelFile,
        name: &str,
        tasks: &Tasks,
        (num_rows, cols): (usize, usize),
    ) -> Result<Self, ModelFileError> {
        let [(rows, count, rank), (up, ..)] = tasks.of_table(name, num_rows, cols);
        let up = (0..tasks.all.len()).map(|task| {
            let numbers = numbers_of(file, &up, task * rank..(task + 1) * rank)?;
            let column = |col: usize| (0..rank).map(move |row| (row, col));
            let turned: Vec<f32> = (0..cols)
                .flat_map(column)
                .map(|(row, col)| numbers[row * cols + col] * tasks.scale)
                .collect();
            Ok::<_, ModelFileError>(UpMatrix::new(rank, cols, |row| &turned[row * rank..][..rank]))
        });
        Ok(Self {
            up: up.collect::<Result<_, _>>()?,
            rows: table(file, &rows, count, rank)?,
            num_rows,
            rank,
        })
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.rows.num_bytes() + self.up.iter().map(UpMatrix::bytes).sum::<usize>()
    }

    /// Adds what a task adds to a row, if there is one.
    pub(super) fn add(&self, isa: Isa, task: usize, row: usize, out: &mut [f32], scratch: &mut Vec<f32>) {
        let Some(index) = task.checked_sub(1) else {
            return;
        };
        scratch.resize(self.rank, 0.0);
        self.rows.row(index * self.num_rows + row, scratch);
        add_low_rank(isa, out, scratch, &self.up[index], 0);
    }
}

/// Some rows of a tensor, as numbers.
fn numbers_of(file: &ModelFile, name: &str, rows: std::ops::Range<usize>) -> Result<Vec<f32>, ModelFileError> {
    let missing = || {
        invalid(format!(
            "tensor '{}' has no rows {} to {}",
            clipped(name),
            rows.start,
            rows.end
        ))
    };
    let part = file.tensor(name)?.part(&rows).ok_or_else(missing)?;
    part.to_f32()
        .map_err(|error| invalid(format!("tensor '{}': {error}", clipped(name))))
}

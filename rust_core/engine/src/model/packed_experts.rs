//! gpt-oss's, Llama 4's and Qwen3-VL's experts in safetensors: all of a layer's in one tensor each, gate and up in turns, or
//! one after the other in those of the other two, which have no biases.
//!
//! Either plain numbers as `[experts, in, out]`, or MXFP4 as `[experts, out, in / 32, 16]` bytes, two neighbours in each,
//! beside `[experts, out, in / 32]` exponents. They are packed by way of the order that GGUF files have.

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::pack::{BLOCK_COLS, PackedMatrix};
use pyagent_kernels::thread_pool::ThreadPool;

use super::{Gated, Linear, pack, vector};
use crate::config::{Architecture, ModelConfig, invalid};
use crate::weights::{ModelFile, ModelFileError, StoredTensor, TensorView, clipped};

/// Bytes of a block's 4-bit numbers.
const NIBBLE_BYTES: usize = BLOCK_COLS / 2;

/// A layer's experts, all tensors found and measured.
pub(super) struct PackedExperts<'a> {
    file: &'a ModelFile,
    num_experts: usize,
    hidden: usize,
    ffn: usize,
    /// Whether a gate's row is followed by that of its up.
    is_in_turns: bool,
    gate_up: Stack<'a>,
    down: Stack<'a>,
}

/// The matrices and biases of all experts.
struct Stack<'a> {
    weights: Weights<'a>,
    /// `[experts, out]`.
    biases: Option<TensorView<'a>>,
    rows: usize,
    cols: usize,
}

enum Weights<'a> {
    /// `[experts, in, out]`.
    Plain(TensorView<'a>),
    /// Numbers and exponents.
    Mxfp4(StoredTensor<'a>, StoredTensor<'a>),
}

impl<'a> PackedExperts<'a> {
    /// The experts under the name `block`. Raises where a tensor is missing, of another size or another type.
    pub(super) fn find(file: &'a ModelFile, block: &str, config: &ModelConfig) -> Result<Self, ModelFileError> {
        let num_experts = config.experts.map_or(0, |experts| experts.num_experts);
        let (hidden, ffn) = (config.hidden_size, config.ffn_size);
        let is_openai = config.architecture == Architecture::GptOss;
        let stack = |name: &str, rows, cols| {
            Stack::find(file, &format!("{block}.{name}"), [num_experts, rows, cols], is_openai)
        };
        Ok(Self {
            file,
            is_in_turns: is_openai,
            num_experts,
            hidden,
            ffn,
            gate_up: stack("gate_up_proj", 2 * ffn, hidden)?,
            down: stack("down_proj", hidden, ffn)?,
        })
    }

    /// Packs the experts, and gives their pages in the file back.
    pub(super) fn read(&self, pool: &ThreadPool) -> Result<Vec<Gated>, ModelFileError> {
        let (gate_up, down) = (&self.gate_up, &self.down);
        let expert = |expert: usize| {
            let linear = |stack: &Stack<'_>, rows: &[usize]| stack.linear(self.file, pool, expert, rows);
            let (step, beside) = if self.is_in_turns { (2, 1) } else { (1, self.ffn) };
            let gate: Vec<usize> = (0..self.ffn).map(|row| step * row).collect();
            let up: Vec<usize> = gate.iter().map(|row| row + beside).collect();
            let all: Vec<usize> = (0..self.hidden).collect();
            Ok(Gated {
                gate: Some(linear(gate_up, &gate)?),
                up: linear(gate_up, &up)?,
                down: linear(down, &all)?,
                curve: None,
            })
        };
        let experts = (0..self.num_experts).map(expert).collect();
        [gate_up, down]
            .into_iter()
            .for_each(|stack| stack.drop_pages(self.file));
        experts
    }
}

impl<'a> Stack<'a> {
    fn find(
        file: &'a ModelFile,
        name: &str,
        [num_experts, rows, cols]: [usize; 3],
        has_biases: bool,
    ) -> Result<Self, ModelFileError> {
        let biases = has_biases.then(|| file.tensor(&format!("{name}_bias"))).transpose()?;
        if let Some(biases) = &biases {
            expect(biases.name, biases.dims, &[rows, num_experts])?;
        }
        let of_blocks = |end: &str| file.find_stored(&format!("{name}_{end}"));
        let weights = match (of_blocks("blocks")?, of_blocks("scales")?) {
            (Some(blocks), Some(scales)) => {
                if !cols.is_multiple_of(BLOCK_COLS) {
                    return Err(invalid(format!(
                        "{cols} columns of MXFP4 are not whole blocks of {BLOCK_COLS}"
                    )));
                }
                expect_bytes(&blocks, &[NIBBLE_BYTES, cols / BLOCK_COLS, rows, num_experts])?;
                expect_bytes(&scales, &[cols / BLOCK_COLS, rows, num_experts])?;
                Weights::Mxfp4(blocks, scales)
            }
            (None, None) => {
                let plain = file.tensor(name)?;
                expect(plain.name, plain.dims, &[rows, cols, num_experts])?;
                Weights::Plain(plain)
            }
            (blocks, _) => {
                let missing = if blocks.is_some() { "scales" } else { "blocks" };
                let name = format!("{name}_{missing}");
                return Err(ModelFileError::TensorMissing { name });
            }
        };
        Ok(Self {
            weights,
            biases,
            rows,
            cols,
        })
    }

    /// Some rows of an expert's matrix, packed, with their biases.
    fn linear(
        &self,
        file: &ModelFile,
        pool: &ThreadPool,
        expert: usize,
        rows: &[usize],
    ) -> Result<Linear, ModelFileError> {
        let (kind, name, bytes) = match &self.weights {
            Weights::Plain(plain) => (plain.kind, plain.name, self.transposed(plain, expert, rows)),
            Weights::Mxfp4(blocks, scales) => (GgmlType::MXFP4, blocks.name, self.blocks(blocks, scales, expert, rows)),
        };
        let tensor = TensorView {
            name,
            dims: &[self.cols, rows.len()],
            kind,
            bytes: &bytes,
        };
        let weight: PackedMatrix = pack(file, pool, &tensor, rows.len(), self.cols)?;
        let biases = self
            .biases
            .as_ref()
            .and_then(|biases| biases.part(&(expert..expert + 1)));
        let biases = biases.map(|row| vector(&row, self.rows)).transpose()?;
        Ok(Linear {
            weight,
            bias: biases.map(|biases| rows.iter().map(|row| biases[*row]).collect()),
        })
    }

    fn transposed(&self, plain: &TensorView<'_>, expert: usize, rows: &[usize]) -> Vec<u8> {
        let width = plain.kind.block_bytes();
        let matrix = &plain.bytes[expert * self.rows * self.cols * width..];
        let mut bytes = Vec::with_capacity(rows.len() * self.cols * width);
        for row in rows {
            for column in 0..self.cols {
                let start = (column * self.rows + row) * width;
                bytes.extend_from_slice(&matrix[start..start + width]);
            }
        }
        bytes
    }

    /// GGUF's blocks: an exponent, then 16 bytes with numbers `i` and `i + 16`.
    fn blocks(&self, blocks: &StoredTensor<'_>, scales: &StoredTensor<'_>, expert: usize, rows: &[usize]) -> Vec<u8> {
        let per_row = self.cols / BLOCK_COLS;
        let mut bytes = Vec::with_capacity(rows.len() * per_row * (1 + NIBBLE_BYTES));
        for row in rows {
            let first = (expert * self.rows + row) * per_row;
            for block in first..first + per_row {
                let pairs = &blocks.bytes[block * NIBBLE_BYTES..(block + 1) * NIBBLE_BYTES];
                let nibble = |place: usize| pairs[place / 2] >> (4 * (place % 2)) & 0x0f;
                bytes.push(scales.bytes[block]);
                bytes.extend((0..NIBBLE_BYTES).map(|place| nibble(place) | nibble(place + NIBBLE_BYTES) << 4));
            }
        }
        bytes
    }

    fn drop_pages(&self, file: &ModelFile) {
        match &self.weights {
            Weights::Plain(plain) => file.drop_pages(plain.bytes),
            Weights::Mxfp4(blocks, scales) => [blocks, scales]
                .into_iter()
                .for_each(|tensor| file.drop_pages(tensor.bytes)),
        }
    }
}

fn expect(name: &str, dims: &[usize], expected: &[usize]) -> Result<(), ModelFileError> {
    if dims == expected {
        return Ok(());
    }
    Err(invalid(format!("tensor '{name}' is {dims:?}; expected {expected:?}")))
}

fn expect_bytes(tensor: &StoredTensor<'_>, expected: &[usize]) -> Result<(), ModelFileError> {
    if tensor.kind != "U8" {
        let (name, kind) = (tensor.name, clipped(tensor.kind));
        return Err(invalid(format!("tensor '{name}' is {kind}; expected U8")));
    }
    expect(tensor.name, &tensor.dims, expected)
}

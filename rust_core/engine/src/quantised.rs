//! Quantised checkpoints in safetensors: GPTQ, AWQ, compressed-tensors, FP8 and NVFP4 as matrices of types that the kernels have.
//!
//! The tensors decide which matrices are quantised, `quantization_config` says what they cannot. A matrix is measured when
//! it is found, so that a faulty file is refused before memory is taken; its numbers are read one matrix at a time.

mod blocks;
mod fields;
mod matrix;
mod nvfp4;
mod scheme;
mod tensors;

use std::ops::Range;

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::thread_pool::ThreadPool;
use serde_json::Value;

use self::matrix::QuantisedMatrix;
use self::scheme::Scheme;
use self::tensors::Module;
use crate::safetensors::QUANTIZATION;
use crate::weights::{ModelFile, ModelFileError, StoredTensor, TensorView};

/// What a folder of safetensors says of how its weights are quantised.
pub fn quantization(file: &ModelFile) -> Option<&Value> {
    let ModelFile::Safetensors(folder) = file else {
        return None;
    };
    let found = QUANTIZATION.iter().find_map(|field| folder.config().get(*field));
    found.filter(|value| !value.is_null())
}

/// The matrices of a file, plain and quantised.
pub(crate) struct Matrices<'a> {
    file: &'a ModelFile,
    scheme: Option<Scheme>,
}

impl<'a> Matrices<'a> {
    /// Reads what config.json says of them; gpt-oss's MXFP4 is what others read. An error names what is not implemented.
    pub(crate) fn of(file: &'a ModelFile) -> Result<Self, ModelFileError> {
        let quantization = quantization(file).filter(|value| value.get("quant_method") != Some(&Value::from("mxfp4")));
        let scheme = quantization.map(Scheme::read).transpose()?;
        Ok(Self { file, scheme })
    }

    /// The quantised matrix of a module; `None` where there is none, or a plain one.
    pub(crate) fn quantised(&self, name: &str, cols: usize) -> Result<Option<Matrix<'a>>, ModelFileError> {
        let Some(scheme) = &self.scheme else { return Ok(None) };
        let module = Module { file: self.file, name };
        Ok(QuantisedMatrix::find(module, scheme, cols)?.map(Matrix::Quantised))
    }

    /// Bytes that all tensors take once they are packed, by the header alone: where scales are too small for half
    /// precision, or zero points are not what config.json says, it is more.
    fn packed_bytes(&self) -> Result<usize, ModelFileError> {
        let mut bytes = 0;
        for name in self.file.tensor_names() {
            let Some(tensor) = self.file.find_stored(name)? else {
                continue;
            };
            bytes += match &self.scheme {
                Some(scheme) => scheme.packed_bytes(&tensor),
                None => tensor.bytes.len(),
            };
        }
        Ok(bytes)
    }
}

/// Bytes that a file's tensors take once they are packed.
pub fn packed_bytes(file: &ModelFile) -> Result<usize, ModelFileError> {
    Matrices::of(file)?.packed_bytes()
}

impl Scheme {
    /// Bytes that a tensor's numbers take once they are packed; none where they are scales, zero points or orders.
    fn packed_bytes(&self, tensor: &StoredTensor<'_>) -> usize {
        let end = tensor.name.rsplit('.').next().unwrap_or_default();
        let of_kind = |bits: usize, is_float: bool| {
            let kind = self.of(bits, is_float)?;
            let cols = tensor.dims.first().copied().unwrap_or(1);
            Some((kind.packed_kind(cols), tensor.bytes.len() * 8 / bits))
        };
        let found = match (end, tensor.kind) {
            ("qweight" | "weight_packed", "I32") => of_kind(4, false).or_else(|| of_kind(8, false)),
            ("weight", "F8_E4M3") => of_kind(8, true),
            ("weight", "I8") => of_kind(8, false),
            ("weight" | "weight_packed", "U8") => of_kind(4, true),
            ("weight" | "bias", _) => None,
            _ => return 0,
        };
        let bytes = found.map(|(kind, count)| count.div_ceil(kind.block_elements()) * kind.block_bytes());
        bytes.unwrap_or(tensor.bytes.len())
    }
}

/// A matrix of a file, found and measured.
pub(crate) enum Matrix<'a> {
    /// As the file has it.
    Plain(TensorView<'a>),
    /// Whose numbers are still to be read.
    Quantised(QuantisedMatrix<'a>),
    /// Some columns of a tensor of plain numbers, each a row.
    Transposed(TensorView<'a>, Range<usize>),
}

impl<'a> Matrix<'a> {
    pub(crate) fn name(&self) -> &'a str {
        match self {
            Self::Plain(tensor) | Self::Transposed(tensor, _) => tensor.name,
            Self::Quantised(matrix) => matrix.name,
        }
    }

    /// Rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        match self {
            Self::Plain(tensor) => (tensor.rows(), tensor.cols()),
            Self::Quantised(matrix) => (matrix.rows.len(), matrix.cols),
            Self::Transposed(tensor, columns) => (columns.len(), tensor.rows()),
        }
    }

    /// Some of its rows; `None` where it has no such rows.
    pub(crate) fn part(self, rows: &Range<usize>) -> Option<Self> {
        match self {
            Self::Plain(tensor) => tensor.part(rows).map(Self::Plain),
            Self::Quantised(matrix) => matrix.part(rows).map(Self::Quantised),
            Self::Transposed(tensor, columns) => {
                let part = columns.start.checked_add(rows.start)?..columns.start.checked_add(rows.end)?;
                (part.end <= columns.end).then_some(Self::Transposed(tensor, part))
            }
        }
    }

    /// Its rows as blocks of a type that the kernels have.
    pub(crate) fn read(self, file: &ModelFile, pool: &ThreadPool) -> Result<Rows<'a>, ModelFileError> {
        let matrix = match self {
            Self::Plain(tensor) => return Ok(Rows::InFile(tensor)),
            Self::Transposed(tensor, columns) => return transposed(&tensor, columns),
            Self::Quantised(matrix) => matrix,
        };
        let kind = matrix.packed_kind()?;
        let bytes = matrix.blocks(kind, pool)?;
        file.drop_pages(matrix.source());
        Ok(Rows::Read {
            name: matrix.name,
            dims: [matrix.cols, matrix.rows.len()],
            kind,
            bytes,
        })
    }
}

/// Columns of a tensor as rows.
fn transposed<'a>(tensor: &TensorView<'a>, columns: Range<usize>) -> Result<Rows<'a>, ModelFileError> {
    let (name, kind, width) = (tensor.name, tensor.kind, tensor.kind.block_bytes());
    if kind.block_elements() != 1 {
        return Err(ModelFileError::Config {
            reason: format!("tensor '{name}' is {}; expected F32, F16 or BF16", kind.name()),
        });
    }
    let (rows, cols) = (tensor.rows(), tensor.cols());
    let dims = [rows, columns.len()];
    let mut bytes = Vec::with_capacity(rows * columns.len() * width);
    for column in columns {
        (0..rows).for_each(|row| bytes.extend_from_slice(&tensor.bytes[(row * cols + column) * width..][..width]));
    }
    Ok(Rows::Read {
        name,
        dims,
        kind,
        bytes,
    })
}

/// A matrix's rows.
pub(crate) enum Rows<'a> {
    InFile(TensorView<'a>),
    Read {
        name: &'a str,
        dims: [usize; 2],
        kind: GgmlType,
        bytes: Vec<u8>,
    },
}

impl Rows<'_> {
    pub(crate) fn view(&self) -> TensorView<'_> {
        match self {
            Self::InFile(tensor) => *tensor,
            Self::Read {
                name,
                dims,
                kind,
                bytes,
            } => TensorView {
                name,
                dims,
                kind: *kind,
                bytes,
            },
        }
    }
}

//! Loading an adapter, or several that add up: their tensors in the order that the kernels read.

use std::borrow::Cow;

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::low_rank::UpMatrix;
use pyagent_kernels::pack::{PackError, PackedMatrix};
use pyagent_kernels::thread_pool::ThreadPool;

use super::dora;
use super::file::Module;
use super::stack::{AdapterStack, Sum};
use super::{Adapter, LowRank};
use crate::config::invalid;
use crate::model::{Linear, Weights};
use crate::weights::{ModelFile, ModelFileError, TensorView, clipped};

/// In which type `A` is kept: as the file has it, or widened where its numbers are quantised.
pub(super) fn kept_kind(tensor: &TensorView<'_>) -> GgmlType {
    if tensor.kind.is_quantised() {
        GgmlType::F32
    } else {
        tensor.kind
    }
}

impl AdapterStack {
    /// Reads the tensors. The weights are those of the model that the files were checked against.
    pub(crate) fn load(&self, weights: &Weights, pool: &ThreadPool) -> Result<Adapter, ModelFileError> {
        let mut layers: Vec<[Option<LowRank>; 7]> = (0..self.num_layers).map(|_| Default::default()).collect();
        for sum in &self.sums {
            for (layer, projection) in sum.modules().take(1).map(|module| (module.layer, module.projection)) {
                let linear = projection.linear(&weights.layers[layer]);
                let linear = linear.ok_or_else(|| invalid("the model has changed".to_owned()))?;
                layers[layer][projection as usize] = Some(self.low_rank(sum, linear, pool)?);
            }
        }
        Ok(Adapter { layers })
    }

    fn low_rank(&self, sum: &Sum, linear: &Linear, pool: &ThreadPool) -> Result<LowRank, ModelFileError> {
        let parts = sum.parts.iter().map(|(file, module)| {
            let file = &self.files[*file];
            Factors::read(file, module).map_err(|error| error.in_file(file.path()))
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        match &parts[..] {
            [one] => one.alone(linear, pool).map_err(|error| error.in_file(one.file.path())),
            _ => beside(&parts, sum, linear.weight.rows()),
        }
    }
}

/// A module's factors as its file has them.
struct Factors<'a> {
    file: &'a ModelFile,
    module: &'a Module,
    /// `A`, [rank, in], and its numbers.
    down: TensorView<'a>,
    a: Vec<f32>,
    /// The numbers of `B`, [out, rank], in the file's order of rows.
    b: Vec<f32>,
}

impl<'a> Factors<'a> {
    fn read(file: &'a ModelFile, module: &'a Module) -> Result<Self, ModelFileError> {
        let name = module.tensors.a.as_deref().unwrap_or_default();
        Ok(Self {
            file,
            module,
            down: file.tensor(name)?,
            a: numbers(file, name)?,
            b: numbers(file, module.tensors.b.as_deref().unwrap_or_default())?,
        })
    }

    /// The file's row that is this one of the model.
    fn source(&self, row: usize) -> usize {
        self.module.rows.start + self.module.order.map_or(row, |order| order.source(row))
    }

    /// A row of `B`, in the model's order.
    fn up_row(&self, row: usize) -> &[f32] {
        &self.b[self.source(row) * self.module.rank..][..self.module.rank]
    }

    /// What the module is without others.
    fn alone(&self, linear: &Linear, pool: &ThreadPool) -> Result<LowRank, ModelFileError> {
        let module = self.module;
        let (rows, up_row) = (linear.weight.rows(), |row: usize| self.up_row(row));
        let resizing = match module.tensors.magnitude.as_deref() {
            None => None,
            Some(name) => {
                let of_file = numbers(self.file, name)?;
                let magnitudes: Vec<f32> = (0..rows).map(|row| of_file[self.source(row)]).collect();
                let delta = dora::Delta {
                    a: &self.a,
                    up_row: &up_row,
                    scale: module.scale,
                };
                Some(dora::resizing(linear, module.projection, &delta, &magnitudes, pool)?)
            }
        };
        Ok(LowRank {
            down: self.pack(&self.down_bytes(module.kind), module.kind, module.rank)?,
            up: UpMatrix::new(module.rank, rows, up_row),
            scale: module.scale,
            resizing,
        })
    }

    /// The bytes of `A` in a type: its own, or `F32`.
    fn down_bytes(&self, kind: GgmlType) -> Cow<'a, [u8]> {
        if kind == self.down.kind {
            return Cow::Borrowed(self.down.bytes);
        }
        Cow::Owned(self.a.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn pack(&self, bytes: &[u8], kind: GgmlType, rank: usize) -> Result<PackedMatrix, ModelFileError> {
        let refused = |error: PackError| invalid(format!("tensor {:?}: {error}", clipped(self.down.name)));
        PackedMatrix::pack(kind, bytes, rank, self.module.cols).map_err(refused)
    }
}

/// What several modules of one projection, of so many outputs, are together: the rows of their `A` below each other, and
/// those of their scaled `B` beside each other.
fn beside(parts: &[Factors<'_>], sum: &Sum, rows: usize) -> Result<LowRank, ModelFileError> {
    let (rank, kind) = (sum.rank(), sum.kind());
    let down: Vec<u8> = parts
        .iter()
        .flat_map(|part| part.down_bytes(kind).into_owned())
        .collect();
    let mut up = Vec::with_capacity(rows * rank);
    for row in 0..rows {
        for part in parts {
            up.extend(part.up_row(row).iter().map(|number| part.module.scale * number));
        }
    }
    Ok(LowRank {
        down: parts[0].pack(&down, kind, rank)?,
        up: UpMatrix::new(rank, rows, |row| &up[row * rank..][..rank]),
        scale: 1.0,
        resizing: None,
    })
}

/// A tensor's numbers, which are all finite.
pub(super) fn numbers(file: &ModelFile, name: &str) -> Result<Vec<f32>, ModelFileError> {
    let tensor = file.tensor(name)?;
    let shown = clipped(tensor.name);
    let numbers = tensor
        .to_f32()
        .map_err(|error| invalid(format!("tensor {shown:?}: {error}")))?;
    file.drop_pages(tensor.bytes);
    if numbers.iter().all(|number| number.is_finite()) {
        return Ok(numbers);
    }
    Err(invalid(format!(
        "tensor {shown:?} has numbers that are not finite; the file is damaged"
    )))
}

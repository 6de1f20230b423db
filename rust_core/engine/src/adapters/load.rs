//! Loading an adapter: its tensors in the order that the kernels read.

use pyagent_kernels::ggml::GgmlType;
use pyagent_kernels::low_rank::UpMatrix;
use pyagent_kernels::pack::{PackError, PackedMatrix};
use pyagent_kernels::thread_pool::ThreadPool;

use super::dora;
use super::file::{AdapterFile, Module};
use super::{Adapter, LowRank};
use crate::config::invalid;
use crate::model::Weights;
use crate::weights::{ModelFileError, TensorView, clipped};

/// In which type `A` is kept: as the file has it, or widened where its numbers are quantised.
pub(super) fn kept_kind(tensor: &TensorView<'_>) -> GgmlType {
    if tensor.kind.is_quantised() {
        GgmlType::F32
    } else {
        tensor.kind
    }
}

impl AdapterFile {
    /// Reads the tensors. The weights are those of the model that the file was checked against.
    pub(crate) fn load(&self, weights: &Weights, pool: &ThreadPool) -> Result<Adapter, ModelFileError> {
        let mut layers: Vec<[Option<LowRank>; 7]> = (0..self.num_layers).map(|_| Default::default()).collect();
        for module in &self.modules {
            let low = self.module(module, weights, pool);
            let low = low.map_err(|error| error.in_file(self.file.path()))?;
            layers[module.layer][module.projection as usize] = Some(low);
        }
        Ok(Adapter { layers })
    }

    fn module(&self, module: &Module, weights: &Weights, pool: &ThreadPool) -> Result<LowRank, ModelFileError> {
        let (a, b) = (
            self.numbers(module.tensors.a.as_deref())?,
            self.numbers(module.tensors.b.as_deref())?,
        );
        let linear = module.projection.linear(&weights.layers[module.layer]);
        let linear = linear.ok_or_else(|| invalid("the model has changed".to_owned()))?;
        let (rank, rows) = (a.len() / linear.weight.cols(), module.rows.len());
        let source = |row: usize| module.rows.start + module.order.map_or(row, |order| order.source(row));
        let up_row = |row: usize| &b[source(row) * rank..][..rank];
        let resizing = match module.tensors.magnitude.as_deref() {
            None => None,
            Some(name) => {
                let of_file = self.numbers(Some(name))?;
                let magnitudes: Vec<f32> = (0..rows).map(|row| of_file[source(row)]).collect();
                let delta = dora::Delta {
                    a: &a,
                    up_row: &up_row,
                    scale: module.scale,
                };
                Some(dora::resizing(linear, module.projection, &delta, &magnitudes, pool)?)
            }
        };
        Ok(LowRank {
            down: self.down(module, (rank, linear.weight.cols()), &a)?,
            up: UpMatrix::new(rank, rows, up_row),
            scale: module.scale,
            resizing,
        })
    }

    fn down(
        &self,
        module: &Module,
        (rows, cols): (usize, usize),
        numbers: &[f32],
    ) -> Result<PackedMatrix, ModelFileError> {
        let tensor = self.tensor(module.tensors.a.as_deref())?;
        let refused = |error: PackError| invalid(format!("tensor {:?}: {error}", clipped(tensor.name)));
        if kept_kind(&tensor) == tensor.kind {
            return PackedMatrix::pack(tensor.kind, tensor.bytes, rows, cols).map_err(refused);
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        PackedMatrix::pack(GgmlType::F32, &bytes, rows, cols).map_err(refused)
    }

    fn tensor(&self, name: Option<&str>) -> Result<TensorView<'_>, ModelFileError> {
        self.file.tensor(name.unwrap_or_default())
    }

    /// A tensor's numbers, which are all finite.
    fn numbers(&self, name: Option<&str>) -> Result<Vec<f32>, ModelFileError> {
        let tensor = self.tensor(name)?;
        let shown = clipped(tensor.name);
        let numbers = tensor
            .to_f32()
            .map_err(|error| invalid(format!("tensor {shown:?}: {error}")))?;
        self.file.drop_pages(tensor.bytes);
        if numbers.iter().all(|number| number.is_finite()) {
            return Ok(numbers);
        }
        Err(invalid(format!(
            "tensor {shown:?} has numbers that are not finite; the file is damaged"
        )))
    }
}

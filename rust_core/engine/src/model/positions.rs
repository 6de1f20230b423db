//! What families of before Llama do with tokens before the first layer: a table of learned positions, a norm.

use pyagent_kernels::pack::PackedMatrix;

use super::{Loader, Norm};
use crate::config::invalid;
use crate::weights::{ModelFileError, TensorView};

impl Loader<'_> {
    /// The table of learned positions, of a family that has one.
    pub(super) fn positions(&self) -> Result<Option<PackedMatrix>, ModelFileError> {
        let table = self.position_table()?;
        let pack = |table: TensorView<'_>| self.pack(&table, table.rows(), self.config.hidden_size);
        table.map(pack).transpose()
    }

    /// The norm of what tokens are looked up as, of a family that has one.
    pub(super) fn embedding_norm(&self) -> Result<Option<Norm>, ModelFileError> {
        let has_norm = self.config.architecture.has_embedding_norm();
        let norm = has_norm.then(|| self.stream_norm(&self.names.embedding_norm()));
        norm.transpose()
    }

    /// Refuses a file that lacks what tokens are given before the first layer, or has it of another size.
    pub(super) fn check_positions(&self) -> Result<(), ModelFileError> {
        if self.config.architecture.has_embedding_norm() {
            self.file.tensor(&self.names.embedding_norm())?;
        }
        self.position_table().map(|_| ())
    }

    /// The table, with a row for each position of the context.
    fn position_table(&self) -> Result<Option<TensorView<'_>>, ModelFileError> {
        let architecture = self.config.architecture;
        let Some(offset) = architecture.position_offset() else {
            return Ok(None);
        };
        let table = self.file.tensor(&self.names.positions(architecture))?;
        let (rows, cols) = (table.rows(), table.cols());
        let (least, hidden) = (
            self.config.context_length.saturating_add(offset),
            self.config.hidden_size,
        );
        if cols != hidden || rows < least {
            return Err(invalid(format!(
                "tensor '{}' is {rows} x {cols}; expected {least} x {hidden}, a row for each position",
                table.name
            )));
        }
        Ok(Some(table))
    }
}

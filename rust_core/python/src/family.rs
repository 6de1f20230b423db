//! `FamilyDescription`: what a plugin says of a folder.

use std::sync::Arc;

use pyagent_engine::family::{self, ScoreTables};
use pyagent_kernels::attention::ScoreBias;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::model_files::floats_in;

/// A folder in the words of a family that is read here.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct FamilyDescription {
    inner: Arc<family::FamilyDescription>,
}

/// Tables of what is added to scores, each with its heads.
type Tables = Vec<(PyBuffer<f32>, usize)>;

#[pymethods]
impl FamilyDescription {
    /// `config` is a JSON object as the family's `config.json`; `tensor_names` are pairs of patterns. `layer_tables` says of
    /// each layer which of `tables` it adds to scores (None: nothing); a table is a buffer of 32-bit floats, and its heads.
    /// For headers, `tables` are left out. Raises `ValueError` for what is wrong in itself.
    #[new]
    #[pyo3(signature = (config, tensor_names, layer_tables = None, tables = Vec::new()))]
    fn new(
        py: Python<'_>,
        config: &str,
        tensor_names: Vec<(String, String)>,
        layer_tables: Option<Vec<Option<usize>>>,
        tables: Tables,
    ) -> PyResult<Self> {
        let made = tables.iter().map(|(table, num_heads)| {
            let numbers = floats_in(table)?;
            let made = py.detach(|| ScoreBias::from_table(numbers, *num_heads));
            made.map(Arc::new)
                .map_err(|error| PyValueError::new_err(error.to_string()))
        });
        let tables = made.collect::<PyResult<_>>()?;
        let scores = layer_tables.map(|of_layers| ScoreTables { of_layers, tables });
        let inner = family::FamilyDescription::new(config, &tensor_names, scores)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl FamilyDescription {
    /// What the engine reads; for who loads a model, with its tables.
    pub(crate) fn shared(family: Option<&Bound<'_, Self>>) -> Option<Arc<family::FamilyDescription>> {
        family.map(|family| Arc::clone(&family.get().inner))
    }
}

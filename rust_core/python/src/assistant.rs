//! Assistants: what their folders say of them, before they are attached to a model.

use std::path::PathBuf;

use pyagent_engine::model;
use pyagent_engine::quantised;
use pyagent_engine::workspace::LargestStep;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::model_files::file_error;

/// What an assistant's folder says of it: for which size of model it drafts, its layers and vocabulary, bytes of its weights
/// and of passes for up to `num_rows` sequences at positions below `num_positions`. None for another model.
#[pyfunction]
#[pyo3(signature = (path, num_threads = 1, num_rows = 1, num_positions = 1))]
pub fn describe_assistant(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    num_rows: usize,
    num_positions: usize,
) -> PyResult<Option<Bound<'_, PyDict>>> {
    let read = py.detach(|| {
        let Some((file, config)) = model::open_assistant(&path)? else {
            return Ok(None);
        };
        Ok(Some((quantised::packed_bytes(&file)?, config)))
    });
    let Some((weight_bytes, config)) = read.map_err(|error| file_error(&error))? else {
        return Ok(None);
    };
    let step = LargestStep {
        threads: num_threads,
        tokens: num_rows,
        outputs: num_rows,
        positions: num_positions,
    };
    let about = PyDict::new(py);
    about.set_item("backbone_size", config.backbone_size)?;
    about.set_item("num_layers", config.decoder.num_layers)?;
    about.set_item("hidden_size", config.decoder.hidden_size)?;
    about.set_item("vocab_size", config.decoder.vocab_size)?;
    about.set_item("num_clusters", config.clusters.map_or(0, |clusters| clusters.count))?;
    about.set_item("weight_bytes", weight_bytes)?;
    about.set_item("workspace_bytes", config.most_step_bytes(step))?;
    Ok(Some(about))
}

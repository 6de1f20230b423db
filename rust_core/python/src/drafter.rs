//! What drafts for a model from a folder of its own: what the folder says of it, before it is attached to a model.

use std::path::{Path, PathBuf};

use pyagent_engine::config::{AssistantConfig, EagleConfig, MedusaConfig};
use pyagent_engine::model;
use pyagent_engine::quantised::packed_bytes;
use pyagent_engine::weights::ModelFileError;
use pyagent_engine::workspace::LargestStep;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::model_files::file_error;

enum Drafter {
    Assistant(Box<AssistantConfig>),
    Head(Box<EagleConfig>),
    Medusa(MedusaConfig),
}

/// What the folder of an assistant, of a head of EAGLE-3, or of heads of Medusa says of it: its kind, for which size of model it
/// drafts, its layers and vocabulary, how many tokens it drafts of a sequence at most where that is bounded, bytes of its
/// weights, and of its passes for up to `num_rows` sequences at positions below `num_positions`; a head takes part in steps of
/// `num_tokens`. None for another model.
#[pyfunction]
#[pyo3(signature = (path, num_threads = 1, num_rows = 1, num_positions = 1, num_tokens = 1))]
pub fn describe_drafter(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    num_rows: usize,
    num_positions: usize,
    num_tokens: usize,
) -> PyResult<Option<Bound<'_, PyDict>>> {
    let read = py.detach(|| read(&path));
    let Some((weight_bytes, drafter)) = read.map_err(|error| file_error(&error))? else {
        return Ok(None);
    };
    let step = LargestStep {
        threads: num_threads,
        tokens: num_rows,
        outputs: num_rows,
        positions: num_positions,
    };
    let about = PyDict::new(py);
    about.set_item("weight_bytes", weight_bytes)?;
    about.set_item("most_drafts", None::<usize>)?;
    match drafter {
        Drafter::Assistant(config) => {
            about.set_item("kind", "assistant")?;
            about.set_item("backbone_size", config.backbone_size)?;
            about.set_item("num_layers", config.decoder.num_layers)?;
            about.set_item("hidden_size", config.decoder.hidden_size)?;
            about.set_item("vocab_size", config.decoder.vocab_size)?;
            about.set_item("num_drafted", config.decoder.vocab_size)?;
            about.set_item("num_clusters", config.clusters.map_or(0, |clusters| clusters.count))?;
            about.set_item("workspace_bytes", config.most_step_bytes(step))?;
        }
        Drafter::Head(config) => {
            let step = LargestStep {
                tokens: num_tokens,
                ..step
            };
            about.set_item("kind", "head")?;
            about.set_item("backbone_size", config.target_size)?;
            about.set_item("num_layers", 1)?;
            about.set_item("hidden_size", config.head.hidden_size)?;
            about.set_item("vocab_size", config.vocab_size)?;
            about.set_item("num_drafted", config.head.vocab_size)?;
            about.set_item("num_clusters", 0)?;
            about.set_item("workspace_bytes", config.most_step_bytes(step))?;
        }
        Drafter::Medusa(config) => {
            about.set_item("kind", "medusa")?;
            about.set_item("backbone_size", config.hidden_size)?;
            about.set_item("num_layers", config.num_layers)?;
            about.set_item("hidden_size", config.hidden_size)?;
            about.set_item("vocab_size", config.vocab_size)?;
            about.set_item("num_drafted", config.num_drafted)?;
            about.set_item("num_clusters", 0)?;
            about.set_item("most_drafts", config.num_heads)?;
            about.set_item("workspace_bytes", config.most_step_bytes(step))?;
        }
    }
    Ok(Some(about))
}

fn read(path: &Path) -> Result<Option<(usize, Drafter)>, ModelFileError> {
    if let Some((file, config)) = model::open_eagle(path)? {
        return Ok(Some((packed_bytes(&file)?, Drafter::Head(Box::new(config)))));
    }
    if let Some((file, config)) = model::open_medusa(path)? {
        return Ok(Some((packed_bytes(&file)?, Drafter::Medusa(config))));
    }
    let Some((file, config)) = model::open_assistant(path)? else {
        return Ok(None);
    };
    Ok(Some((packed_bytes(&file)?, Drafter::Assistant(Box::new(config)))))
}

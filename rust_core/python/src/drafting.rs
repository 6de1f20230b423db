//! A pass of a model's own head, which drafts a token for each of some sequences.
//!
//! A row that cannot be computed is left out with the reason; the others are computed.

use std::collections::HashMap;
use std::sync::Arc;

use pyagent_engine::runner::{CpuModel, DraftedRow, EngineError};
use pyo3::prelude::*;

use crate::cache::BlockPool;
use crate::engine::engine_error;

/// What a pass drafts for: a row for a sequence.
pub(crate) struct Columns {
    pub(crate) sequence_ids: Vec<u64>,
    pub(crate) tokens: Vec<u32>,
    /// Tokens between what the pool has of the sequence and the row's.
    pub(crate) num_ahead: Vec<usize>,
    /// The row of the last pass that gave the token.
    pub(crate) before: Vec<Option<usize>>,
}

/// Tokens with their log-probabilities, and by row what was wrong.
pub(crate) type Drafted = (Vec<(u32, f32)>, HashMap<usize, String>);

/// Where a row's token goes.
struct Place {
    row: usize,
    tables: Vec<Arc<Vec<u32>>>,
    position: usize,
}

pub(crate) fn run(model: &mut CpuModel, pool: &BlockPool, columns: &Columns) -> PyResult<Drafted> {
    let mut drafted = (vec![(0, 0.0); columns.tokens.len()], HashMap::new());
    let mut places = locate(pool, columns, &mut drafted.1)?;
    loop {
        let rows = places.iter().map(|place| DraftedRow {
            tables: &place.tables,
            position: place.position,
            token: columns.tokens[place.row],
            before: columns.before[place.row],
        });
        let rows: Vec<_> = rows.collect();
        match model.draft(&rows) {
            Ok(found) => {
                for (place, found) in places.iter().zip(found) {
                    match found {
                        Ok(likeliest) => drafted.0[place.row] = likeliest,
                        Err(error) => drop(drafted.1.insert(place.row, error.to_string())),
                    }
                }
                return Ok(drafted);
            }
            Err(EngineError::Batch { segment, reason }) => {
                let place = places.remove(segment);
                drafted.1.insert(place.row, reason);
            }
            Err(error) => return Err(engine_error(&error)),
        }
    }
}

fn locate(pool: &BlockPool, columns: &Columns, errors: &mut HashMap<usize, String>) -> PyResult<Vec<Place>> {
    let pool = pool.lock()?;
    let mut places = Vec::with_capacity(columns.tokens.len());
    for (row, &sequence) in columns.sequence_ids.iter().enumerate() {
        let found = pool
            .tables(sequence)
            .and_then(|tables| Ok((tables.to_vec(), pool.num_tokens(sequence)?)));
        match found {
            Ok((tables, num_tokens)) => places.push(Place {
                row,
                tables,
                position: num_tokens.saturating_add(columns.num_ahead[row]).min(u32::MAX as usize),
            }),
            Err(error) => drop(errors.insert(row, error.to_string())),
        }
    }
    Ok(places)
}

//! A pass of a model's own head, or of what is attached to it, which drafts a token for each of some sequences.
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

/// Tokens with their log-probabilities, and by row what was wrong. A row without either was not drafted for: the output for
/// the token before is not known, or there is no further head.
pub(crate) type Drafted = (Vec<Option<(u32, f32)>>, HashMap<usize, String>);

/// Where a row's token goes.
struct Place {
    row: usize,
    tables: Vec<Arc<Vec<u32>>>,
    position: usize,
}

pub(crate) fn run(model: &mut CpuModel, pool: &BlockPool, columns: &Columns) -> PyResult<Drafted> {
    let mut drafted = (vec![None; columns.tokens.len()], HashMap::new());
    let mut places = locate(model, pool, columns, &mut drafted.1)?;
    loop {
        let rows = places.iter().map(|place| DraftedRow {
            sequence: columns.sequence_ids[place.row],
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
                        None => {}
                        Some(Ok(likeliest)) => drafted.0[place.row] = Some(likeliest),
                        Some(Err(error)) => drop(drafted.1.insert(place.row, error.to_string())),
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

fn locate(
    model: &CpuModel,
    pool: &BlockPool,
    columns: &Columns,
    errors: &mut HashMap<usize, String>,
) -> PyResult<Vec<Place>> {
    // All drafts that are made from an output are made at the position of the first one's token.
    let ahead = |row: usize| {
        if model.drafts_from_outputs() {
            0
        } else {
            columns.num_ahead[row]
        }
    };
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
                position: num_tokens.saturating_add(ahead(row)).min(u32::MAX as usize),
            }),
            Err(error) => drop(errors.insert(row, error.to_string())),
        }
    }
    Ok(places)
}

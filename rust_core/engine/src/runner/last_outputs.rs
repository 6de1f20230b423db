//! A model's outputs for the rows of its last batch that gave logits, as long as no batch came after it: what drafts from them
//! and keeps nothing of a sequence reads them here.

use std::collections::HashMap;

use super::CpuModel;
use super::mtp::DraftedRow;
use crate::forward::Role;
use crate::workspace::Rows;

/// Outputs, and of which sequences they are.
pub(super) struct LastOutputs {
    pub(super) rows: Rows,
    /// By sequence, the position of its last known token and which row has the output for it.
    known: HashMap<u64, (usize, usize)>,
}

impl LastOutputs {
    pub(super) fn new(width: usize) -> Self {
        Self {
            rows: Rows::new(width),
            known: HashMap::new(),
        }
    }

    /// What steps have to do with them.
    pub(super) fn role(&self) -> Role<'_> {
        Role::Drafted(&self.rows)
    }

    /// Makes room for the outputs of a batch, and forgets those of the last.
    pub(super) fn begin(&mut self, num_outputs: usize) {
        self.known.clear();
        self.rows.reserve(num_outputs);
    }

    /// The row with the output for the token before a row's, if the last batch computed it.
    pub(super) fn before(&self, row: &DraftedRow<'_>) -> Option<usize> {
        let (position, output) = *self.known.get(&row.sequence)?;
        (position + 1 == row.position).then_some(output)
    }

    pub(super) fn bytes(&mut self) -> usize {
        self.rows.bytes()
    }
}

impl CpuModel {
    /// Whether what is attached drafts from the last batch's outputs: it stores nothing of its drafts, which are all made at the
    /// position of the first one's token.
    pub fn drafts_from_outputs(&self) -> bool {
        self.last_outputs.is_some()
    }

    /// Notes that a row of the last batch's logits has the output for a sequence's last known token.
    pub fn note_output(&mut self, sequence: u64, position: usize, row: usize) {
        let num_outputs = self.num_outputs;
        if let Some(outputs) = self.last_outputs.as_mut().filter(|_| row < num_outputs) {
            outputs.known.insert(sequence, (position, row));
        }
    }
}

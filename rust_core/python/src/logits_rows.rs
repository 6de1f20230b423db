//! Rows of logits between the grammar's mask and the sample, for processors that plugins bring to change.
//!
//! Python sees no memory of the model: it reads rows into buffers of its own and writes them back. What comes back is checked,
//! and what was excluded before stays so. When the call that got the rows returns, whoever kept them can read none.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;

/// A row of logits, borrowed for as long as the call lasts that it is shown to.
struct Borrowed {
    start: *mut f32,
    len: usize,
}

// SAFETY: the pointer comes from a `&mut [f32]`, which may go to another thread, and is read under a lock only.
unsafe impl Send for Borrowed {}

#[derive(Default)]
struct Shown {
    rows: BTreeMap<usize, Borrowed>,
    /// Rows one after the other, on their way.
    copied: Vec<f32>,
}

impl Shown {
    fn row(&mut self, segment: usize) -> PyResult<&mut [f32]> {
        let row = self.rows.get_mut(&segment);
        let row = row.ok_or_else(|| PyIndexError::new_err(format!("no row of segment {segment} is processed")))?;
        // SAFETY: the borrow that the row was made of lasts until `Shown` is taken away, which nobody can do meanwhile; the
        // rows of different segments do not overlap, and `self` is borrowed as long as the slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(row.start, row.len) })
    }

    /// Takes rows from those copied; what is wrong with some, by segment.
    fn take(&mut self, segments: &[usize]) -> PyResult<HashMap<usize, String>> {
        let copied = std::mem::take(&mut self.copied);
        let mut faults = HashMap::new();
        let mut start = 0;
        for segment in segments {
            let row = self.row(*segment)?;
            if let Err(fault) = take(row, &copied[start..start + row.len()]) {
                faults.insert(*segment, fault);
            }
            start += row.len();
        }
        self.copied = copied;
        Ok(faults)
    }
}

/// Rows of logits by the step's segments, while processors change them.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct LogitsRows {
    /// None once the call has returned.
    inner: Mutex<Option<Shown>>,
}

#[pymethods]
impl LogitsRows {
    /// The rows there are, by the step's segments; those that the model or the sampler already failed for are not.
    #[getter]
    fn segments(&self) -> PyResult<Vec<usize>> {
        self.with(|shown| Ok(shown.rows.keys().copied().collect()))
    }

    /// How long each row is.
    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        self.with(|shown| Ok(shown.rows.values().next().map_or(0, |row| row.len)))
    }

    /// Copies rows, one after the other, into a buffer of as many floats.
    fn read(&self, py: Python<'_>, segments: Vec<usize>, buffer: PyBuffer<f32>) -> PyResult<()> {
        self.with(|shown| {
            let mut copied = std::mem::take(&mut shown.copied);
            copied.clear();
            for segment in segments {
                copied.extend_from_slice(shown.row(segment)?);
            }
            shown.copied = copied;
            buffer.copy_from_slice(py, &shown.copied)
        })
    }

    /// Takes rows from a buffer. Returns what is wrong with some, by segment; these stay as they were.
    fn write(&self, py: Python<'_>, segments: Vec<usize>, buffer: PyBuffer<f32>) -> PyResult<HashMap<usize, String>> {
        self.with(|shown| {
            let lengths = segments.iter().map(|segment| shown.row(*segment).map(|row| row.len()));
            let num_floats = lengths.sum::<PyResult<usize>>()?;
            shown.copied.resize(num_floats, 0.0);
            buffer.copy_to_slice(py, &mut shown.copied)?;
            shown.take(&segments)
        })
    }
}

impl LogitsRows {
    fn lock(&self) -> MutexGuard<'_, Option<Shown>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Shown) -> PyResult<T>) -> PyResult<T> {
        let mut shown = self.lock();
        let over = || PyRuntimeError::new_err("the step that had these logits is over");
        work(shown.as_mut().ok_or_else(over)?)
    }
}

/// Takes a row over, what was excluded excepted.
fn take(row: &mut [f32], changed: &[f32]) -> Result<(), String> {
    // NaN is below nothing.
    if !changed.iter().fold(true, |all, value| all & (*value < f32::INFINITY)) {
        let token = changed
            .iter()
            .position(|value| value.is_nan() || *value == f32::INFINITY)
            .unwrap_or(0);
        return Err(format!("made the logit of token {token} {}", changed[token]));
    }
    let is_left = |(logit, value): (&f32, &f32)| logit.min(*value) > f32::NEG_INFINITY;
    if !row.iter().zip(changed).any(is_left) {
        return Err("excluded every token that could be sampled".to_owned());
    }
    for (logit, value) in row.iter_mut().zip(changed) {
        let is_excluded = *logit == f32::NEG_INFINITY;
        *logit = if is_excluded { f32::NEG_INFINITY } else { *value };
    }
    Ok(())
}

/// Calls `process` with rows of logits, by segment; what it returns says which segments cannot go on, and why.
pub(crate) fn process_rows<'a>(
    process: &Py<PyAny>,
    rows: impl Iterator<Item = (usize, &'a mut [f32])>,
) -> PyResult<HashMap<usize, String>> {
    let rows = rows.map(|(segment, row)| {
        let (start, len) = (row.as_mut_ptr(), row.len());
        (segment, Borrowed { start, len })
    });
    let rows = rows.collect();
    Python::attach(|py| {
        let inner = Mutex::new(Some(Shown {
            rows,
            copied: Vec::new(),
        }));
        let shown = Bound::new(py, LogitsRows { inner })?;
        let result = process.call1(py, (shown.clone(),));
        *shown.get().lock() = None;
        result?.extract(py)
    })
}

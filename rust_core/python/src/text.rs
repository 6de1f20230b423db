//! `analyse_code`: metrics of many Python files in one call. `find_duplicates`, `count_names`: what files have in common.
//! `Replacer`: matches of a pattern, replaced.
//! `nearest_rows`: search in a file of vectors.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use pyagent_text::code_metrics::{FileReport, FunctionMetrics, analyse_files};
use pyagent_text::replace::{self, Bounds};
use pyagent_text::{duplicates, names, nearest};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

/// A pattern and what takes the place of its matches; `ValueError` says what is wrong with them.
#[pyclass(frozen, module = "pyagent._rust")]
pub struct Replacer(replace::Replacer);

#[pymethods]
impl Replacer {
    #[new]
    #[pyo3(signature = (pattern, replacement, *, is_regex = false, ignore_case = false))]
    fn new(pattern: &str, replacement: &str, is_regex: bool, ignore_case: bool) -> PyResult<Self> {
        replace::Replacer::new(pattern, replacement, is_regex, ignore_case)
            .map(Self)
            .map_err(value_error)
    }

    /// The text with all matches replaced, and how many there were; None without a match. The GIL is free meanwhile.
    fn replace(
        &self,
        py: Python<'_>,
        text: PyBackedStr,
        max_bytes: usize,
        max_seconds: f64,
    ) -> PyResult<Option<(String, usize)>> {
        let time = Duration::try_from_secs_f64(max_seconds)
            .map_err(|_| PyValueError::new_err(format!("max_seconds: expected a time, got {max_seconds}")))?;
        py.detach(|| self.0.replace(&text, Bounds { bytes: max_bytes, time }))
            .map_err(value_error)
    }
}

fn value_error(error: replace::ReplaceError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Name, line and complexity.
type FunctionRow = (String, usize, u32);

/// Lines of a block, and its places: index of the file, first and last line.
type DuplicateRow = (usize, Vec<(usize, usize, usize)>);

/// Path, maintainability, functions, and the error where there are no metrics.
type FileRow = (OsString, Option<f64>, Vec<FunctionRow>, Option<String>);

/// Maintainability and the functions' complexity of each file, in the order of `paths`.
///
/// A file without metrics has `None`, no functions and the reason. The GIL is free meanwhile.
#[pyfunction]
pub fn analyse_code(py: Python<'_>, paths: Vec<OsString>, threads: usize) -> PyResult<Vec<FileRow>> {
    if threads == 0 {
        return Err(PyValueError::new_err("threads: expected 1 or more, got 0"));
    }
    Ok(py.detach(|| {
        let files: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        let reports = analyse_files(&files, threads);
        paths.into_iter().zip(reports).map(row).collect()
    }))
}

fn row((path, report): (OsString, FileReport)) -> FileRow {
    match report.result {
        Ok(metrics) => {
            let functions = metrics.functions.into_iter();
            let rows = functions.map(|FunctionMetrics { name, line, complexity }| (name, line, complexity));
            (path, Some(metrics.maintainability), rows.collect(), None)
        }
        Err(error) => (path, None, Vec::new(), Some(error.to_string())),
    }
}

/// Blocks of lines that stand in two places or more: telling lines, and file, first and last line of each place.
///
/// The GIL is free meanwhile.
#[pyfunction]
pub fn find_duplicates(py: Python<'_>, paths: Vec<PathBuf>, min_lines: usize) -> Vec<DuplicateRow> {
    let found = py.detach(|| duplicates::find_duplicates(&paths, min_lines));
    let place = |one: duplicates::Place| (one.file, one.first, one.last);
    let row = |one: duplicates::Duplicate| (one.lines, one.places.into_iter().map(place).collect());
    found.into_iter().map(row).collect()
}

/// How often each name stands in the files as a whole word. The GIL is free meanwhile.
#[pyfunction]
pub fn count_names(py: Python<'_>, paths: Vec<PathBuf>, names: Vec<String>) -> Vec<u32> {
    py.detach(|| names::count_names(&paths, &names))
}

/// Row and score of the `count` rows of a file that have the greatest dot products with `query`, greatest first.
///
/// The GIL is free meanwhile.
#[pyfunction]
pub fn nearest_rows(
    py: Python<'_>,
    path: PathBuf,
    query: Vec<f32>,
    count: usize,
    threads: usize,
) -> PyResult<Vec<(usize, f64)>> {
    let found = py.detach(|| nearest::nearest_rows(&path, &query, count, threads))?;
    Ok(found.into_iter().map(|one| (one.row, one.score)).collect())
}

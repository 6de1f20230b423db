//! `analyse_code`: metrics of many Python files in one call.

use std::ffi::OsString;
use std::path::PathBuf;

use pyagent_text::code_metrics::{FileReport, FunctionMetrics, analyse_files};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Name, line and complexity.
type FunctionRow = (String, usize, u32);

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

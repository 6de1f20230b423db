//! Metrics of Python source: cyclomatic complexity per function and maintainability per file.
//!
//! Two definitions live side by side and are kept apart on purpose. What a function's
//! [`complexity`](FunctionMetrics::complexity) is, rule C901 says, as ruff counts it; what a file's
//! [`maintainability`](FileMetrics::maintainability) is, radon 6.0.1 says (`radon mi`, multi-line strings counted as
//! comments), and radon puts a complexity of its own into it. Both are pinned by tests/oracle/test_code_metrics_radon.py.
//!
//! Sources are hostile input: nesting is bounded before anything recurses, and the stack grows to what that bound needs.

mod c901;
mod decode;
mod files;
mod halstead;
mod line_counts;
mod maintainability;
mod nesting;
mod operands;
mod tokens;

pub use decode::DecodeError;
pub use files::{FileError, FileReport, MAX_FILE_BYTES, analyse_files};
pub use line_counts::LineCounts;

use std::borrow::Cow;

use ruff_python_parser::parse_module;

/// Stack that one analysis may need at [`nesting::MAX_NESTING`] levels, unoptimised builds included.
const STACK_BYTES: usize = 64 << 20;

/// Why a source has no metrics; a position is 1-based, the column counts characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line of the first character that does not fit.
    pub line: usize,
    /// Column of that character.
    pub column: usize,
    /// What was wrong.
    pub message: String,
}

impl ParseError {
    fn at(source: &str, offset: usize, message: impl Into<String>) -> Self {
        let before = &source[..source.floor_char_boundary(offset)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }
}

/// One function or method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionMetrics {
    /// Dotted path within the file: `function`, `Class.method`, `outer.inner`.
    pub name: String,
    /// Line of the `def`, not of a decorator; 1-based.
    pub line: usize,
    /// Cyclomatic complexity as rule C901 of ruff counts it.
    pub complexity: u32,
}

/// One source file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileMetrics {
    /// Maintainability index of radon 6.0.1, 0 to 100; higher is better.
    pub maintainability: f64,
    /// Cyclomatic complexity of the whole file in radon's definition, a term of the index.
    pub radon_complexity: u32,
    /// Halstead volume of the whole file, a term of the index.
    pub halstead_volume: f64,
    /// Lines by what they hold.
    pub lines: LineCounts,
    /// Every function and method, nested ones too, in the order of their `def`s.
    pub functions: Vec<FunctionMetrics>,
}

/// Metrics of one source text.
///
/// # Errors
/// [`ParseError`] when the text is not Python 3, or nests too deep.
pub fn analyse(source: &str) -> Result<FileMetrics, ParseError> {
    stacker::maybe_grow(STACK_BYTES / 2, STACK_BYTES, || analyse_on_this_stack(source))
}

fn analyse_on_this_stack(source: &str) -> Result<FileMetrics, ParseError> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let source = &*with_unix_line_ends(source);
    nesting::check(source)?;
    let parsed = parse_module(source)
        .map_err(|error| ParseError::at(source, error.location.start().to_usize(), error.error.to_string()))?;
    let lines = line_counts::count(source, parsed.tokens());
    let body = parsed.suite();
    let halstead_volume = halstead::volume(source, body);
    let radon_complexity = maintainability::complexity(body);
    Ok(FileMetrics {
        maintainability: maintainability::index(halstead_volume, radon_complexity, &lines),
        radon_complexity,
        halstead_volume,
        lines,
        functions: c901::functions(source, body),
    })
}

/// As Python's compiler reads source.
fn with_unix_line_ends(source: &str) -> Cow<'_, str> {
    if source.contains('\r') {
        Cow::Owned(source.replace("\r\n", "\n").replace('\r', "\n"))
    } else {
        Cow::Borrowed(source)
    }
}

#[cfg(test)]
mod tests;

//! Metrics of many files on a few threads. One bad file is one error entry, whatever is wrong with it.

use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::decode::{DecodeError, decode};
use super::{FileMetrics, ParseError, STACK_BYTES, analyse};

/// Largest file that is read.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// Threads beyond which more do not help.
const MAX_THREADS: usize = 64;

/// Why a file has no metrics.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] io::Error),
    /// A folder, pipe or device.
    #[error("not a regular file")]
    NotAFile,
    /// More than [`MAX_FILE_BYTES`].
    #[error("larger than {MAX_FILE_BYTES} bytes: leave generated files out")]
    TooLarge,
    /// Not text.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Not Python.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A fault of this crate or of the parser.
    #[error("the analysis failed on this file: please report it")]
    Internal,
}

/// What became of one file.
#[derive(Debug)]
pub struct FileReport {
    /// The path as it was given.
    pub path: PathBuf,
    /// Its metrics, or why there are none.
    pub result: Result<FileMetrics, FileError>,
}

/// Analyses files on at most `threads` threads, this one included; reports come in the order of `paths`.
#[must_use]
pub fn analyse_files(paths: &[PathBuf], threads: usize) -> Vec<FileReport> {
    let results: Vec<OnceLock<Result<FileMetrics, FileError>>> = paths.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(path), Some(result)) = (paths.get(index), results.get(index)) else {
                return;
            };
            result.get_or_init(|| analyse_file(path));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(MAX_THREADS).min(paths.len()) {
            // Without the thread the others do its share.
            let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        }
        work();
    });
    let paths = paths.iter().cloned();
    paths
        .zip(results)
        .map(|(path, result)| FileReport {
            path,
            result: result.into_inner().unwrap_or(Err(FileError::Internal)),
        })
        .collect()
}

fn analyse_file(path: &Path) -> Result<FileMetrics, FileError> {
    let bytes = read(path)?;
    catch_unwind(AssertUnwindSafe(|| Ok(analyse(&decode(&bytes)?)?))).unwrap_or(Err(FileError::Internal))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    // Opening a pipe would wait for its writer.
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(FileError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::TooLarge);
    }
    Ok(bytes)
}

//! Why a model file was refused.
//!
//! Text from the file is clipped before it goes into an error, so that a message has a bounded length.

use std::path::{Path, PathBuf};

/// Why a model file, or something in it, cannot be used. Facts are fields; the text says what was expected, what
/// was found and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// A fault, with the file it is in. Everything that opens or reads a file wraps its errors so.
    #[error("{}: {fault}", path.display())]
    InFile {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<ModelFileError>,
    },
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was attempted, such as `open the file`.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither a GGUF file nor a folder with weights.
    #[error(
        "not a model: expected a GGUF file or a folder with config.json and *.safetensors, model.tensors or \
         pytorch_model.bin, got {got}"
    )]
    NotAModel {
        /// What is there instead.
        got: String,
    },
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with \"{}\" where \"GGUF\" is expected; download it again or check the name", found.escape_ascii())]
    Magic {
        /// What is there instead.
        found: Vec<u8>,
    },
    /// A GGUF file for machines of the other byte order.
    #[error(
        "a big-endian GGUF file of version {version}: expected little-endian; convert it with gguf_convert_endian.py"
    )]
    BigEndian {
        /// The version, after swapping.
        version: u32,
    },
    /// A version of GGUF this reader does not know.
    #[error("GGUF version {found} is not supported: expected 2 or 3; convert the model again with a current tool")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A file of a split model whose name does not lead to the others.
    #[error(
        "this is file {part} of a model split into {count}, and its name is not that which the others follow from: \
         rename all to NAME-{part:05}-of-{count:05}.gguf and so on, or join them with gguf-split --merge"
    )]
    SplitName {
        /// Which file, counted from 1.
        part: u64,
        /// How many there are.
        count: u64,
    },
    /// A file of a split model that says it is another.
    #[error("the name says file {part} of {count}, but the file says it is number {found} (0: of no split model)")]
    SplitPart {
        /// Which file it should be, counted from 1.
        part: u64,
        /// How many there are.
        count: u64,
        /// Which it says it is.
        found: u64,
    },
    /// The files of a split model have other tensors than the first one says.
    #[error("the model's files have {found} tensors together, but the first says {expected}; download them again")]
    SplitTensors {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: u64,
    },
    /// The file ends inside its header.
    #[error(
        "the file is cut short: {what} needs {needed} bytes at offset {offset} but only {available} are left; download it again"
    )]
    HeaderTruncated {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Bytes it takes.
        needed: u64,
        /// Bytes from there to the end.
        available: usize,
    },
    /// A count that the rest of the file cannot hold.
    #[error(
        "a count of {count} {what} at offset {offset} is impossible: the {available} bytes after it hold at most {limit}; the file is damaged"
    )]
    Count {
        /// What is counted.
        what: &'static str,
        /// The count in the file.
        count: u64,
        /// Where what is counted would start.
        offset: usize,
        /// Bytes from there to the end.
        available: usize,
        /// The most that fits.
        limit: usize,
    },
    /// Something longer than is allowed.
    #[error("the {what} at offset {offset} is {length} bytes long, more than the {limit} allowed; the file is damaged")]
    Length {
        /// What is named.
        what: &'static str,
        /// Where the text starts.
        offset: usize,
        /// Its length in bytes.
        length: u64,
        /// The most allowed.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("the {what} at offset {offset} is not UTF-8; the file is damaged or was written by a faulty tool")]
    Utf8 {
        /// What the text is.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// A value that the header's format does not have.
    #[error("{what} at offset {offset} is {found}: expected {expected}; the file is damaged")]
    Header {
        /// What was being read.
        what: &'static str,
        /// Where it ends.
        offset: usize,
        /// What is there.
        found: u64,
        /// What may be there.
        expected: &'static str,
    },
    /// The same metadata key or tensor name twice.
    #[error("the {what} {name:?} occurs twice; the file is damaged or was written by a faulty tool")]
    Duplicate {
        /// What is named.
        what: &'static str,
        /// The name, clipped.
        name: String,
    },
    /// A metadata key that is needed and absent.
    #[error("metadata key {key:?} is missing; convert the model again with a current tool")]
    MetadataMissing {
        /// The key.
        key: String,
    },
    /// A metadata key whose value has another type or range.
    #[error("metadata key {key:?} is {found}: expected {expected}")]
    MetadataType {
        /// The key.
        key: String,
        /// What is asked for.
        expected: &'static str,
        /// The type (and value) in the file.
        found: String,
    },
    /// A tensor whose element type this engine does not read.
    #[error("tensor {name:?} has element type {found}, which is not supported; expected one of {supported}")]
    ElementType {
        /// The tensor, its name clipped.
        name: String,
        /// The type in the file: its GGUF number, or its safetensors name.
        found: String,
        /// What is read.
        supported: &'static str,
    },
    /// A tensor whose dimensions are impossible.
    #[error("tensor {name:?} has dimensions {dims:?}: {problem}")]
    Dimensions {
        /// The tensor, its name clipped.
        name: String,
        /// Its dimensions, the contiguous one first.
        dims: Vec<u64>,
        /// What is wrong with them.
        problem: String,
    },
    /// A tensor that starts at an offset the format forbids.
    #[error(
        "tensor {name:?} starts at {offset} in the data section: expected a multiple of {alignment}; the file is damaged"
    )]
    Misaligned {
        /// The tensor, its name clipped.
        name: String,
        /// Its offset.
        offset: u64,
        /// What it should be a multiple of.
        alignment: u64,
    },
    /// A tensor that would end after the file does.
    #[error(
        "the file is cut short: tensor {name:?} ends at byte {end} but the file has {file_bytes}; download it again"
    )]
    TensorTruncated {
        /// The tensor, its name clipped.
        name: String,
        /// Where it should end (saturated if that is past what can be counted).
        end: u64,
        /// How long the file is.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {first:?} and {second:?} overlap: the second starts at byte {start}, before the first ends at {end}; the file is damaged"
    )]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
        /// Where the second starts.
        start: u64,
        /// Where the first ends.
        end: u64,
    },
    /// A tensor that is asked for and absent.
    #[error("tensor {name:?} is missing; the file is of another architecture or incomplete")]
    TensorMissing {
        /// The tensor asked for.
        name: String,
    },
    /// A safetensors header that cannot be read.
    #[error("the safetensors header is not valid: {reason}")]
    Safetensors {
        /// What the parser said, clipped.
        reason: String,
    },
    /// A PyTorch file that is not the archive of a state dict.
    #[error("not a PyTorch file that can be read: {reason}")]
    Pytorch {
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A file of tensorizer's that is damaged, or has what is not read.
    #[error("not a file of tensorizer's that can be read: {reason}")]
    Tensorizer {
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A JSON file that cannot be read or has the wrong shape.
    #[error("not valid: {reason}")]
    Json {
        /// What is wrong, clipped.
        reason: String,
    },
    /// A model that is well-formed but cannot be run.
    #[error("{reason}")]
    Config {
        /// What is wrong and what would be right.
        reason: String,
    },
}

impl ModelFileError {
    /// Says which file the fault is in, unless that is already said.
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            Self::InFile { .. } => self,
            fault => Self::InFile {
                path: path.to_owned(),
                fault: Box::new(fault),
            },
        }
    }

    /// The fault itself, without the file it is in.
    pub fn fault(&self) -> &Self {
        match self {
            Self::InFile { fault, .. } => fault.fault(),
            fault => fault,
        }
    }
}

/// Text from a file, short enough for a message.
pub(crate) fn clipped(text: &str) -> String {
    const LIMIT: usize = 120;
    match text.char_indices().nth(LIMIT) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

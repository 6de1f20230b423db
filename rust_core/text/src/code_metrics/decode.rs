//! Bytes of a source file to text: UTF-8, or what its PEP 263 declaration names.

use std::borrow::Cow;

use encoding_rs::Encoding;

/// Why bytes are not text, with what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No declaration, and not UTF-8.
    #[error("byte {offset} is not UTF-8 and the file declares no encoding: save it as UTF-8 or declare one (PEP 263)")]
    NotUtf8 {
        /// Bytes before the first one that does not fit.
        offset: usize,
    },
    /// The declaration is wrong.
    #[error(
        "the file declares the encoding {encoding:?} and is not in it: save it as UTF-8 or correct the declaration"
    )]
    NotAsDeclared {
        /// The name in the declaration.
        encoding: String,
    },
    /// A declaration of an encoding that is unknown, or that cannot hold Python source.
    #[error("the file declares the unknown encoding {encoding:?}: save it as UTF-8 or correct the declaration")]
    UnknownEncoding {
        /// The name in the declaration.
        encoding: String,
    },
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Names of ISO 8859-1 in Python; web browsers, whose names encoding_rs knows, take it for Windows-1252.
const LATIN_1: [&str; 5] = ["latin-1", "latin1", "iso-8859-1", "iso8859-1", "iso-latin-1"];

/// The text of a source file without its byte order mark.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, DecodeError> {
    let unmarked = bytes.strip_prefix(BYTE_ORDER_MARK);
    let bytes = unmarked.unwrap_or(bytes);
    let utf8 = || std::str::from_utf8(bytes).map(Cow::Borrowed);
    let Some(encoding) = declared_encoding(bytes) else {
        return utf8().map_err(|error| DecodeError::NotUtf8 {
            offset: error.valid_up_to(),
        });
    };
    let name = encoding.to_ascii_lowercase().replace('_', "-");
    let is_utf8 = ["utf-8", "utf8"].iter().any(|known| name.starts_with(known));
    let text = if is_utf8 {
        utf8().ok()
    } else if unmarked.is_some() {
        None
    } else if LATIN_1.contains(&name.as_str()) {
        Some(bytes.iter().map(|&byte| char::from(byte)).collect())
    } else if ["ascii", "us-ascii"].contains(&name.as_str()) {
        utf8().ok().filter(|text| text.is_ascii())
    } else {
        let known = Encoding::for_label(name.as_bytes()).filter(|known| known.is_ascii_compatible());
        let Some(known) = known else {
            return Err(DecodeError::UnknownEncoding { encoding });
        };
        known.decode_without_bom_handling_and_without_replacement(bytes)
    };
    text.ok_or(DecodeError::NotAsDeclared { encoding })
}

/// The name in a declaration in the first two lines; the second counts only after a blank or comment line.
fn declared_encoding(bytes: &[u8]) -> Option<String> {
    for line in bytes.split(|byte| *byte == b'\n').take(2) {
        let line = line.trim_ascii();
        if !line.is_empty() && line[0] != b'#' {
            return None;
        }
        if let Some(name) = declaration(line) {
            return Some(name);
        }
    }
    None
}

/// The name after the first `coding:` or `coding=` that has one.
fn declaration(comment: &[u8]) -> Option<String> {
    let comment = String::from_utf8_lossy(comment);
    comment.match_indices("coding").find_map(|(at, word)| {
        let value = comment[at + word.len()..].strip_prefix([':', '='])?;
        let value = value.trim_start_matches([' ', '\t']);
        let is_name = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        let name = &value[..value.find(|character| !is_name(character)).unwrap_or(value.len())];
        (!name.is_empty()).then(|| name.to_owned())
    })
}

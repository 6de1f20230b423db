//! Bytes of a source file to text: UTF-8, or what its PEP 263 declaration names where that is one byte a character.

use std::borrow::Cow;

/// Why bytes are not text, with what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No declaration, and not UTF-8.
    #[error("byte {offset} is not UTF-8 and the file declares no encoding: save it as UTF-8 or declare one (PEP 263)")]
    NotUtf8 {
        /// Bytes before the first one that does not fit.
        offset: usize,
    },
    /// A byte that the declared encoding does not have.
    #[error("byte {offset} is not {encoding}, the encoding that the file declares")]
    NotAsDeclared {
        /// The name in the declaration.
        encoding: String,
        /// Bytes before the first one that does not fit.
        offset: usize,
    },
    /// A declaration of something else.
    #[error("encoding {encoding:?} is not supported: expected utf-8, ascii, latin-1 or iso-8859-15; save it as UTF-8")]
    UnknownEncoding {
        /// The name in the declaration.
        encoding: String,
    },
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Characters of ISO 8859-15 that are others in ISO 8859-1.
const LATIN_9: [(u8, char); 8] = [
    (0xa4, '€'),
    (0xa6, 'Š'),
    (0xa8, 'š'),
    (0xb4, 'Ž'),
    (0xb8, 'ž'),
    (0xbc, 'Œ'),
    (0xbd, 'œ'),
    (0xbe, 'Ÿ'),
];

/// The text of a source file without its byte order mark.
pub(super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, DecodeError> {
    if let Some(bytes) = bytes.strip_prefix(BYTE_ORDER_MARK) {
        return match declared_encoding(bytes) {
            Some(encoding) if canonical(&encoding) != "utf-8" => {
                Err(DecodeError::NotAsDeclared { encoding, offset: 0 })
            }
            _ => utf8(bytes, None),
        };
    }
    let Some(encoding) = declared_encoding(bytes) else {
        return utf8(bytes, None);
    };
    match canonical(&encoding).as_str() {
        "utf-8" => utf8(bytes, Some(encoding)),
        "ascii" | "us-ascii" => match bytes.iter().position(|byte| !byte.is_ascii()) {
            Some(offset) => Err(DecodeError::NotAsDeclared { encoding, offset }),
            None => utf8(bytes, Some(encoding)),
        },
        "iso-8859-1" => Ok(bytes.iter().map(|&byte| char::from(byte)).collect()),
        "iso-8859-15" | "iso8859-15" | "latin-9" => Ok(bytes.iter().map(|&byte| latin_9(byte)).collect()),
        _ => Err(DecodeError::UnknownEncoding { encoding }),
    }
}

fn utf8(bytes: &[u8], declared: Option<String>) -> Result<Cow<'_, str>, DecodeError> {
    std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| {
        let offset = error.valid_up_to();
        match declared {
            Some(encoding) => DecodeError::NotAsDeclared { encoding, offset },
            None => DecodeError::NotUtf8 { offset },
        }
    })
}

fn latin_9(byte: u8) -> char {
    let replaced = LATIN_9.iter().find(|(replaced, _)| *replaced == byte);
    replaced.map_or(char::from(byte), |&(_, character)| character)
}

/// One name for the spellings of UTF-8 and Latin-1 that CPython knows.
fn canonical(encoding: &str) -> String {
    let name = encoding.to_ascii_lowercase().replace('_', "-");
    let is_one_of = |names: &[&str]| {
        let mut names = names.iter();
        names.any(|known| name == *known || name.strip_prefix(known).is_some_and(|rest| rest.starts_with('-')))
    };
    if is_one_of(&["utf-8", "utf8"]) {
        "utf-8".to_owned()
    } else if is_one_of(&["latin-1", "iso-8859-1", "iso-latin-1", "latin1", "iso8859-1"]) {
        "iso-8859-1".to_owned()
    } else {
        name
    }
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

//! Typed key-value metadata of a GGUF file: the values, how they are read, and access by expected type.

use std::collections::BTreeMap;

use super::GgufFile;
use super::cursor::Cursor;
use crate::weights::{ModelFileError, clipped};

/// Longest key the GGUF specification allows, in bytes.
const MAX_KEY_BYTES: u64 = 65_535;

/// Arrays within arrays within arrays are the deepest that is read; real files have none.
const MAX_ARRAY_DEPTH: usize = 3;

/// Least bytes of a key and its value: a length, a type and a byte.
pub(super) const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;

/// A value, in the type the file gives it.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    /// Value type 0.
    U8(u8),
    /// Value type 1.
    I8(i8),
    /// Value type 2.
    U16(u16),
    /// Value type 3.
    I16(i16),
    /// Value type 4.
    U32(u32),
    /// Value type 5.
    I32(i32),
    /// Value type 6.
    F32(f32),
    /// Value type 7.
    Bool(bool),
    /// Value type 8.
    String(String),
    /// Value type 9.
    Array(MetadataArray),
    /// Value type 10.
    U64(u64),
    /// Value type 11.
    I64(i64),
    /// Value type 12.
    F64(f64),
}

/// An array of values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataArray {
    /// Elements of value type 0.
    U8(Vec<u8>),
    /// Elements of value type 1.
    I8(Vec<i8>),
    /// Elements of value type 2.
    U16(Vec<u16>),
    /// Elements of value type 3.
    I16(Vec<i16>),
    /// Elements of value type 4.
    U32(Vec<u32>),
    /// Elements of value type 5.
    I32(Vec<i32>),
    /// Elements of value type 6.
    F32(Vec<f32>),
    /// Elements of value type 7.
    Bool(Vec<bool>),
    /// Elements of value type 8.
    String(Vec<String>),
    /// Elements of value type 9.
    Array(Vec<MetadataArray>),
    /// Elements of value type 10.
    U64(Vec<u64>),
    /// Elements of value type 11.
    I64(Vec<i64>),
    /// Elements of value type 12.
    F64(Vec<f64>),
}

impl MetadataArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::String(values) => values.len(),
            Self::Array(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' type, such as `u32`.
    pub fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The elements as `i32`, if they are integers that all fit.
    fn to_i32s(&self) -> Option<Vec<i32>> {
        fn fit<T: Copy + TryInto<i32>>(values: &[T]) -> Option<Vec<i32>> {
            values.iter().map(|value| (*value).try_into().ok()).collect()
        }
        match self {
            Self::U8(values) => fit(values),
            Self::I8(values) => fit(values),
            Self::U16(values) => fit(values),
            Self::I16(values) => fit(values),
            Self::U32(values) => fit(values),
            Self::I32(values) => Some(values.clone()),
            Self::U64(values) => fit(values),
            Self::I64(values) => fit(values),
            _ => None,
        }
    }
}

impl MetadataValue {
    /// The value as `u64`, if it is an integer of any type and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::U64(value) => Some(value),
            Self::I8(value) => value.try_into().ok(),
            Self::I16(value) => value.try_into().ok(),
            Self::I32(value) => value.try_into().ok(),
            Self::I64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The value as `f64`, if it is a floating-point number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(value) => Some(value.into()),
            Self::F64(value) => Some(value),
            _ => None,
        }
    }

    /// The type and, unless it is long, the value, for messages.
    pub(super) fn described(&self) -> String {
        match self {
            Self::String(text) => format!("the string {:?}", clipped(text)),
            Self::Array(array) => format!("an array of {} {}", array.len(), array.element_name()),
            Self::U8(value) => format!("the u8 {value}"),
            Self::I8(value) => format!("the i8 {value}"),
            Self::U16(value) => format!("the u16 {value}"),
            Self::I16(value) => format!("the i16 {value}"),
            Self::U32(value) => format!("the u32 {value}"),
            Self::I32(value) => format!("the i32 {value}"),
            Self::F32(value) => format!("the f32 {value}"),
            Self::Bool(value) => format!("the bool {value}"),
            Self::U64(value) => format!("the u64 {value}"),
            Self::I64(value) => format!("the i64 {value}"),
            Self::F64(value) => format!("the f64 {value}"),
        }
    }
}

/// Access by key and expected type. An error names the file, the key, and what was found.
impl GgufFile {
    /// The value of a key, whatever its type.
    pub fn find(&self, key: &str) -> Option<&MetadataValue> {
        self.metadata().get(key)
    }

    /// A string.
    pub fn metadata_str(&self, key: &str) -> Result<&str, ModelFileError> {
        self.typed(key, "a string", |value| match value {
            MetadataValue::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer of any type that is not negative.
    pub fn metadata_u64(&self, key: &str) -> Result<u64, ModelFileError> {
        self.typed(key, "an integer that is not negative", MetadataValue::as_u64)
    }

    /// A floating-point number; one of 64 bits is rounded.
    pub fn metadata_f32(&self, key: &str) -> Result<f32, ModelFileError> {
        self.metadata_f64(key).map(|value| value as f32)
    }

    /// A floating-point number.
    pub fn metadata_f64(&self, key: &str) -> Result<f64, ModelFileError> {
        self.typed(key, "a floating-point number", MetadataValue::as_f64)
    }

    /// A truth value.
    pub fn metadata_bool(&self, key: &str) -> Result<bool, ModelFileError> {
        self.typed(key, "a bool", |value| match value {
            MetadataValue::Bool(truth) => Some(*truth),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn metadata_strings(&self, key: &str) -> Result<&[String], ModelFileError> {
        self.typed(key, "an array of strings", |value| match value {
            MetadataValue::Array(MetadataArray::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of `f32`.
    pub fn metadata_f32s(&self, key: &str) -> Result<&[f32], ModelFileError> {
        self.typed(key, "an array of f32", |value| match value {
            MetadataValue::Array(MetadataArray::F32(values)) => Some(values.as_slice()),
            _ => None,
        })
    }

    /// An array of integers of any type that all fit in 32 bits.
    pub fn metadata_i32s(&self, key: &str) -> Result<Vec<i32>, ModelFileError> {
        self.typed(key, "an array of integers of at most 32 bits", |value| match value {
            MetadataValue::Array(array) => array.to_i32s(),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a MetadataValue) -> Option<T>,
    ) -> Result<T, ModelFileError> {
        let Some(value) = self.find(key) else {
            return Err(ModelFileError::MetadataMissing { key: key.to_owned() }.in_file(self.path()));
        };
        read(value).ok_or_else(|| {
            let found = value.described();
            ModelFileError::MetadataType {
                key: key.to_owned(),
                expected,
                found,
            }
            .in_file(self.path())
        })
    }
}

/// Reads `count` keys with their values; `count` has been checked against the bytes left.
pub(super) fn read_metadata(
    cursor: &mut Cursor<'_>,
    count: usize,
) -> Result<BTreeMap<String, MetadataValue>, ModelFileError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.name(MAX_KEY_BYTES, "metadata key")?;
        let value_type = cursor.u32("metadata value type")?;
        let value = read_value(cursor, value_type)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(ModelFileError::Duplicate {
                what: "metadata key",
                name: clipped(key),
            });
        }
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<'_>, value_type: u32) -> Result<MetadataValue, ModelFileError> {
    const WHAT: &str = "metadata value";
    Ok(match value_type {
        0 => MetadataValue::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
        1 => MetadataValue::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        2 => MetadataValue::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        3 => MetadataValue::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        4 => MetadataValue::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
        5 => MetadataValue::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        6 => MetadataValue::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        7 => MetadataValue::Bool(read_bool(cursor)?),
        8 => MetadataValue::String(cursor.string(WHAT)?.to_owned()),
        9 => MetadataValue::Array(read_array(cursor, 1)?),
        10 => MetadataValue::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
        11 => MetadataValue::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        12 => MetadataValue::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        _ => return Err(unknown_type("metadata value type", cursor, value_type)),
    })
}

fn read_array(cursor: &mut Cursor<'_>, depth: usize) -> Result<MetadataArray, ModelFileError> {
    let element_type = cursor.u32("array element type")?;
    let count = cursor.u64("array length")?;
    Ok(match element_type {
        0 => MetadataArray::U8(read_numbers(cursor, count, u8::from_le_bytes)?),
        1 => MetadataArray::I8(read_numbers(cursor, count, i8::from_le_bytes)?),
        2 => MetadataArray::U16(read_numbers(cursor, count, u16::from_le_bytes)?),
        3 => MetadataArray::I16(read_numbers(cursor, count, i16::from_le_bytes)?),
        4 => MetadataArray::U32(read_numbers(cursor, count, u32::from_le_bytes)?),
        5 => MetadataArray::I32(read_numbers(cursor, count, i32::from_le_bytes)?),
        6 => MetadataArray::F32(read_numbers(cursor, count, f32::from_le_bytes)?),
        7 => MetadataArray::Bool(read_items(cursor, count, 1, read_bool)?),
        8 => {
            let read = |cursor: &mut Cursor<'_>| cursor.string("array element").map(str::to_owned);
            MetadataArray::String(read_items(cursor, count, 8, read)?)
        }
        9 if depth == MAX_ARRAY_DEPTH => {
            let (offset, found) = (cursor.offset(), depth as u64 + 1);
            let expected = "at most 3 arrays within each other";
            return Err(ModelFileError::Header {
                what: "array nesting",
                offset,
                found,
                expected,
            });
        }
        9 => MetadataArray::Array(read_items(cursor, count, 4 + 8, |cursor| {
            read_array(cursor, depth + 1)
        })?),
        10 => MetadataArray::U64(read_numbers(cursor, count, u64::from_le_bytes)?),
        11 => MetadataArray::I64(read_numbers(cursor, count, i64::from_le_bytes)?),
        12 => MetadataArray::F64(read_numbers(cursor, count, f64::from_le_bytes)?),
        _ => return Err(unknown_type("array element type", cursor, element_type)),
    })
}

/// Numbers of a fixed size, in one pass over their bytes.
fn read_numbers<const N: usize, T>(
    cursor: &mut Cursor<'_>,
    count: u64,
    number: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, ModelFileError> {
    let count = cursor.check_count(count, N, "array elements")?;
    let bytes = cursor.take((count * N) as u64, "array elements")?;
    let (numbers, _) = bytes.as_chunks::<N>();
    Ok(numbers.iter().map(|raw| number(*raw)).collect())
}

/// Elements of at least `min_bytes` each, read one after the other.
fn read_items<T>(
    cursor: &mut Cursor<'_>,
    count: u64,
    min_bytes: usize,
    mut read: impl FnMut(&mut Cursor<'_>) -> Result<T, ModelFileError>,
) -> Result<Vec<T>, ModelFileError> {
    let count = cursor.check_count(count, min_bytes, "array elements")?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(read(cursor)?);
    }
    Ok(items)
}

fn read_bool(cursor: &mut Cursor<'_>) -> Result<bool, ModelFileError> {
    match cursor.array::<1>("bool")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [found] => {
            let (offset, found) = (cursor.offset(), found.into());
            Err(ModelFileError::Header {
                what: "bool",
                offset,
                found,
                expected: "0 or 1",
            })
        }
    }
}

fn unknown_type(what: &'static str, cursor: &Cursor<'_>, found: u32) -> ModelFileError {
    ModelFileError::Header {
        what,
        offset: cursor.offset(),
        found: found.into(),
        expected: "a type from 0 to 12",
    }
}

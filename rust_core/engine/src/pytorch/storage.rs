//! What a tensor's numbers are in: one entry of the archive, which several tensors may share.

use pyagent_kernels::ggml::GgmlType;

/// Element types: what torch calls a storage of them, what messages and safetensors call them, bytes of one.
const KINDS: [(&str, &str, u64); 10] = [
    ("FloatStorage", "F32", 4),
    ("HalfStorage", "F16", 2),
    ("BFloat16Storage", "BF16", 2),
    ("DoubleStorage", "F64", 8),
    ("LongStorage", "I64", 8),
    ("IntStorage", "I32", 4),
    ("ShortStorage", "I16", 2),
    ("CharStorage", "I8", 1),
    ("ByteStorage", "U8", 1),
    ("BoolStorage", "BOOL", 1),
];

/// A storage, as a pickle names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    pub(super) kind: Kind,
    /// The name of its entry, below `data/`.
    pub(super) key: &'a str,
    pub(super) num_values: u64,
}

/// An element type, by its place in [`KINDS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(u8);

impl Kind {
    pub(super) fn of_storage(name: &[u8]) -> Option<Self> {
        let place = KINDS.iter().position(|(storage, ..)| storage.as_bytes() == name)?;
        Some(Self(place as u8))
    }

    pub(super) fn num_bytes(self) -> u64 {
        KINDS[usize::from(self.0)].2
    }

    /// The element type, or the name of one that is not read as numbers.
    pub(super) fn element_type(self) -> Result<GgmlType, String> {
        match KINDS[usize::from(self.0)].1 {
            "F32" => Ok(GgmlType::F32),
            "F16" => Ok(GgmlType::F16),
            "BF16" => Ok(GgmlType::BF16),
            other => Err(other.to_owned()),
        }
    }
}

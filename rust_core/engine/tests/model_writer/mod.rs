//! Writes small model files for tests: valid ones by default, broken ones where a test asks for it.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};

/// A GGUF string: a length of 64 bits and the text.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A GGUF array of already encoded elements.
pub fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element_type.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A GGUF file in the making.
#[derive(Clone)]
pub struct GgufWriter {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: usize,
    /// Written instead of the true number of metadata keys.
    pub num_entries: Option<u64>,
    /// Written instead of the true number of tensors.
    pub num_tensors: Option<u64>,
    pub entries: Vec<Vec<u8>>,
    pub infos: Vec<Vec<u8>>,
    pub data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            num_entries: None,
            num_tensors: None,
            entries: Vec::new(),
            infos: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl GgufWriter {
    /// Adds a key whose value is already encoded.
    pub fn entry(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        self.entries
            .push([&string(key)[..], &value_type.to_le_bytes(), value].concat());
        self
    }

    /// Adds a key with a string.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &string(value))
    }

    /// Adds a key with a `u32`.
    pub fn number(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    /// Adds a tensor at the next aligned place.
    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.tensor_at(name, dims, type_id, offset)
    }

    /// Adds a line to the tensor table and no data.
    pub fn tensor_at(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let dim_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let num_dims = (dims.len() as u32).to_le_bytes();
        let info = [
            &string(name)[..],
            &num_dims,
            &dim_bytes,
            &type_id.to_le_bytes(),
            &offset.to_le_bytes(),
        ];
        self.infos.push(info.concat());
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.num_tensors.unwrap_or(self.infos.len() as u64).to_le_bytes());
        bytes.extend(self.num_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.infos.concat());
        if !self.infos.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
            bytes.extend(&self.data);
        }
        bytes
    }

    /// Writes the file into a folder.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("model.gguf");
        fs::write(&path, self.bytes()).expect("the test's folder is writable");
        path
    }
}

/// A GGUF file with every value type and tensors of several element types.
pub fn full_gguf(version: u32) -> GgufWriter {
    let nested = [
        array(4, 2, &[1u32.to_le_bytes(), 2u32.to_le_bytes()].concat()),
        array(7, 1, &[1]),
    ]
    .concat();
    GgufWriter {
        version,
        ..GgufWriter::default()
    }
    .text("general.architecture", "llama")
    .entry("u8", 0, &[200])
    .entry("i8", 1, &[0xff])
    .entry("u16", 2, &60_000u16.to_le_bytes())
    .entry("i16", 3, &(-3i16).to_le_bytes())
    .number("u32", 4_000_000_000)
    .entry("i32", 5, &(-5i32).to_le_bytes())
    .entry("f32", 6, &1.5f32.to_le_bytes())
    .entry("bool", 7, &[1])
    .entry("u64", 10, &u64::MAX.to_le_bytes())
    .entry("i64", 11, &7i64.to_le_bytes())
    .entry("f64", 12, &0.1f64.to_le_bytes())
    .entry("strings", 9, &array(8, 2, &[string("a"), string("\u{2581}b")].concat()))
    .entry(
        "f32s",
        9,
        &array(6, 2, &[0.5f32.to_le_bytes(), (-1f32).to_le_bytes()].concat()),
    )
    .entry(
        "i32s",
        9,
        &array(5, 2, &[(-1i32).to_le_bytes(), 6i32.to_le_bytes()].concat()),
    )
    .entry("u16s", 9, &array(2, 1, &60_000u16.to_le_bytes()))
    .entry("u64s", 9, &array(10, 1, &u64::MAX.to_le_bytes()))
    .entry("nested", 9, &array(9, 2, &nested))
    .entry("empty", 9, &array(8, 0, &[]))
    .tensor(
        "norm",
        &[3],
        0,
        &[1f32.to_le_bytes(), 2f32.to_le_bytes(), 3f32.to_le_bytes()].concat(),
    )
    .tensor(
        "embedding",
        &[32, 2],
        8,
        &[&[0x00, 0x3c], &[1u8; 32][..], &[0x00, 0x40], &[2u8; 32]].concat(),
    )
    .tensor("half", &[2, 1, 2], 1, &[0x00, 0x3c].repeat(4))
    .tensor("scalar", &[], 30, &[0x80, 0x3f])
}

/// A safetensors file from a header and its data.
pub fn safetensors_bytes(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A valid safetensors file with four tensors, one of which has a type that is not read.
pub fn full_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b.weight":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},
        "c.weight":{"dtype":"F16","shape":[1,1,2],"data_offsets":[28,32]},
        "position_ids":{"dtype":"I64","shape":[1],"data_offsets":[32,40]}}"#;
    let numbers: Vec<u8> = (0u8..6).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let halves = [0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3c, 0x00, 0xbc];
    safetensors_bytes(header, &[&numbers[..], &halves, &[0; 8]].concat())
}

/// A zip archive of stored entries, with the directory's numbers in 64 bits where asked, as `torch.save` writes it.
pub fn zip_bytes(entries: &[(&str, &[u8])], is_wide: bool) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let start = bytes.len();
        let size = (data.len() as u32).to_le_bytes();
        let mut sizes = [size, size].concat();
        let (mut extra, mut place) = (Vec::new(), (start as u32).to_le_bytes());
        if is_wide {
            extra = [&[1, 0, 24, 0][..], &(data.len() as u64).to_le_bytes()].concat();
            extra.extend((data.len() as u64).to_le_bytes());
            extra.extend((start as u64).to_le_bytes());
            (sizes, place) = (vec![0xff; 8], [0xff; 4]);
        }
        let name_len = (name.len() as u16).to_le_bytes();
        let padding = [b'Z'; 5];
        bytes.extend(
            [
                &b"PK\x03\x04\0\0\0\x08\0\0\0\0\0\0\0\0\0\0"[..],
                &[0; 8],
                &name_len,
                &[5, 0],
            ]
            .concat(),
        );
        bytes.extend([name.as_bytes(), &padding, data].concat());
        bytes.extend([&b"PK\x07\x08\0\0\0\0"[..], &size, &size].concat());
        let extra_len = (extra.len() as u16).to_le_bytes();
        directory.extend(
            [
                &b"PK\x01\x02\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0"[..],
                &sizes,
                &name_len,
                &extra_len,
            ]
            .concat(),
        );
        directory.extend([&[0; 10][..], &place, name.as_bytes(), &extra].concat());
    }
    let (start, size, count) = (bytes.len() as u64, directory.len() as u64, entries.len() as u64);
    bytes.extend(&directory);
    if is_wide {
        let record = bytes.len() as u64;
        bytes.extend([&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat());
        bytes.extend([count, count, size, start].map(u64::to_le_bytes).concat());
        bytes.extend([&b"PK\x06\x07"[..], &[0; 4], &record.to_le_bytes(), &[1, 0, 0, 0]].concat());
    }
    let count = (count as u16).to_le_bytes();
    bytes.extend([&b"PK\x05\x06"[..], &[0; 4], &count, &count].concat());
    bytes.extend([(size as u32).to_le_bytes(), (start as u32).to_le_bytes()].concat());
    bytes.extend([0, 0]);
    bytes
}

/// A text of a pickle.
pub fn pickled_text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A tensor of a pickle: its storage's type, key and count, where it starts, its sizes and its strides.
pub fn pickled_tensor(storage: (&str, &str, u16), offset: u16, sizes: &[u32], strides: &[u32]) -> Vec<u8> {
    let (kind, key, count) = storage;
    let short = |number: u16| [b"M", &number.to_le_bytes()[..]].concat();
    let tuple = |numbers: &[u32]| {
        let numbers: Vec<u8> = numbers
            .iter()
            .flat_map(|n| [b"J", &n.to_le_bytes()[..]].concat())
            .collect();
        [b"(", &numbers[..], b"t"].concat()
    };
    let mut bytes = [b"ctorch._utils\n_rebuild_tensor_v2\n((", &pickled_text("storage")[..]].concat();
    bytes.extend(
        [
            format!("ctorch\n{kind}\n").as_bytes(),
            &pickled_text(key),
            &pickled_text("cpu"),
        ]
        .concat(),
    );
    bytes.extend([&short(count)[..], b"tQ", &short(offset), &tuple(sizes), &tuple(strides)].concat());
    bytes.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    bytes
}

/// The pickle of a state dict with these names and values.
pub fn pickled_dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"\x80\x02ccollections\nOrderedDict\n)Rq\0(".to_vec();
    for (name, value) in entries {
        bytes.extend([pickled_text(name), value.clone()].concat());
    }
    bytes.extend([b"u}", &pickled_text("_metadata")[..], b"h\0sb."].concat());
    bytes
}

/// A file as `torch.save` writes it, of a pickle and storages by their keys.
pub fn pytorch_bytes(pickle: &[u8], storages: &[(&str, &[u8])], is_wide: bool) -> Vec<u8> {
    let names: Vec<String> = storages.iter().map(|(key, _)| format!("model/data/{key}")).collect();
    let mut entries: Vec<(&str, &[u8])> = vec![("model/data.pkl", pickle), ("model/byteorder", b"little")];
    entries.extend(
        names
            .iter()
            .map(String::as_str)
            .zip(storages.iter().map(|(_, bytes)| *bytes)),
    );
    entries.push(("model/version", b"3\n"));
    zip_bytes(&entries, is_wide)
}

/// The tensors of [`full_safetensors`] as a PyTorch file, two of them in one storage, and one name more for the first.
pub fn full_pytorch(is_wide: bool) -> Vec<u8> {
    let first = pickled_tensor(("FloatStorage", "0", 6), 0, &[2, 3], &[3, 1]);
    let pickle = pickled_dict(&[
        ("a.weight", [&first[..], b"q\x01"].concat()),
        ("b.weight", pickled_tensor(("BFloat16Storage", "1", 3), 1, &[2], &[1])),
        (
            "c.weight",
            pickled_tensor(("HalfStorage", "2", 2), 0, &[1, 1, 2], &[7, 9, 1]),
        ),
        ("tied.weight", b"h\x01".to_vec()),
        ("position_ids", pickled_tensor(("LongStorage", "3", 1), 0, &[1], &[1])),
        ("rows", pickled_tensor(("FloatStorage", "0", 6), 3, &[1, 3], &[3, 1])),
    ]);
    let numbers: Vec<u8> = (0u8..6).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let storages: [(&str, &[u8]); 4] = [
        ("0", &numbers),
        ("1", &[0, 0, 0x80, 0x3f, 0x00, 0xc0]),
        ("2", &[0x00, 0x3c, 0x00, 0xbc]),
        ("3", &[0; 8]),
    ];
    pytorch_bytes(&pickle, &storages, is_wide)
}

/// A tensor of tensorizer's: its name, element type, shape and bytes.
pub type Tensorized<'a> = (&'a str, &'a str, &'a [u32], &'a [u8]);

/// A file as tensorizer writes it, with room for a table of `table_bytes` as it keeps; checksums are of no meaning.
pub fn tensorizer_bytes(version: u32, tensors: &[Tensorized<'_>], table_bytes: usize) -> Vec<u8> {
    let mut bytes = [&b"|TZR|"[..], &version.to_le_bytes(), &[0; 48]].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((table_bytes as u64).to_le_bytes());
    let (mut table, table_start) = (Vec::new(), bytes.len());
    bytes.resize(table_start + table_bytes, 0);
    for (name, element_type, shape, data) in tensors {
        let dims: Vec<u8> = shape.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let kind = [
            &[element_type.len() as u8][..],
            element_type.as_bytes(),
            &[shape.len() as u8],
            &dims,
        ]
        .concat();
        let name = [&(name.len() as u16).to_le_bytes()[..], name.as_bytes()].concat();
        let sums = [&[41, 0, 2, 0, 4][..], &[0xaa; 4], &[1, 32], &[0xbb; 32]].concat();
        let length = 8 + 3 + name.len() + kind.len() + sums.len() + 8;
        let start = bytes.len() as u64;
        let places = [start, start + length as u64, data.len() as u64].map(u64::to_le_bytes);
        table.extend([&name[..], &[2], &kind, &places.concat()].concat());
        bytes.extend([&(length as u64).to_le_bytes()[..], &[0, 0, 2], &name, &kind, &sums].concat());
        bytes.extend([&(data.len() as u64).to_le_bytes()[..], data].concat());
    }
    bytes[table_start..table_start + table.len()].copy_from_slice(&table);
    bytes.extend([0; 8]);
    bytes
}

/// The tensors of [`full_safetensors`] as a file of tensorizer's, and one of which the file has no bytes.
pub fn full_tensorizer() -> Vec<u8> {
    let numbers: Vec<u8> = (0u8..6).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let tensors: [Tensorized<'_>; 5] = [
        ("a.weight", "<f4", &[2, 3], &numbers),
        ("b.weight", "<V2\0torch.bfloat16", &[2], &[0x80, 0x3f, 0x00, 0xc0]),
        ("c.weight", "<f2", &[1, 1, 2], &[0x00, 0x3c, 0x00, 0xbc]),
        ("position_ids", "<i8", &[1], &[0; 8]),
        ("marker", "<i8", &[1], &[]),
    ];
    tensorizer_bytes(4, &tensors, 320)
}

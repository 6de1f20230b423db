//! Files that tensorizer wrote: what is read of them, and how what cannot be is refused.

mod model_writer;

use std::fs;

use model_writer::{Tensorized, full_safetensors, full_tensorizer, tensorizer_bytes};
use pyagent_engine::safetensors::SafetensorsFolder;
use pyagent_engine::tensorizer::{SumKind, TensorizerFile};
use pyagent_engine::weights::ModelFile;

const ONE: Tensorized<'_> = ("a", "<f4", &[1], &[0, 0, 0x80, 0x3f]);
const TABLE_START: usize = 73;

fn folder_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), b"{}").unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn refusal(bytes: &[u8]) -> String {
    TensorizerFile::parse(bytes)
        .expect_err("the file cannot be read")
        .to_string()
}

/// A folder's tensors are those that the same folder has as safetensors; one without bytes is there and not read.
#[test]
fn a_folder_is_read_as_one_of_safetensors() {
    let as_safetensors = folder_with(&[("model.safetensors", &full_safetensors())]);
    let expected = ModelFile::open(as_safetensors.path()).unwrap();
    let folder = folder_with(&[("model.tensors", &full_tensorizer()), ("pytorch_model.bin", b"other")]);
    let model = ModelFile::open(folder.path()).unwrap();
    assert_eq!(model.tensors().count(), expected.tensors().count());
    for tensor in expected.tensors() {
        assert_eq!(model.tensor(tensor.name).unwrap(), tensor);
    }
    for (name, told) in [("position_ids", "type I64"), ("marker", "type of no bytes in the file")] {
        let text = model.tensor(name).unwrap_err().to_string();
        assert!(text.contains(told), "{text}");
    }
}

/// Its dimensions may have 64 bits, where an entry of the table says so.
#[test]
fn long_dimensions_are_read() {
    let mut bytes = tensorizer_bytes(5, &[ONE], 80);
    let start = TABLE_START + 80;
    let length = bytes.len() - 8 - 4 - start;
    bytes[9] = 2;
    let entry = [
        &5u32.to_le_bytes()[..],
        &[1, 0, b'a', 2, 3],
        b"<f4",
        &[1],
        &1u64.to_le_bytes(),
    ]
    .concat();
    let places = [start as u64, (start + length + 4) as u64, 4]
        .map(u64::to_le_bytes)
        .concat();
    bytes[TABLE_START..TABLE_START + entry.len() + 24].copy_from_slice(&[entry, places].concat());
    bytes[start..start + 8].copy_from_slice(&(length as u64 + 4).to_le_bytes());
    bytes.splice(start + 23..start + 23, [0; 4]);
    let file = TensorizerFile::parse(&bytes).unwrap();
    assert_eq!(file.tensors["a"].dims, [1]);
}

/// Where each checksum is, and what it is of.
#[test]
fn checksums_are_found() {
    let bytes = full_tensorizer();
    let file = TensorizerFile::parse(&bytes).unwrap();
    assert_eq!(file.sums.len(), 5);
    for sums in &file.sums {
        let kinds: Vec<_> = sums.places.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SumKind::Crc32, SumKind::Sha256]);
        let found = sums.places.iter().map(|(_, place)| &bytes[place.clone()]);
        assert_eq!(found.collect::<Vec<_>>(), [&[0xaa; 4][..], &[0xbb; 32]]);
    }
}

/// Files of one rank, or of parts of a pipeline, are not taken for a model.
#[test]
fn a_part_of_a_model_is_refused_by_name() {
    let folder = folder_with(&[("model-rank-000.tensors", &full_tensorizer())]);
    let text = SafetensorsFolder::open(folder.path()).unwrap_err().to_string();
    assert!(
        text.contains("model-rank-000.tensors, which is a part of a model"),
        "{text}"
    );
}

/// What is encrypted, of another version, cut, or said twice in two ways is refused, and the text says why.
#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let valid = tensorizer_bytes(2, &[ONE], 48);
    assert!(TensorizerFile::parse(&valid).is_ok());
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = valid.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let newer = |flags: u8| [&with(5, &[4])[..9], &[flags], &valid[10..]].concat();
    let header = TABLE_START + 48;
    let twice = tensorizer_bytes(1, &[ONE, ONE], 80);
    let path = tensorizer_bytes(1, &[("\x1e[\"a\",0]", "<f4", &[1], &[0; 4])], 80);
    for (bytes, told) in [
        (b"GGUF".to_vec(), "it starts with \"GGUF\" where \"|TZR|\" is expected"),
        (with(5, &[6]), "its version is 6; expected 1, 2, 4 or 5"),
        (with(5, &[0]), "its version is 0"),
        (with(5, &[3]), "it is encrypted, and the engine has no key"),
        (newer(1), "it is encrypted, and the engine has no key"),
        (newer(4), "it has features that are not known here"),
        (with(57, &[200]), "200 tensors in a table of 48 bytes"),
        (with(57 + 4, &[1]), "tensors in a table of 48 bytes"),
        (with(65 + 4, &[1]), "expected at most 131072 in 16777216"),
        (valid[..100].to_vec(), "what is said of its tensors ends too early"),
        (
            valid[..valid.len() - 9].to_vec(),
            "the file is cut short: tensor \"a\" ends",
        ),
        (with(TABLE_START + 13, &[0]), "has no header where the table says"),
        (with(header + 13, b"b"), "otherwise than the table"),
        (with(header, &[1]), "otherwise than the table"),
        (with(header + 26, &[9]), "a checksum of kind 9 has 4 bytes"),
        (twice, "\"a\" occurs twice"),
        (
            tensorizer_bytes(4, &[(".vllm_tensorized_marker", "<i8", &[1], &[])], 80),
            "vLLM wrote it of its own modules",
        ),
        (path, "dicts and lists within each other"),
    ] {
        let text = refusal(&bytes);
        assert!(text.contains(told), "{text}, not {told}");
    }
    let short: Tensorized<'_> = ("a", "<f4", &[2], &[0; 4]);
    assert!(refusal(&tensorizer_bytes(1, &[short], 80)).contains("has other bytes than its shape says"));
    let empty: Tensorized<'_> = ("a", "<f4", &[0, 2], &[]);
    assert!(refusal(&tensorizer_bytes(1, &[empty], 80)).contains("a dimension is 0"));
}

/// A tensor whose bytes reach over the next one's header is refused, though both places say so.
#[test]
fn tensors_over_each_other_are_refused() {
    let next: Tensorized<'_> = ("b", "<f4", &[1], &[0; 4]);
    let mut bytes = tensorizer_bytes(2, &[("a", "|u1", &[4], &[0; 4]), next], 80);
    assert!(TensorizerFile::parse(&bytes).is_ok());
    let header = TABLE_START + 80;
    let reach = 4 + (bytes.len() - header) as u64 / 2;
    for (shape, num_bytes) in [(TABLE_START + 9, TABLE_START + 29), (header + 19, header + 66)] {
        bytes[shape..shape + 4].copy_from_slice(&(reach as u32).to_le_bytes());
        bytes[num_bytes..num_bytes + 8].copy_from_slice(&reach.to_le_bytes());
    }
    assert!(refusal(&bytes).contains("two of its tensors overlap"));
}

//! PyTorch files: what is read of a state dict, and how what is none is refused without being run.

mod model_writer;

use std::fs;

use model_writer::{
    full_pytorch, full_safetensors, pickled_dict, pickled_tensor, pickled_text, pytorch_bytes, safetensors_bytes,
    zip_bytes,
};
use pyagent_engine::pytorch::StateDict;
use pyagent_engine::safetensors::SafetensorsFolder;
use pyagent_engine::weights::ModelFile;

const FOUR: [u8; 4] = [0, 0, 0x80, 0x3f];

fn folder_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), b"{}").unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn one_tensor(name: &str) -> Vec<u8> {
    let pickle = pickled_dict(&[(name, pickled_tensor(("FloatStorage", "0", 1), 0, &[1], &[1]))]);
    pytorch_bytes(&pickle, &[("0", &FOUR)], false)
}

fn refusal(bytes: &[u8]) -> String {
    StateDict::parse(bytes)
        .expect_err("the file is no state dict")
        .to_string()
}

/// What is said of a file with this pickle and a storage of one number, of 32 bits.
fn refusal_of(pickle: &[u8]) -> String {
    refusal(&pytorch_bytes(pickle, &[("0", &FOUR)], false))
}

/// A folder's tensors are those that the same folder has as safetensors; views of one storage share its bytes.
#[test]
fn a_folder_is_read_as_one_of_safetensors() {
    let as_safetensors = folder_with(&[("model.safetensors", &full_safetensors())]);
    let expected = ModelFile::open(as_safetensors.path()).unwrap();
    for is_wide in [false, true] {
        let folder = folder_with(&[("pytorch_model.bin", &full_pytorch(is_wide))]);
        let model = ModelFile::open(folder.path()).unwrap();
        for tensor in expected.tensors() {
            assert_eq!(model.tensor(tensor.name).unwrap(), tensor);
        }
        let text = model.tensor("position_ids").unwrap_err().to_string();
        assert!(text.contains("element type I64, which is not supported"), "{text}");
        let [first, tied, rows] = ["a.weight", "tied.weight", "rows"].map(|name| model.tensor(name).unwrap());
        assert_eq!((first.bytes.as_ptr(), first.dims), (tied.bytes.as_ptr(), tied.dims));
        assert_eq!(
            (rows.to_f32().unwrap(), rows.bytes),
            (vec![3.0, 4.0, 5.0], &first.bytes[12..])
        );
    }
}

/// Several files are joined by their index, or by their names; safetensors go before them, and other files are left.
#[test]
fn shards_are_joined() {
    let index = br#"{"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}"#;
    let (a, b, other) = (one_tensor("a"), one_tensor("b"), one_tensor("other"));
    let shards: [(&str, &[u8]); 3] = [
        ("pytorch_model-1.bin", &a),
        ("pytorch_model-2.bin", &b),
        ("training_args.bin", &other),
    ];
    let header = r#"{"whole":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let whole = safetensors_bytes(header, &FOUR);
    let names = |files: &[(&str, &[u8])]| -> Vec<String> {
        let folder = folder_with(files);
        let model = ModelFile::open(folder.path()).unwrap();
        model.tensors().map(|tensor| tensor.name.to_owned()).collect()
    };
    assert_eq!(names(&shards), ["a", "b"]);
    assert_eq!(
        names(&[&shards[..], &[("pytorch_model.bin.index.json", index)]].concat()),
        ["a", "b"]
    );
    assert_eq!(
        names(&[&shards[..], &[("pytorch_model.bin", &other)]].concat()),
        ["other"]
    );
    assert_eq!(
        names(&[&shards[..], &[("model.safetensors", &whole)]].concat()),
        ["whole"]
    );
}

/// An index leads to files of weights in its folder alone.
#[test]
fn a_wrong_index_is_refused() {
    for file in [
        "../pytorch_model.bin",
        "/etc/pytorch_model.bin",
        "model.safetensors",
        "training_args.bin",
    ] {
        let index = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
        let folder = folder_with(&[
            ("pytorch_model.bin", &one_tensor("a")),
            ("pytorch_model.bin.index.json", index.as_bytes()),
        ]);
        let text = SafetensorsFolder::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("expected the name of a bin file beside it"), "{text}");
    }
}

/// What a pickle could call is named and not called; the same for instructions that a state dict has not.
#[test]
fn what_a_pickle_calls_is_refused_by_name() {
    let called = |name: &[u8]| [b"\x80\x02c", name, b"\n(", &pickled_text("id > /tmp/owned")[..], b"tR."].concat();
    for (pickle, named) in [
        (called(b"os\nsystem"), "os.system"),
        (called(b"posix\nsystem"), "posix.system"),
        (called(b"builtins\neval"), "builtins.eval"),
        (called(b"torch\nload"), "torch.load"),
        (
            called(b"torch._utils\n_rebuild_tensor_v3"),
            "torch._utils._rebuild_tensor_v3",
        ),
        (
            called(b"numpy.core.multiarray\n_reconstruct"),
            "numpy.core.multiarray._reconstruct",
        ),
        (
            called(b"transformers.models.bert\nBertModel"),
            "transformers.models.bert.BertModel",
        ),
    ] {
        let text = refusal_of(&pickle);
        assert!(
            text.contains(&format!(
                "names {named}, which no plain state dict has; nothing of it is run"
            )),
            "{text}"
        );
    }
    for instruction in [
        b'i', b'o', 0x81, 0x82, 0x92, 0x93, b'P', b'S', b'V', b'I', b'F', b'a', b'e', b'd', b'l', b'0', b'1',
    ] {
        let text = refusal_of(&[&b"\x80\x02"[..], &[instruction], b"."].concat());
        assert!(text.contains("at byte 2, which no plain state dict has"), "{text}");
    }
}

/// Pickles that disagree with themselves are refused, each for what is wrong with it.
#[test]
fn damaged_pickles_are_refused() {
    let tensor = |storage, offset, sizes: &[u32], strides: &[u32]| {
        pickled_dict(&[("t", pickled_tensor(storage, offset, sizes, strides))])
    };
    let float = ("FloatStorage", "0", 1);
    let nested = [&b"\x80\x02N"[..], &[0x85; 100_000], b"."].concat();
    for (pickle, problem) in [
        (
            tensor(float, 0, &[2], &[1]),
            "ends at number 2 of its storage, which has 1",
        ),
        (tensor(float, 1, &[1], &[1]), "ends at number 2 of its storage"),
        (tensor(float, 0, &[1 << 30; 8], &[1; 8]), "does not lie row after row"),
        (
            tensor(float, 0, &[1 << 30, 1 << 30, 1 << 30], &[1 << 30, 1 << 30, 1]),
            "does not lie row after row",
        ),
        (tensor(float, 0, &[1 << 30], &[1]), "ends at number 1073741824"),
        (tensor(float, 0, &[2, 3], &[1, 2]), "does not lie row after row"),
        (tensor(float, 0, &[2], &[0]), "does not lie row after row"),
        (tensor(float, 0, &[0], &[1]), "a dimension is 0"),
        (tensor(float, 0, &[u32::MAX], &[1]), "has a size that is no count"),
        (tensor(float, 0, &[1; 9], &[1; 9]), "has 9 sizes and 9 strides"),
        (tensor(float, 0, &[1], &[]), "has 1 sizes and 0 strides"),
        (
            tensor(("FloatStorage", "0", 2), 0, &[1], &[1]),
            "of 4 bytes, which should hold 2 numbers of 4 bytes",
        ),
        (
            tensor(("DoubleStorage", "0", 1), 0, &[1], &[1]),
            "of 4 bytes, which should hold 1 numbers of 8 bytes",
        ),
        (
            tensor(("FloatStorage", "1", 1), 0, &[1], &[1]),
            "is in data/1, which the archive lacks",
        ),
        (
            tensor(("FloatStorage", "../data/0", 1), 0, &[1], &[1]),
            "is in data/../data/0, which the archive lacks",
        ),
        (
            tensor(("ComplexFloatStorage", "0", 1), 0, &[1], &[1]),
            "names torch.ComplexFloatStorage",
        ),
        (
            pickled_dict(&[("model", b"}".to_vec())]),
            "the entry \"model\" is not a tensor",
        ),
        (
            pickled_dict(&[("n", b"K\x01".to_vec())]),
            "the entry \"n\" is not a tensor",
        ),
        (b"\x80\x02N.".to_vec(), "it holds no state dict"),
        (nested, "it holds no state dict"),
        (b"\x80\x04}.".to_vec(), "its pickle is of protocol 4; expected 2"),
        (b"\x80\x02}".to_vec(), "cut short"),
        (b"\x80\x02}.}.".to_vec(), "it ends before its end"),
        (b"\x80\x02}}.".to_vec(), "it ends before its end"),
        (b"\x80\x02.".to_vec(), "lacks a value"),
        (b"\x80\x02(.".to_vec(), "lacks a value"),
        (b"\x80\x02N(R.".to_vec(), "lacks a value"),
        (b"\x80\x02ccollections\nOrderedDict\n)(R.".to_vec(), "lacks a value"),
        (b"\x80\x02t.".to_vec(), "something ends that has not begun"),
        (b"\x80\x02N(N\x86.".to_vec(), "a tuple lacks a value"),
        (b"\x80\x02NNNs.".to_vec(), "something other than a dict"),
        (b"\x80\x02}(NNs.".to_vec(), "something other than a dict"),
        (b"\x80\x02}NNs.".to_vec(), "a key that is not a text"),
        (b"\x80\x02}(Nu.".to_vec(), "a key without a value"),
        (b"\x80\x02(u.".to_vec(), "something other than a dict"),
        (b"\x80\x02NNb.".to_vec(), "something other than a dict has attributes"),
        (b"\x80\x02NNR.".to_vec(), "is called that has no name"),
        (b"\x80\x02)Q.".to_vec(), "a storage is not described"),
        (
            b"\x80\x02ccollections\nOrderedDict\nNR.".to_vec(),
            "is not described as torch does",
        ),
        (b"\x80\x02Nq\x05.".to_vec(), "out of order"),
        (b"\x80\x02Nr\xff\xff\xff\xff.".to_vec(), "out of order"),
        (b"\x80\x02h\0.".to_vec(), "did not remember"),
        (b"\x80\x02\x8a\x09123456789.".to_vec(), "more than 64 bits"),
        (b"\x80\x02X\xff\xff\xff\x7f.".to_vec(), "more than the 4096 allowed"),
        (b"\x80\x02X\x01\0\0\0\xff.".to_vec(), "not UTF-8"),
        (b"\x80\x02cos".to_vec(), "a name has no end"),
        ([&b"\x80\x02"[..], &[b'('; 17]].concat(), "begun within others"),
        ([&b"\x80\x02"[..], &[b'N'; 4097]].concat(), "too many values wait"),
    ] {
        let text = refusal_of(&pickle);
        assert!(text.contains(problem) && text.len() < 500, "{problem}: {text}");
    }
    let twice = [
        ("t", pickled_tensor(float, 0, &[1], &[1])),
        ("t", pickled_tensor(float, 0, &[1], &[1])),
    ];
    assert!(refusal_of(&pickled_dict(&twice)).contains("the tensor name \"t\" occurs twice"));
    let long = [&b"\x80\x02"[..], &vec![b'N'; 16 << 20]].concat();
    assert!(refusal_of(&long).contains("more than the 16777216 allowed"));
}

/// What is repeated takes no memory for each time: tuples of tuples that would be 2 to the 60 values are one each.
#[test]
fn a_bomb_of_repeated_tuples_is_small() {
    let doubled = |place: u8| [b'h', place, b'h', place, 0x86, b'q', place + 1];
    let bomb: Vec<u8> = (0..60).flat_map(doubled).collect();
    let text = refusal_of(&[&b"\x80\x02Nq\0"[..], &bomb, b"."].concat());
    assert!(text.contains("it ends before its end"), "{text}");
    // One tuple of thousands of sizes would be repeated by any number of tensors.
    let sizes = [&b"("[..], &[b'K', 1].repeat(4000), b"tq\0"].concat();
    let tensor = pickled_tensor(("FloatStorage", "0", 1), 0, &[], &[]);
    let with_sizes = [
        &tensor[..tensor.len() - 34],
        b"h\0h\0\x89ccollections\nOrderedDict\n)RtR",
    ]
    .concat();
    let text = refusal_of(&[&b"\x80\x02"[..], &sizes, &with_sizes].concat());
    assert!(text.contains("4000 sizes and 4000 strides"), "{text}");
}

/// An archive whose directory has room for so many entries.
fn many_entries(count: u64) -> Vec<u8> {
    let (start, size) = (4u64, count * 46);
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.resize((start + size) as usize, 0);
    bytes.extend([&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat());
    bytes.extend([count, count, size, start].map(u64::to_le_bytes).concat());
    bytes.extend(
        [
            &b"PK\x06\x07"[..],
            &[0; 4],
            &(start + size).to_le_bytes(),
            &[1, 0, 0, 0],
        ]
        .concat(),
    );
    bytes.extend([&b"PK\x05\x06"[..], &[0; 18]].concat());
    bytes
}

/// Archives whose entries are packed, doubled, overlapping, misnamed or beyond the file are refused; the old form says
/// what to do.
#[test]
fn damaged_archives_are_refused() {
    let pickle = b"\x80\x02}.".as_slice();
    let valid = zip_bytes(&[("m/data.pkl", pickle), ("m/data/0", &FOUR)], false);
    assert!(StateDict::parse(&valid).unwrap().tensors.is_empty());
    let directory = valid.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = valid.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let second = valid.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    for (bytes, problem) in [
        (
            b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec(),
            "before torch 1.6",
        ),
        (
            b"<html>".to_vec(),
            "it starts with \"<htm\" where a zip archive's \"PK\"",
        ),
        (Vec::new(), "download it again"),
        (valid[..valid.len() - 1].to_vec(), "cut short"),
        ([&valid[..], b"more"].concat(), "cut short"),
        (with(directory + 10, &[8]), "\"m/data.pkl\" is compressed"),
        (with(directory + 8, &[1]), "is compressed, encrypted"),
        (with(directory + 20, &[9]), "is compressed"),
        (with(directory + 24, &[0xff; 4]), "directory is cut short"),
        (with(directory + 28, &[0xff; 2]), "directory is cut short"),
        (with(directory + 46, b"x"), "another name than its directory says"),
        (with(second + 42, &[0; 4]), "another name than its directory says"),
        (with(second + 42, &[0xfe; 4]), "not where its directory says"),
        (
            with(second + 20, &[0, 1, 0, 0, 0, 1, 0, 0]),
            "after its directory's start",
        ),
        (with(valid.len() - 12, &[1]), "longer than its entries"),
        (with(valid.len() - 12, &[0xff; 2]), "do not fit in a directory"),
        (with(valid.len() - 6, &[0xff; 4]), "reaches into its end"),
        (
            many_entries(131_137),
            "its archive has 131137 entries; at most 131136 are read",
        ),
        (
            zip_bytes(&[("data.pkl", pickle)], false),
            "expected one FOLDER/data.pkl",
        ),
        (
            zip_bytes(&[("a/data.pkl", pickle), ("b/data.pkl", pickle)], false),
            "expected one FOLDER/data.pkl",
        ),
        (
            zip_bytes(&[("a/data.pkl", pickle), ("a/data.pkl", pickle)], false),
            "\"a/data.pkl\" occurs twice",
        ),
        (
            zip_bytes(&[("a/data.pkl", pickle), ("a/byteorder", b"big")], false),
            "big-endian",
        ),
    ] {
        let text = refusal(&bytes);
        assert!(text.contains(problem) && text.len() < 500, "{problem}: {text}");
    }
    // The second entry's name and header lie inside the first one's bytes.
    let inner = zip_bytes(&[("m/data/0", &FOUR)], false);
    let outer = zip_bytes(&[("m/data.pkl", pickle), ("m/x", &inner), ("m/data/0", &FOUR)], false);
    let hidden = outer.windows(8).position(|eight| eight == b"m/data/0").unwrap() - 30;
    let last = outer.windows(4).rposition(|four| four == b"PK\x01\x02").unwrap();
    let mut overlapping = outer.clone();
    overlapping[last + 42..last + 46].copy_from_slice(&(hidden as u32).to_le_bytes());
    assert!(refusal(&overlapping).contains("two of its entries overlap"));
    let wide = full_pytorch(true);
    for length in 0..wide.len() {
        StateDict::parse(&wide[..length]).expect_err("a part of a file");
    }
}

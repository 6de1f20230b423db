//! Thousands of damaged model files: the readers never panic, and never allocate beyond a multiple of the file.
//!
//! The deep search is `fuzz/` (cargo-fuzz, nightly); this is its share that runs everywhere in seconds.

mod model_writer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use model_writer::{full_gguf, full_pytorch, full_safetensors, full_tensorizer};
use pyagent_engine::gguf::GgufHeader;
use pyagent_engine::pytorch::StateDict;
use pyagent_engine::safetensors::SafetensorsHeader;
use pyagent_engine::tensorizer::TensorizerFile;

const NUM_CASES: u64 = 20_000;

/// The most a reader may hold at once: JSON and maps cost tens of bytes for a few of input, messages some more.
const fn allowed_bytes(file_bytes: usize) -> isize {
    (32 * file_bytes + 16_384) as isize
}

/// The system's allocator, counting for each thread what is live and its peak.
struct Counting;

thread_local! {
    static LIVE_AND_PEAK: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters any more, and nothing to count.
    let _ = LIVE_AND_PEAK.try_with(|cell| {
        let (live, peak) = cell.get();
        cell.set((live + bytes, peak.max(live + bytes)));
    });
}

// SAFETY: every call is passed to the system's allocator as it is; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes live at once in this thread while `work` runs, beyond those before it.
fn peak_bytes(work: impl FnOnce()) -> isize {
    let before = LIVE_AND_PEAK.with(|cell| {
        let (live, _) = cell.get();
        cell.set((live, live));
        live
    });
    work();
    LIVE_AND_PEAK.with(|cell| cell.get().1) - before
}

/// SplitMix64: all that a mutator needs of randomness.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A number that breaks sums and products: large, near a power of two, or just small.
fn awkward(random: &mut Random) -> u64 {
    let power = 1u64 << random.below(64);
    match random.below(4) {
        0 => u64::MAX - random.next() % 64,
        1 => power.wrapping_sub(1),
        2 => power,
        _ => random.next() % 40,
    }
}

/// Damages a file in one to four places.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = at + random.below((bytes.len() - at).min(64));
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.extend_from_within(at..end),
            3 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            4 | 5 => {
                for (target, byte) in bytes[at..].iter_mut().zip(awkward(random).to_le_bytes()) {
                    *target = byte;
                }
            }
            6 => bytes[at..end].fill(random.next() as u8),
            _ => {
                for byte in bytes.get_mut(at).into_iter() {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

/// Runs `parse` on damaged copies of `valid`; `parse` says whether it took the file. Gives how many were taken.
fn survive(valid: &[u8], parse: impl Fn(&[u8]) -> bool) -> u64 {
    let mut num_taken = 0;
    for seed in 0..NUM_CASES {
        let mut bytes = valid.to_vec();
        mutate(&mut bytes, &mut Random(seed));
        let mut taken = false;
        let peak = peak_bytes(|| taken = parse(&bytes));
        let allowed = allowed_bytes(bytes.len());
        assert!(
            peak <= allowed,
            "seed {seed}: {peak} bytes for a file of {}, allowed {allowed}",
            bytes.len()
        );
        num_taken += u64::from(taken);
    }
    num_taken
}

/// Damaged GGUF files are refused, or read with each tensor inside the file and apart from the others.
#[test]
fn damaged_gguf_files_do_no_harm() {
    let valid = full_gguf(3).bytes();
    let num_taken = survive(&valid, |bytes| {
        let Ok(header) = GgufHeader::parse(bytes) else {
            return false;
        };
        let mut ranges: Vec<_> = header.tensors.iter().map(|tensor| tensor.range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.iter().all(|range| !range.is_empty() && range.end <= bytes.len()));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        for tensor in &header.tensors {
            let num_elements: usize = tensor.dims.iter().product();
            let num_bytes = num_elements / tensor.kind.block_elements() * tensor.kind.block_bytes();
            assert_eq!(num_bytes, tensor.range.len());
        }
        true
    });
    assert!(
        num_taken > NUM_CASES / 100 && num_taken < NUM_CASES,
        "{num_taken} taken: the mutator is off"
    );
}

/// Damaged safetensors files are refused, or read with each tensor inside the file.
#[test]
fn damaged_safetensors_files_do_no_harm() {
    let valid = full_safetensors();
    let num_taken = survive(&valid, |bytes| {
        let Ok(header) = SafetensorsHeader::parse(bytes) else {
            return false;
        };
        for info in header.tensors.values() {
            assert!(info.range.start <= info.range.end && info.range.end <= bytes.len());
            if let Ok(kind) = &info.kind {
                assert_eq!(
                    info.dims.iter().product::<usize>() * kind.block_bytes(),
                    info.range.len()
                );
            }
        }
        true
    });
    assert!(
        num_taken > NUM_CASES / 100 && num_taken < NUM_CASES,
        "{num_taken} taken: the mutator is off"
    );
}

/// Damaged PyTorch files are refused, or read with each tensor inside the file.
#[test]
fn damaged_pytorch_files_do_no_harm() {
    for is_wide in [false, true] {
        let num_taken = survive(&full_pytorch(is_wide), |bytes| {
            let Ok(dict) = StateDict::parse(bytes) else {
                return false;
            };
            for info in dict.tensors.values() {
                assert!(info.range.start <= info.range.end && info.range.end <= bytes.len());
                if let Ok(kind) = &info.kind {
                    let num_bytes = info.dims.iter().product::<usize>() * kind.block_bytes();
                    assert_eq!(num_bytes, info.range.len());
                }
            }
            true
        });
        assert!(
            num_taken > NUM_CASES / 100 && num_taken < NUM_CASES,
            "{num_taken} taken: the mutator is off"
        );
    }
}

/// Damaged files of tensorizer's are refused, or read with each tensor inside the file and apart from the others.
#[test]
fn damaged_tensorizer_files_do_no_harm() {
    let num_taken = survive(&full_tensorizer(), |bytes| {
        let Ok(file) = TensorizerFile::parse(bytes) else {
            return false;
        };
        let mut spans: Vec<_> = file.sums.iter().map(|sums| (sums.header.start, sums.end)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        for sums in &file.sums {
            let info = &file.tensors[&sums.name];
            assert_eq!((sums.header.end, sums.end), (info.range.start, info.range.end));
            assert!(info.range.end <= bytes.len());
            for (_, place) in &sums.places {
                assert!(sums.header.start < place.start && place.end < sums.header.end);
            }
            if let Ok(kind) = &info.kind {
                let num_bytes = info.dims.iter().product::<usize>() * kind.block_bytes();
                assert_eq!(num_bytes, info.range.len());
            }
        }
        true
    });
    assert!(
        num_taken > NUM_CASES / 100 && num_taken < NUM_CASES,
        "{num_taken} taken: the mutator is off"
    );
}

/// Random bytes behind a right beginning do no harm either.
#[test]
fn noise_does_no_harm() {
    let mut random = Random(7);
    for _ in 0..NUM_CASES {
        let mut noise: Vec<u8> = (0..random.below(512))
            .map(|_| random.next() as u8 & random.next() as u8)
            .collect();
        let allowed = allowed_bytes(noise.len() + 24);
        let gguf = [b"GGUF\x03\0\0\0", &(awkward(&mut random) % 4).to_le_bytes()[..], &noise].concat();
        assert!(peak_bytes(|| drop(GgufHeader::parse(&gguf))) <= allowed);
        let length = (noise.len() as u64).to_le_bytes();
        noise.splice(0..0, length);
        assert!(peak_bytes(|| drop(SafetensorsHeader::parse(&noise))) <= allowed);
    }
}

/// The densest headers per byte of input stay inside the bound.
#[test]
fn dense_headers_stay_inside_the_bound() {
    let empty_strings = model_writer::array(8, 100_000, &[0; 800_000]);
    let gguf = model_writer::GgufWriter::default()
        .entry("k", 9, &empty_strings)
        .bytes();
    assert!(peak_bytes(|| drop(GgufHeader::parse(&gguf).expect("valid"))) <= allowed_bytes(gguf.len()));
    let entry = |i: u32| {
        model_writer::GgufWriter::default()
            .entry(&format!("{i:x}"), 0, &[0])
            .entries
            .remove(0)
    };
    let many_keys = model_writer::GgufWriter {
        entries: (0..20_000).map(entry).collect(),
        ..Default::default()
    };
    let gguf = many_keys.bytes();
    assert!(peak_bytes(|| drop(GgufHeader::parse(&gguf).expect("valid"))) <= allowed_bytes(gguf.len()));
    let empty_arrays = model_writer::array(9, 50_000, &model_writer::array(0, 0, &[]).repeat(50_000));
    let gguf = model_writer::GgufWriter::default().entry("k", 9, &empty_arrays).bytes();
    assert!(peak_bytes(|| drop(GgufHeader::parse(&gguf).expect("valid"))) <= allowed_bytes(gguf.len()));
    let shape = vec!["1"; 100_000].join(",");
    let header = format!(r#"{{"t":{{"dtype":"BF16","shape":[{shape}],"data_offsets":[0,2]}}}}"#);
    let file = model_writer::safetensors_bytes(&header, &[0; 2]);
    let read = || drop(SafetensorsHeader::parse(&file).expect_err("too many dimensions"));
    assert!(peak_bytes(read) <= allowed_bytes(file.len()));
    let entry = |i: u32| {
        format!(
            r#""{i:x}":{{"dtype":"BF16","shape":[],"data_offsets":[{},{}]}}"#,
            2 * i,
            2 * i + 2
        )
    };
    let entries: Vec<_> = (0..20_000).map(entry).collect();
    let file = model_writer::safetensors_bytes(&format!("{{{}}}", entries.join(",")), &[0; 40_000]);
    assert!(peak_bytes(|| drop(SafetensorsHeader::parse(&file).expect("valid"))) <= allowed_bytes(file.len()));
}

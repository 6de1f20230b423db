//! The zip archive around a state dict: which entries there are and where their bytes lie. Entries are stored as they are,
//! none lies in another, and none is ever written to a disk. (PKWARE's APPNOTE 6.3, sections 4.3 and 4.5.3.)

use std::collections::HashMap;
use std::ops::Range;

use super::refused;
use crate::weights::{ModelFileError, clipped};

/// The beginning of a pickle without an archive, as torch wrote it before 1.6: protocol 2, a number of 10 bytes.
const OLD_FORM: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";

const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const LOCATOR_64_BYTES: usize = 20;

/// Most entries: one for each storage, of which a pickle has as many at most, and a few beside them.
const MAX_ENTRIES: u64 = (1 << 17) + 64;

/// The bit of an entry that is encrypted.
const ENCRYPTED: u64 = 1;
/// The kind of the extra field that has sizes and offsets of 64 bits.
const EXTRA_64: u64 = 1;
const IN_EXTRA: u64 = u32::MAX as u64;

/// Where the entries of an archive are, by their names without the folder that all are in.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    name_to_range: HashMap<&'a str, Range<usize>>,
}

/// The central directory: its place, and how many entries it has.
struct Directory {
    range: Range<usize>,
    num_entries: u64,
}

/// An entry as the central directory has it.
struct Entry<'a> {
    name: &'a [u8],
    header: usize,
    num_bytes: u64,
}

impl<'a> Archive<'a> {
    /// Reads the directory of a whole file's bytes.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ModelFileError> {
        if bytes.starts_with(OLD_FORM) {
            let reason = "it is of the form before torch 1.6, a pickle without an archive; save it again with a newer \
                torch: torch.save(torch.load(FILE, weights_only=True), FILE), or as safetensors";
            return Err(refused(reason.to_owned()));
        }
        if !bytes.starts_with(LOCAL) {
            let start = bytes[..bytes.len().min(4)].escape_ascii();
            let reason =
                format!("it starts with \"{start}\" where a zip archive's \"PK\" is expected; download it again");
            return Err(refused(reason));
        }
        let directory = find_directory(bytes)?;
        let mut spans = Vec::new();
        let mut named: HashMap<&str, Range<usize>> = HashMap::new();
        let mut rest = &bytes[directory.range.clone()];
        for _ in 0..directory.num_entries {
            let entry = take_entry(&mut rest)?;
            let name = std::str::from_utf8(entry.name).map_err(|_| damaged("the name of an entry is not UTF-8"))?;
            let range = entry.place(&bytes[..directory.range.start])?;
            spans.push(entry.header..range.end);
            if named.insert(name, range).is_some() {
                let (what, name) = ("archive entry", clipped(name));
                return Err(ModelFileError::Duplicate { what, name });
            }
        }
        if !rest.is_empty() {
            return Err(damaged("its directory is longer than its entries"));
        }
        spans.sort_unstable_by_key(|span| span.start);
        if spans.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return Err(damaged("two of its entries overlap"));
        }
        Self::without_folder(&named)
    }

    /// Takes off the folder that all entries are in, whatever it is called.
    fn without_folder(named: &HashMap<&'a str, Range<usize>>) -> Result<Self, ModelFileError> {
        let mut folders = named.keys().filter_map(|name| name.strip_suffix("/data.pkl"));
        let (Some(folder), None) = (folders.next(), folders.next()) else {
            let reason = "expected one FOLDER/data.pkl in the archive, as torch.save writes it";
            return Err(refused(reason.to_owned()));
        };
        let inside = |name: &&'a str| name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        let name_to_range = named
            .iter()
            .filter_map(|(name, range)| Some((inside(name)?, range.clone())));
        Ok(Self {
            name_to_range: name_to_range.collect(),
        })
    }

    /// The bytes of an entry, from the start of the file.
    pub(super) fn entry(&self, name: &str) -> Option<Range<usize>> {
        self.name_to_range.get(name).cloned()
    }
}

impl Entry<'_> {
    /// Where the entry's bytes are in what lies before the directory. Its own header says how long it is itself.
    fn place(&self, before: &[u8]) -> Result<Range<usize>, ModelFileError> {
        let header = before.get(self.header..).unwrap_or_default();
        if header.len() < LOCAL_BYTES || !header.starts_with(LOCAL) {
            return Err(damaged("an entry is not where its directory says"));
        }
        let name_end = LOCAL_BYTES + number(header, 26, 2) as usize;
        if header.get(LOCAL_BYTES..name_end) != Some(self.name) {
            return Err(damaged("an entry has another name than its directory says"));
        }
        let start = (self.header + name_end) as u64 + number(header, 28, 2);
        let end = start.saturating_add(self.num_bytes);
        if end > before.len() as u64 {
            let name = clipped(&String::from_utf8_lossy(self.name));
            let reason = format!("the entry {name:?} would end at byte {end}, after its directory's start");
            return Err(damaged(&reason));
        }
        Ok(start as usize..end as usize)
    }
}

/// Finds the central directory by the record at the very end, and by that of 64 bits where there is one.
fn find_directory(bytes: &[u8]) -> Result<Directory, ModelFileError> {
    let cut = || damaged("the file is cut short: its end is not that of a zip archive");
    let end_start = bytes.len().checked_sub(END_BYTES).ok_or_else(cut)?;
    let end = &bytes[end_start..];
    if !end.starts_with(END) || number(end, 20, 2) != 0 {
        return Err(cut());
    }
    let locator_start = end_start.checked_sub(LOCATOR_64_BYTES);
    let locator = locator_start.map(|start| &bytes[start..end_start]);
    let (limit, num_entries, size, start) = match locator.filter(|locator| locator.starts_with(LOCATOR_64)) {
        None => (
            end_start as u64,
            number(end, 10, 2),
            number(end, 12, 4),
            number(end, 16, 4),
        ),
        Some(locator) => {
            let at = number(locator, 8, 8);
            let record = usize::try_from(at)
                .ok()
                .and_then(|at| bytes.get(at..end_start))
                .unwrap_or_default();
            if record.len() < END_64_BYTES || !record.starts_with(END_64) {
                return Err(damaged("its end record of 64 bits is not where it says"));
            }
            (at, number(record, 32, 8), number(record, 40, 8), number(record, 48, 8))
        }
    };
    let directory_end = start.saturating_add(size);
    if directory_end > limit {
        return Err(damaged("its directory reaches into its end"));
    }
    if num_entries > size / CENTRAL_BYTES as u64 {
        let reason = format!("{num_entries} entries do not fit in a directory of {size} bytes");
        return Err(damaged(&reason));
    }
    if num_entries > MAX_ENTRIES {
        let reason = format!(
            "its archive has {num_entries} entries; at most {MAX_ENTRIES} are read: save the model in several files, or \
             as safetensors"
        );
        return Err(refused(reason));
    }
    // Both are below the file's length.
    let range = start as usize..directory_end as usize;
    Ok(Directory { range, num_entries })
}

/// Takes one entry off the central directory.
fn take_entry<'a>(rest: &mut &'a [u8]) -> Result<Entry<'a>, ModelFileError> {
    let cut = || damaged("its directory is cut short");
    let all: &'a [u8] = rest;
    if all.len() < CENTRAL_BYTES || !all.starts_with(CENTRAL) {
        return Err(cut());
    }
    let name_end = CENTRAL_BYTES + number(all, 28, 2) as usize;
    let extra_end = name_end + number(all, 30, 2) as usize;
    let end = extra_end + number(all, 32, 2) as usize;
    if end > all.len() {
        return Err(cut());
    }
    let name = &all[CENTRAL_BYTES..name_end];
    *rest = &all[end..];
    let (flags, method, disk) = (number(all, 8, 2), number(all, 10, 2), number(all, 34, 2));
    let mut extra = Extra::of(&all[name_end..extra_end]);
    let num_bytes = extra.or_wide(number(all, 24, 4)).ok_or_else(cut)?;
    let packed_bytes = extra.or_wide(number(all, 20, 4)).ok_or_else(cut)?;
    let header = extra.or_wide(number(all, 42, 4)).ok_or_else(cut)?;
    if method != 0 || flags & ENCRYPTED != 0 || packed_bytes != num_bytes || disk != 0 {
        let name = clipped(&String::from_utf8_lossy(name));
        let reason =
            format!("the entry {name:?} is compressed, encrypted or elsewhere; torch.save stores entries as they are");
        return Err(refused(reason));
    }
    let header = usize::try_from(header).map_err(|_| cut())?;
    Ok(Entry {
        name,
        header,
        num_bytes,
    })
}

/// The numbers of 64 bits of an entry, in the order in which they stand for those that do not fit in 32.
struct Extra<'a>(&'a [u8]);

impl<'a> Extra<'a> {
    fn of(mut fields: &'a [u8]) -> Self {
        while fields.len() >= 4 {
            let end = 4 + number(fields, 2, 2) as usize;
            let Some(field) = fields.get(4..end) else { break };
            if number(fields, 0, 2) == EXTRA_64 {
                return Self(field);
            }
            fields = &fields[end..];
        }
        Self(&[])
    }

    /// A number of 32 bits, or that of 64 bits which it says is here; none where that is missing.
    fn or_wide(&mut self, short: u64) -> Option<u64> {
        if short != IN_EXTRA {
            return Some(short);
        }
        let (wide, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*wide))
    }
}

/// A number of so many bytes, which are there.
fn number(bytes: &[u8], start: usize, num_bytes: usize) -> u64 {
    let of = &bytes[start..start + num_bytes];
    of.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn damaged(what: &str) -> ModelFileError {
    refused(format!("{what}; the file is damaged, download it again"))
}

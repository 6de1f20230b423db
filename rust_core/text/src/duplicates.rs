//! Blocks of lines that stand in more than one place, in code of any language.
//!
//! Lines are compared without the space around them. Blank lines, lines of signs only, comments on lines of their own and
//! imports take no part: two files may agree in those without one being a copy of the other.

use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use rustc_hash::{FxBuildHasher, FxHashMap};

/// Files of more bytes take no part: programs wrote them.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
/// Earlier places that a block is compared with.
const MAX_CANDIDATES: usize = 32;

/// Lines `first` to `last` (1-based, both included) of the file of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index in the list of files.
    pub file: usize,
    /// First line.
    pub first: usize,
    /// Last line.
    pub last: usize,
}

/// A block and its places, two or more, in the order of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Lines compared: those that say something.
    pub lines: usize,
    /// Where it stands.
    pub places: Vec<Place>,
}

/// Blocks of at least `min_lines` telling lines that stand in two places or more, the longest first.
///
/// A copy is told once, by its longest match with an earlier place. Blocks that mostly repeat a few lines, as tables do,
/// are left out. Files that cannot be read are passed over; what is no UTF-8 in them is replaced.
pub fn find_duplicates(paths: &[PathBuf], min_lines: usize) -> Vec<Duplicate> {
    let texts = paths.iter().map(|path| (is_hash_comment(path), read(path)));
    let index = Index::new(texts, min_lines.max(1));
    index.duplicates()
}

/// A file's text; empty for what cannot be read or is too long.
pub(crate) fn read(path: &Path) -> String {
    let is_short = std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() <= MAX_FILE_BYTES);
    let bytes = if is_short {
        std::fs::read(path).unwrap_or_default()
    } else {
        Vec::new()
    };
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn is_hash_comment(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "py" || suffix == "pyi")
}

/// Whether a line without the space around it takes part.
fn is_telling(line: &str, is_python: bool) -> bool {
    const IMPORTS: [&str; 5] = ["import ", "from ", "use ", "pub use ", "package "];
    let is_comment = if is_python {
        line.starts_with('#')
    } else {
        line.starts_with("//") || line.starts_with("/*") || line.starts_with("* ") || line.starts_with("*/")
    };
    let is_import = IMPORTS.iter().any(|word| line.starts_with(word));
    !is_comment && !is_import && line.chars().any(char::is_alphanumeric)
}

struct Index {
    /// A number for each telling line's text; files end with one that no line has.
    lines: Vec<u32>,
    /// File and line of each.
    places: Vec<(usize, usize)>,
    min_lines: usize,
}

impl Index {
    fn new(texts: impl Iterator<Item = (bool, String)>, min_lines: usize) -> Self {
        let mut numbers: FxHashMap<String, u32> = FxHashMap::default();
        let (mut lines, mut places) = (Vec::new(), Vec::new());
        for (file, (is_python, text)) in texts.enumerate() {
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if is_telling(line, is_python) {
                    let known = numbers.get(line).copied().unwrap_or_else(|| {
                        let new = 2 * numbers.len() as u32;
                        numbers.insert(line.to_owned(), new);
                        new
                    });
                    lines.push(known);
                    places.push((file, number + 1));
                }
            }
            // Odd numbers end files: no line has one, and no two files have the same.
            lines.push(2 * file as u32 + 1);
            places.push((file, 0));
        }
        Self {
            lines,
            places,
            min_lines,
        }
    }

    fn duplicates(&self) -> Vec<Duplicate> {
        let mut earlier: FxHashMap<u64, Vec<u32>> = FxHashMap::default();
        // By start and length of the first place.
        let mut found: FxHashMap<(usize, usize), Vec<usize>> = FxHashMap::default();
        let mut told_to = 0;
        for start in 0..self.lines.len().saturating_sub(self.min_lines - 1) {
            let window = &self.lines[start..start + self.min_lines];
            if window.iter().any(|line| line % 2 == 1) {
                continue;
            }
            let candidates = earlier.entry(FxBuildHasher.hash_one(window)).or_default();
            if start >= told_to {
                let best = candidates
                    .iter()
                    .map(|&at| (self.common(at as usize, start), std::cmp::Reverse(at as usize)))
                    .max();
                if let Some((length, std::cmp::Reverse(at))) = best
                    && length >= self.min_lines
                    && self.says_enough(start, length)
                {
                    found.entry((at, length)).or_default().push(start);
                    told_to = start + length;
                }
            }
            if candidates.len() < MAX_CANDIDATES {
                candidates.push(start as u32);
            }
        }
        let mut duplicates: Vec<Duplicate> = found
            .into_iter()
            .map(|((at, lines), copies)| Duplicate {
                lines,
                places: std::iter::once(at)
                    .chain(copies)
                    .map(|start| self.place(start, lines))
                    .collect(),
            })
            .collect();
        duplicates.sort_by_key(|one| (std::cmp::Reverse(one.lines), one.places[0].file, one.places[0].first));
        duplicates
    }

    /// How many lines are the same from both places on, without the first running into the second.
    fn common(&self, at: usize, start: usize) -> usize {
        let pairs = self.lines[at..start].iter().zip(&self.lines[start..]);
        pairs.take_while(|(one, other)| one == other && *one % 2 == 0).count()
    }

    fn says_enough(&self, start: usize, length: usize) -> bool {
        let mut lines = self.lines[start..start + length].to_vec();
        lines.sort_unstable();
        lines.dedup();
        2 * lines.len() >= length.min(2 * self.min_lines)
    }

    fn place(&self, start: usize, length: usize) -> Place {
        let (file, first) = self.places[start];
        Place {
            file,
            first,
            last: self.places[start + length - 1].1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(texts: &[&str], min_lines: usize) -> Vec<Duplicate> {
        Index::new(texts.iter().map(|text| (true, (*text).to_owned())), min_lines).duplicates()
    }

    fn place(file: usize, first: usize, last: usize) -> Place {
        Place { file, first, last }
    }

    #[test]
    fn copies_are_found_whatever_stands_between_their_lines() {
        let one = "import os\na = 1\nb = 2\nc = 3\nd = 4\n";
        let other = "x = 0\n\n    a = 1\n\n    # why\n    b = 2\n    )\n    c = 3\ny = 1\n";
        let duplicates = found(&[one, other], 3);
        assert_eq!(
            duplicates,
            [Duplicate {
                lines: 3,
                places: vec![place(0, 2, 4), place(1, 3, 8)]
            }]
        );
        assert_eq!(found(&[one, other], 4), []);
    }

    #[test]
    fn copies_of_one_block_stand_together_and_longer_ones_alone() {
        let block = "a\nb\nc\n";
        let longer = "a\nb\nc\nd\n";
        let duplicates = found(&[longer, block, "z\n", block, longer], 3);
        assert_eq!(
            duplicates[0],
            Duplicate {
                lines: 4,
                places: vec![place(0, 1, 4), place(4, 1, 4)]
            }
        );
        assert_eq!(duplicates[1].places, [place(0, 1, 3), place(1, 1, 3), place(3, 1, 3)]);
    }

    #[test]
    fn a_block_that_follows_itself_is_a_copy_and_no_overlap() {
        let duplicates = found(&["a\nb\nc\na\nb\nc\na\nb\nc\n"], 3);
        assert_eq!(duplicates.len(), 1);
        assert_eq!(duplicates[0].places[..2], [place(0, 1, 3), place(0, 4, 6)]);
    }

    #[test]
    fn tables_and_borders_of_files_are_no_copies() {
        assert_eq!(found(&[&"0x00,\n".repeat(40), &"0x00,\n".repeat(40)], 8), []);
        assert_eq!(found(&["a\nb\n", "c\nd\n", "a\nb\n", "c\nd\n"], 3), []);
        assert_eq!(found(&[], 3), []);
        assert_eq!(found(&["", "a"], 1), []);
    }
}

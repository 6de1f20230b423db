//! Lines of a source by what they hold, as radon 6.0.1 counts them.

use ruff_python_ast::token::{TokenKind, Tokens};

use super::tokens::{Single, Statement, StringEnds, Tokenizer};

/// Lines of a file. `source + multi + single_comments + blank` is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCounts {
    /// Lines with code.
    pub source: usize,
    /// Logical lines: `if a: b` is two.
    pub logical: usize,
    /// Comments, those after code too.
    pub comments: usize,
    /// Lines of strings that stand alone over more than one line.
    pub multi: usize,
    /// Lines that are a comment or a one-line string.
    pub single_comments: usize,
    /// Lines of white space.
    pub blank: usize,
}

impl LineCounts {
    fn add(&mut self, statement: &Statement, lines: &[&str]) {
        let num_blank = lines.iter().filter(|line| line.is_empty()).count();
        self.comments += statement.num_comments;
        self.logical += statement.logical_lines;
        match statement.single() {
            Some(Single::Comment | Single::String { is_multiline: false }) => self.single_comments += 1,
            Some(Single::String { is_multiline: true }) => {
                self.multi += lines.len() - num_blank;
                self.blank += num_blank;
            }
            None => {
                self.source += lines.len() - num_blank;
                self.blank += num_blank;
            }
        }
    }
}

/// Counts the lines of a source that parses.
pub(super) fn count(source: &str, tokens: &Tokens) -> LineCounts {
    match count_with(source, &StringEnds::default()) {
        (counts, true) => counts,
        // Radon gives up here. Strings with strings in them, of Python 3.12, are then told apart by the parser.
        (_, false) => count_with(source, &string_ends(tokens)).0,
    }
}

/// The counts, and whether every statement came to its end.
fn count_with(source: &str, string_ends: &StringEnds) -> (LineCounts, bool) {
    let mut counts = LineCounts::default();
    let mut lines = Lines { source, offset: 0 };
    let mut statement_lines = Vec::new();
    while let Some((mut line, mut offset)) = lines.next() {
        let mut tokenizer = Tokenizer::new(string_ends);
        statement_lines.clear();
        let is_complete = loop {
            statement_lines.push(line);
            if tokenizer.add(line, offset) {
                break true;
            }
            match lines.next() {
                Some(next) => (line, offset) = next,
                None => break false,
            }
        };
        counts.add(&tokenizer.finish(), &statement_lines);
        if !is_complete {
            return (counts, false);
        }
    }
    (counts, true)
}

fn string_ends(tokens: &Tokens) -> StringEnds {
    let mut ends = StringEnds::default();
    let mut starts = Vec::new();
    for token in tokens.iter() {
        let (kind, range) = token.as_tuple();
        match kind {
            TokenKind::FStringStart | TokenKind::TStringStart => starts.push(range.start().to_usize()),
            TokenKind::FStringEnd | TokenKind::TStringEnd => {
                ends.extend(starts.pop().map(|start| (start, range.end().to_usize())));
            }
            _ => {}
        }
    }
    ends
}

/// Lines where Python's `str.splitlines` ends them, stripped as `str.strip` does, with their offsets in bytes.
struct Lines<'a> {
    source: &'a str,
    offset: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (&'a str, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.source[self.offset..];
        if rest.is_empty() {
            return None;
        }
        let (length, end_length) = line_length(rest.as_bytes());
        let line = &rest[..length];
        let stripped = line.trim_start_matches(is_space);
        let start = self.offset + line.len() - stripped.len();
        self.offset += length + end_length;
        Some((stripped.trim_end_matches(is_space), start))
    }
}

/// Bytes before the first line end, and bytes of that line end.
fn line_length(bytes: &[u8]) -> (usize, usize) {
    let mut at = 0;
    while at < bytes.len() {
        let end_length = match &bytes[at..] {
            [b'\r', b'\n', ..] => 2,
            [b'\n' | b'\r' | 0x0b | 0x0c | 0x1c..=0x1e, ..] => 1,
            [0xc2, 0x85, ..] => 2,
            [0xe2, 0x80, 0xa8 | 0xa9, ..] => 3,
            _ => 0,
        };
        if end_length > 0 {
            return (at, end_length);
        }
        at += 1;
    }
    (at, 0)
}

fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

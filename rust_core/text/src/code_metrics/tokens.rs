//! A tokenizer for one statement at a time, as radon feeds Python's: lines without their indentation, joined until the
//! brackets, strings and backslashes of the first are closed.
//!
//! It follows the `tokenize` module of CPython 3.11, where an f-string is one token. Only what radon asks of a token is
//! kept: whether it is a comment, a string, a colon or a semicolon, and how many there are between those. Source is
//! known to parse, so what no tokenizer knows is rare: characters that Python splits lines at within a string or a name.

use rustc_hash::FxHashMap;

/// What the tokens of one statement tell; radon's name for it is a set of tokens.
#[derive(Debug, Default)]
pub(super) struct Statement {
    /// Comments in it.
    pub(super) num_comments: usize,
    /// Logical lines in it.
    pub(super) logical_lines: usize,
    num_tokens: usize,
    first: Option<First>,
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Comment,
    String { is_multiline: bool },
    Other,
}

/// Tokens since the last semicolon, comments and line ends apart.
#[derive(Debug, Default)]
struct Part {
    num_tokens: usize,
    last_colon: Option<usize>,
}

/// The only token of a statement, line ends apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Single {
    Comment,
    String { is_multiline: bool },
}

enum Kind {
    Comment,
    String { is_multiline: bool },
    Colon,
    Semicolon,
    Other,
}

impl Statement {
    fn push(&mut self, kind: Kind) {
        let first = match kind {
            Kind::Comment => First::Comment,
            Kind::String { is_multiline } => First::String { is_multiline },
            _ => First::Other,
        };
        self.first.get_or_insert(first);
        self.num_tokens += 1;
        match kind {
            Kind::Comment => self.num_comments += 1,
            Kind::Semicolon => self.end_part(false),
            Kind::Colon => {
                self.part.last_colon = Some(self.part.num_tokens);
                self.part.num_tokens += 1;
            }
            Kind::String { .. } | Kind::Other => self.part.num_tokens += 1,
        }
    }

    /// A line end, which counts as no token unless it comes first.
    fn push_line_end(&mut self) {
        self.first.get_or_insert(First::Other);
    }

    /// One logical line, two when something follows the last colon, none when the part is empty. Radon allows for the
    /// end marker after the colon, which only the last part has; in the others one token in its place goes unnoticed.
    fn end_part(&mut self, is_last: bool) {
        let part = std::mem::take(&mut self.part);
        let num_tokens = part.num_tokens + usize::from(is_last);
        self.logical_lines += match part.last_colon {
            Some(colon) => 2 - usize::from(colon + 2 == num_tokens),
            None => usize::from(part.num_tokens > 0),
        };
    }

    /// The single token this statement is, if it is one.
    pub(super) fn single(&self) -> Option<Single> {
        match self.first {
            Some(First::Comment) if self.num_tokens == 1 => Some(Single::Comment),
            Some(First::String { is_multiline }) if self.num_tokens == 1 => Some(Single::String { is_multiline }),
            _ => None,
        }
    }
}

/// Ends of the f-strings and t-strings of a source by their starts, in bytes; only for sources that need Python 3.12.
pub(super) type StringEnds = FxHashMap<usize, usize>;

/// A string whose end has not been seen.
enum OpenString {
    /// Until three of this quote.
    Triple(u8),
    /// Until this quote; each line before must end in a backslash.
    Backslashed(u8),
    /// Until this offset of the source.
    Until(usize),
}

/// Tokenizes the lines of one statement.
pub(super) struct Tokenizer<'a> {
    statement: Statement,
    string_ends: &'a StringEnds,
    row: usize,
    open_string: Option<(OpenString, usize)>,
    brackets: i64,
    is_continued: bool,
    is_broken: bool,
}

impl<'a> Tokenizer<'a> {
    pub(super) fn new(string_ends: &'a StringEnds) -> Self {
        Self {
            statement: Statement::default(),
            string_ends,
            row: 0,
            open_string: None,
            brackets: 0,
            is_continued: false,
            is_broken: false,
        }
    }

    /// Adds a line, which starts at byte `offset` of the source; whether the statement is complete with it.
    pub(super) fn add(&mut self, line: &str, offset: usize) -> bool {
        self.row += 1;
        self.line(line, offset);
        let is_closed = self.open_string.is_none() && self.brackets == 0 && !self.is_continued && !self.is_broken;
        // An empty line is invisible to the tokenizer until another follows it.
        is_closed && (self.row == 1 || !line.is_empty())
    }

    /// The statement, complete or not.
    pub(super) fn finish(mut self) -> Statement {
        self.statement.end_part(true);
        self.statement
    }

    fn line(&mut self, line: &str, offset: usize) {
        let bytes = line.as_bytes();
        let mut position = 0;
        if let Some((open, row)) = self.open_string.take() {
            match self.end_of_open_string(&open, bytes, offset) {
                Some(end) => {
                    position = end;
                    self.push_string(row);
                }
                None => return self.open_string = Some((open, row)),
            }
        } else if self.row == 1 && bytes.is_empty() {
            return;
        }
        self.is_continued = false;
        while let Some(start) = self.skip_blanks(bytes, position) {
            match self.token(bytes, start, offset) {
                Some(end) => position = end,
                None => return,
            }
        }
        self.statement.push_line_end();
    }

    fn skip_blanks(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let blanks = bytes[from..]
            .iter()
            .position(|byte| !matches!(byte, b' ' | b'\t' | 0x0c));
        blanks.map(|blanks| from + blanks)
    }

    /// Reads the token at `start` and returns its end, or `None` when it takes the line end too.
    fn token(&mut self, bytes: &[u8], start: usize, offset: usize) -> Option<usize> {
        let byte = bytes[start];
        if let Some(quote_at) = string_quote(bytes, start) {
            return self.string(bytes, start, quote_at, offset);
        }
        if let Some(&end) = self.string_ends.get(&(offset + start)) {
            return self.string_until(bytes, end, offset);
        }
        let (kind, end) = match byte {
            b'#' => (Kind::Comment, bytes.len()),
            b'\\' if start + 1 == bytes.len() => {
                self.is_continued = true;
                return None;
            }
            b'0'..=b'9' => (Kind::Other, number_end(bytes, start)),
            b'.' if bytes.get(start + 1).is_some_and(u8::is_ascii_digit) => (Kind::Other, number_end(bytes, start)),
            b'_' | b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => (Kind::Other, name_end(bytes, start)),
            _ => self.operator(bytes, start),
        };
        self.statement.push(kind);
        Some(end)
    }

    fn operator(&mut self, bytes: &[u8], start: usize) -> (Kind, usize) {
        let end = start + operator_length(&bytes[start..]);
        let kind = match &bytes[start..end] {
            b":" => Kind::Colon,
            b";" => Kind::Semicolon,
            _ => Kind::Other,
        };
        match bytes[start] {
            b'(' | b'[' | b'{' => self.brackets += 1,
            b')' | b']' | b'}' => self.brackets -= 1,
            b'$' | b'?' | b'`' | b'\\' => self.is_broken = true,
            b'!' if end == start + 1 => self.is_broken = true,
            byte if byte.is_ascii_control() => self.is_broken = true,
            _ => {}
        }
        (kind, end)
    }

    fn string(&mut self, bytes: &[u8], start: usize, quote_at: usize, offset: usize) -> Option<usize> {
        if let Some(&end) = self.string_ends.get(&(offset + start)) {
            return self.string_until(bytes, end, offset);
        }
        let quote = bytes[quote_at];
        let (open, end) = if bytes[quote_at..].starts_with(&[quote; 3]) {
            (OpenString::Triple(quote), triple_end(bytes, quote_at + 3, quote))
        } else {
            (OpenString::Backslashed(quote), single_end(bytes, quote_at + 1, quote))
        };
        match (end, open) {
            (Some(_), _) => self.push_string(self.row),
            (None, OpenString::Backslashed(_)) if !ends_in_backslash(bytes, quote_at + 1) => self.is_broken = true,
            (None, open) => self.open_string = Some((open, self.row)),
        }
        end
    }

    fn string_until(&mut self, bytes: &[u8], end: usize, offset: usize) -> Option<usize> {
        if end > offset + bytes.len() {
            self.open_string = Some((OpenString::Until(end), self.row));
            return None;
        }
        self.push_string(self.row);
        Some(end - offset)
    }

    fn end_of_open_string(&mut self, open: &OpenString, bytes: &[u8], offset: usize) -> Option<usize> {
        match *open {
            OpenString::Triple(quote) => triple_end(bytes, 0, quote),
            OpenString::Backslashed(quote) => {
                let end = single_end(bytes, 0, quote);
                self.is_broken |= end.is_none() && bytes.last() != Some(&b'\\');
                end
            }
            // The end may lie in what was stripped off this line.
            OpenString::Until(end) => (end <= offset + bytes.len()).then(|| end.saturating_sub(offset)),
        }
    }

    fn push_string(&mut self, first_row: usize) {
        let is_multiline = first_row != self.row;
        self.statement.push(Kind::String { is_multiline });
    }
}

/// Where the opening quote is, if a string with or without a prefix starts here.
fn string_quote(bytes: &[u8], start: usize) -> Option<usize> {
    let is_quote = |at: usize| bytes.get(at).is_some_and(|byte| matches!(byte, b'\'' | b'"'));
    let lower = |at: usize| bytes.get(at).map_or(0, u8::to_ascii_lowercase);
    if is_quote(start) {
        return Some(start);
    }
    match (lower(start), lower(start + 1)) {
        (b'b' | b'r' | b'u' | b'f', _) if is_quote(start + 1) => Some(start + 1),
        (b'b' | b'f', b'r') | (b'r', b'b' | b'f') if is_quote(start + 2) => Some(start + 2),
        _ => None,
    }
}

fn triple_end(bytes: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote && bytes[at..].starts_with(&[quote; 3]) => return Some(at + 3),
            _ => at += 1,
        }
    }
    None
}

fn single_end(bytes: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// Whether the line, read from `from` on, ends in a backslash that is not itself escaped.
fn ends_in_backslash(bytes: &[u8], from: usize) -> bool {
    let backslashes = bytes[from..].iter().rev().take_while(|&&byte| byte == b'\\').count();
    backslashes % 2 == 1
}

fn name_end(bytes: &[u8], start: usize) -> usize {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
    bytes[start..]
        .iter()
        .position(|byte| !is_name(byte))
        .map_or(bytes.len(), |length| start + length)
}

/// The end of the longest number; `1if` and `0_7` end where the module's regular expressions do.
fn number_end(bytes: &[u8], start: usize) -> usize {
    let radix_digit: Option<fn(&u8) -> bool> = match bytes.get(start + 1).map(u8::to_ascii_lowercase) {
        Some(b'x') if bytes[start] == b'0' => Some(u8::is_ascii_hexdigit),
        Some(b'o') if bytes[start] == b'0' => Some(|byte| matches!(byte, b'0'..=b'7')),
        Some(b'b') if bytes[start] == b'0' => Some(|byte| matches!(byte, b'0' | b'1')),
        _ => None,
    };
    if let Some(is_digit) = radix_digit {
        let end = digits_end(bytes, start + 2, is_digit);
        return if end > start + 2 { end } else { start + 1 };
    }
    let mut end = digits_end(bytes, start, u8::is_ascii_digit);
    if bytes.get(end) == Some(&b'.') {
        end += 1;
        if bytes.get(end).is_some_and(u8::is_ascii_digit) {
            end = digits_end(bytes, end, u8::is_ascii_digit);
        }
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let digits = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(digits).is_some_and(u8::is_ascii_digit) {
            end = digits_end(bytes, digits, u8::is_ascii_digit);
        }
    }
    end + usize::from(matches!(bytes.get(end), Some(b'j' | b'J')))
}

/// The end of digits with single underscores between them.
fn digits_end(bytes: &[u8], mut at: usize, is_digit: fn(&u8) -> bool) -> usize {
    loop {
        match bytes.get(at) {
            Some(byte) if is_digit(byte) => at += 1,
            Some(b'_') if bytes.get(at + 1).is_some_and(is_digit) => at += 2,
            _ => return at,
        }
    }
}

fn operator_length(bytes: &[u8]) -> usize {
    match bytes {
        [b'*', b'*', b'=', ..] | [b'/', b'/', b'=', ..] | [b'.', b'.', b'.', ..] => 3,
        [b'<', b'<', b'=', ..] | [b'>', b'>', b'=', ..] => 3,
        [b'*', b'*', ..] | [b'/', b'/', ..] | [b'<', b'<', ..] | [b'>', b'>', ..] | [b'-', b'>', ..] => 2,
        [
            b'!' | b'%' | b'&' | b'*' | b'+' | b'-' | b'/' | b':' | b'<' | b'=' | b'>' | b'@' | b'^' | b'|',
            b'=',
            ..,
        ] => 2,
        _ => 1,
    }
}

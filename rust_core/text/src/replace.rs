//! Replace what a pattern matches, with bounds on time and output. Knows no files.
//!
//! One search takes time linear in the text whatever the pattern is; all searches of a text may take its square, and so
//! they are bounded by a clock.

use std::time::{Duration, Instant};

use regex::{Captures, Regex, RegexBuilder};
use thiserror::Error;

/// Memory of a compiled pattern, which also bounds what one character of a text costs.
const MAX_PATTERN_BYTES: usize = 1 << 20;
const MATCHES_A_LOOK_AT_THE_CLOCK: usize = 64;

/// Why nothing is replaced.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// The pattern is none.
    #[error("{0}")]
    Pattern(String),
    /// The replacement names a group that the pattern has not.
    #[error(
        "the replacement names the group {name}, which the pattern has not; write ${{1}}x for group 1 before an x, and $$ for a dollar"
    )]
    Group {
        /// As it is written.
        name: String,
    },
    /// The text would grow too long.
    #[error("the text would grow over {0} bytes")]
    TooLong(usize),
    /// The searches took too long.
    #[error("the pattern takes over {} seconds in one text; write one that looks less far ahead", .0.as_secs_f64())]
    TooSlow(Duration),
}

/// What one replacement may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of the text that results.
    pub bytes: usize,
    /// Time of all searches in one text.
    pub time: Duration,
}

/// A pattern and what takes the place of its matches.
#[derive(Debug)]
pub struct Replacer {
    pattern: Regex,
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Replacer {
    /// A text to find letter by letter, or with `is_regex` a pattern: `^` and `$` match at lines, `$1` and `${name}` in
    /// the replacement stand for groups, `$$` for a dollar.
    pub fn new(pattern: &str, replacement: &str, is_regex: bool, ignore_case: bool) -> Result<Self, ReplaceError> {
        let escaped = if is_regex {
            pattern.to_owned()
        } else {
            regex::escape(pattern)
        };
        let pattern = RegexBuilder::new(&escaped)
            .multi_line(true)
            .crlf(true)
            .case_insensitive(ignore_case)
            .size_limit(MAX_PATTERN_BYTES)
            .nest_limit(100)
            .build()
            .map_err(|error| ReplaceError::Pattern(error.to_string()))?;
        let parts = if is_regex {
            parts(replacement, &pattern)?
        } else {
            vec![Part::Text(replacement.to_owned())]
        };
        Ok(Self { pattern, parts })
    }

    /// The text with all matches replaced, and how many there were; `None` without a match.
    pub fn replace(&self, text: &str, bounds: Bounds) -> Result<Option<(String, usize)>, ReplaceError> {
        let (begun, mut copied, mut count) = (Instant::now(), 0, 0);
        let mut result = String::new();
        for found in self.pattern.captures_iter(text) {
            let whole = found.get_match();
            result.push_str(&text[copied..whole.start()]);
            self.expand(&found, &mut result);
            copied = whole.end();
            count += 1;
            if result.len() > bounds.bytes {
                return Err(ReplaceError::TooLong(bounds.bytes));
            }
            if count % MATCHES_A_LOOK_AT_THE_CLOCK == 0 && begun.elapsed() > bounds.time {
                return Err(ReplaceError::TooSlow(bounds.time));
            }
        }
        if count == 0 {
            return Ok(None);
        }
        result.push_str(&text[copied..]);
        if result.len() > bounds.bytes {
            return Err(ReplaceError::TooLong(bounds.bytes));
        }
        Ok(Some((result, count)))
    }

    fn expand(&self, found: &Captures<'_>, result: &mut String) {
        for part in &self.parts {
            match part {
                Part::Text(text) => result.push_str(text),
                Part::Group(group) => result.push_str(found.get(*group).map_or("", |group| group.as_str())),
            }
        }
    }
}

/// A replacement's texts and groups, in their order.
fn parts(replacement: &str, pattern: &Regex) -> Result<Vec<Part>, ReplaceError> {
    let (mut parts, mut rest) = (Vec::new(), replacement);
    while let Some(at) = rest.find('$') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        if let Some(left) = after.strip_prefix('$') {
            parts.push(Part::Text(format!("{before}$")));
            rest = left;
            continue;
        }
        let (name, left) = group_name(after);
        if name.is_empty() {
            parts.push(Part::Text(format!("{before}$")));
            rest = after;
            continue;
        }
        parts.push(Part::Text(before.to_owned()));
        parts.push(Part::Group(group(name, pattern)?));
        rest = left;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// The name after a dollar, and what follows it.
fn group_name(after: &str) -> (&str, &str) {
    if let Some((name, left)) = after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
        return (name, left);
    }
    let end = after
        .find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .unwrap_or(after.len());
    after.split_at(end)
}

fn group(name: &str, pattern: &Regex) -> Result<usize, ReplaceError> {
    let known = match name.parse::<usize>() {
        Ok(number) => Some(number).filter(|number| *number < pattern.captures_len()),
        Err(_) => pattern.capture_names().position(|known| known == Some(name)),
    };
    known.ok_or_else(|| ReplaceError::Group { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Bounds = Bounds {
        bytes: 1 << 20,
        time: Duration::from_secs(60),
    };

    fn regex(pattern: &str, replacement: &str, text: &str) -> Option<(String, usize)> {
        Replacer::new(pattern, replacement, true, false)
            .unwrap()
            .replace(text, WIDE)
            .unwrap()
    }

    #[test]
    fn literal_text_is_no_pattern() {
        let replacer = Replacer::new("a.b", "$1", false, false).unwrap();
        assert_eq!(replacer.replace("a.b axb", WIDE).unwrap(), Some(("$1 axb".into(), 1)));
        assert_eq!(replacer.replace("axb", WIDE).unwrap(), None);
    }

    #[test]
    fn groups_and_dollars_are_expanded() {
        assert_eq!(
            regex(r"(\w+)=(?P<v>\w+)", "${v}=$1 $$ $", "a=b"),
            Some(("b=a $ $".into(), 1))
        );
        assert_eq!(regex("(a)|(b)", "[$2]", "ab"), Some(("[][b]".into(), 2)));
        for wrong in ["$2", "$1x", "${name}"] {
            assert!(
                matches!(
                    Replacer::new("(a)", wrong, true, false),
                    Err(ReplaceError::Group { .. })
                ),
                "{wrong}"
            );
        }
    }

    #[test]
    fn lines_end_before_a_carriage_return() {
        assert_eq!(regex("x$", "y", "x\r\nx\n"), Some(("y\r\ny\n".into(), 2)));
        assert_eq!(regex("^.*$", "z", "a\r\nb"), Some(("z\r\nz".into(), 2)));
    }

    #[test]
    fn equals_the_crate_own_expansion() {
        let text = "one two  three\nfour ﬁve ß\n";
        for (pattern, replacement) in [(r"(\w)(\w*)", "$2$1"), ("", "-"), (r"\s*", "_"), ("ß", "ss")] {
            let expected = Regex::new(pattern).unwrap().replace_all(text, replacement).into_owned();
            let found = regex(pattern, &replacement.replace("$2$1", "${2}${1}"), text);
            assert_eq!(found.map(|(text, _)| text), Some(expected), "{pattern}");
        }
    }

    #[test]
    fn output_and_time_are_bounded() {
        let grows = Replacer::new("", &"x".repeat(1000), true, false).unwrap();
        let bounds = Bounds { bytes: 10_000, ..WIDE };
        assert!(matches!(
            grows.replace(&"a".repeat(100), bounds),
            Err(ReplaceError::TooLong(10_000))
        ));
        let ahead = Replacer::new(".*[^A-Z]|[A-Z]", "", true, false).unwrap();
        let bounds = Bounds {
            time: Duration::from_millis(50),
            ..WIDE
        };
        assert!(matches!(
            ahead.replace(&"A".repeat(500_000), bounds),
            Err(ReplaceError::TooSlow(_))
        ));
        assert!(Replacer::new("(?:a{1000}){1000}", "", true, false).is_err());
    }
}

//! Refuses source whose syntax tree could be deeper than the stack, before a parser recurses into it.
//!
//! The bound is counted over tokens, so it costs no recursion itself: open brackets and indentation, plus, within each
//! bracket, the operators since the last comma (`- - - x`, `a + a + a`, `f()()()` make one level each). It errs upwards.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{Mode, lexer::lex};

use super::ParseError;

/// Deepest tree accepted. CPython stops at 200 brackets or 100 indents and radon at about 330 levels of any kind, but a sum
/// of 570 terms with 2,000 more operators in them, as in sympy, is source that people have.
pub(super) const MAX_NESTING: usize = 5_000;

/// Depth added at one bracket level since it opened.
#[derive(Default, Clone, Copy)]
struct Level {
    /// Ends at `and`, `or`, a comma or the statement.
    operators: usize,
    /// Ends at a comma or the statement: `lambda` and the conditional expression take all that follows.
    suffixes: usize,
    /// Lambdas whose colon is still to come.
    open_lambdas: usize,
}

/// An error when `source` nests deeper than [`MAX_NESTING`] or its brackets do not pair up in number.
pub(super) fn check(source: &str) -> Result<(), ParseError> {
    let Some(problem) = find_problem(source) else {
        return Ok(());
    };
    // The lexer does not publish positions; the shortest prefix with the same problem ends at it.
    let (mut good, mut bad) = (0, source.len());
    while good + 1 < bad {
        let middle = good.midpoint(bad);
        if find_problem(&source[..source.floor_char_boundary(middle)]) == Some(problem) {
            bad = middle;
        } else {
            good = middle;
        }
    }
    Err(ParseError::at(source, good, problem.message()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Problem {
    TooDeep,
    UnmatchedBracket,
}

impl Problem {
    fn message(self) -> String {
        match self {
            Self::TooDeep => format!("nested deeper than {MAX_NESTING} levels: split the expression or the block"),
            Self::UnmatchedBracket => "closing bracket without an opening one".to_owned(),
        }
    }
}

fn find_problem(source: &str) -> Option<Problem> {
    let mut lexer = lex(source, Mode::Module);
    let mut indents = 0_usize;
    let mut enclosing: Vec<Level> = Vec::new();
    let mut enclosing_depth = 0;
    let mut level = Level::default();
    loop {
        match lexer.next_token() {
            TokenKind::EndOfFile => return None,
            TokenKind::Indent => indents += 1,
            TokenKind::Dedent => indents = indents.saturating_sub(1),
            TokenKind::Lpar
            | TokenKind::Lsqb
            | TokenKind::Lbrace
            | TokenKind::FStringStart
            | TokenKind::TStringStart => {
                // The call or subscript stays one level of its surroundings after it closes.
                level.operators += 1;
                enclosing_depth += level.operators + level.suffixes;
                enclosing.push(std::mem::take(&mut level));
            }
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace | TokenKind::FStringEnd | TokenKind::TStringEnd => {
                let Some(outer) = enclosing.pop() else {
                    return Some(Problem::UnmatchedBracket);
                };
                level = outer;
                enclosing_depth -= level.operators + level.suffixes;
            }
            // A comma between the parameters of a lambda ends nothing.
            TokenKind::Comma if level.open_lambdas > 0 => {}
            TokenKind::Comma | TokenKind::Semi | TokenKind::Newline => level = Level::default(),
            TokenKind::Colon => level.open_lambdas = level.open_lambdas.saturating_sub(1),
            TokenKind::And | TokenKind::Or => level.operators = 0,
            TokenKind::Lambda => {
                level.suffixes += 1;
                level.open_lambdas += 1;
            }
            TokenKind::Else | TokenKind::Yield | TokenKind::ColonEqual => level.suffixes += 1,
            kind if nests(kind) => level.operators += 1,
            _ => {}
        }
        if indents + enclosing_depth + level.operators + level.suffixes > MAX_NESTING {
            return Some(Problem::TooDeep);
        }
    }
}

/// Whether each repetition of this operator makes the tree one level deeper; comparisons and `and` do not.
fn nests(kind: TokenKind) -> bool {
    kind.as_unary_operator().is_some()
        || kind.as_binary_operator().is_some()
        || matches!(kind, TokenKind::Dot | TokenKind::Await)
}

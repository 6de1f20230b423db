//! Cyclomatic complexity per function as rule C901 of ruff counts it.
//!
//! One per function, then one more for each `if`, `elif`, `for`, `while`, `except` and `case`, for the `else` of a
//! `try`, and for each function within, whose own decisions count too. A final catch-all `case` is an `else` and free.
//! `with`, `finally`, the `else` of a loop, `assert`, boolean operators, conditional expressions, comprehensions and
//! lambdas are free. The mccabe package differs in three ways: it charges every `try` one (ruff charges its `else`),
//! it skips `match`, `except*` and `finally`, and it lists nested functions only within the outer one.

use ruff_python_ast::{ExceptHandler, MatchCase, Stmt, StmtFunctionDef};

use super::FunctionMetrics;

/// Every function of a module, in the order of their `def`s.
pub(super) fn functions(source: &str, body: &[Stmt]) -> Vec<FunctionMetrics> {
    let mut collector = Collector {
        line_starts: LineStarts::new(source),
        path: String::new(),
        functions: Vec::new(),
    };
    collector.decisions(body);
    collector.functions
}

struct Collector {
    line_starts: LineStarts,
    /// Dotted names of the definitions around the current statement.
    path: String,
    functions: Vec<FunctionMetrics>,
}

impl Collector {
    /// Decisions in `body`; its functions are collected on the way.
    fn decisions(&mut self, body: &[Stmt]) -> u32 {
        body.iter().map(|statement| self.statement(statement)).sum()
    }

    fn statement(&mut self, statement: &Stmt) -> u32 {
        match statement {
            Stmt::If(branch) => {
                let mut decisions = 1 + self.decisions(&branch.body);
                for clause in &branch.elif_else_clauses {
                    decisions += u32::from(clause.test.is_some()) + self.decisions(&clause.body);
                }
                decisions
            }
            Stmt::For(each) => 1 + self.decisions(&each.body) + self.decisions(&each.orelse),
            Stmt::While(repeat) => 1 + self.decisions(&repeat.body) + self.decisions(&repeat.orelse),
            Stmt::Try(guarded) => {
                let mut decisions = self.decisions(&guarded.body);
                for ExceptHandler::ExceptHandler(handler) in &guarded.handlers {
                    decisions += 1 + self.decisions(&handler.body);
                }
                decisions += u32::from(!guarded.orelse.is_empty()) + self.decisions(&guarded.orelse);
                decisions + self.decisions(&guarded.finalbody)
            }
            Stmt::With(with) => self.decisions(&with.body),
            Stmt::Match(choice) => self.cases(&choice.cases),
            Stmt::FunctionDef(function) => self.function(function),
            Stmt::ClassDef(class) => self.within(&class.name, |collector| collector.decisions(&class.body)),
            _ => 0,
        }
    }

    fn cases(&mut self, cases: &[MatchCase]) -> u32 {
        let decisions: u32 = cases.iter().map(|case| 1 + self.decisions(&case.body)).sum();
        let is_exhaustive = cases
            .last()
            .is_some_and(|last| last.guard.is_none() && last.pattern.is_irrefutable());
        decisions - u32::from(is_exhaustive)
    }

    fn function(&mut self, function: &StmtFunctionDef) -> u32 {
        self.within(&function.name, |collector| {
            let index = collector.functions.len();
            collector.functions.push(FunctionMetrics {
                name: collector.path.clone(),
                line: collector.line_starts.line(function.name.range.start().to_usize()),
                complexity: 0,
            });
            let complexity = 1 + collector.decisions(&function.body);
            collector.functions[index].complexity = complexity;
            complexity
        })
    }

    fn within(&mut self, name: &str, visit: impl FnOnce(&mut Self) -> u32) -> u32 {
        let outer = self.path.len();
        if outer > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        let decisions = visit(self);
        self.path.truncate(outer);
        decisions
    }
}

/// Offsets at which lines start, for turning an offset into a line.
struct LineStarts(Vec<usize>);

impl LineStarts {
    fn new(source: &str) -> Self {
        let newlines = source.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Self(newlines.map(|(offset, _)| offset + 1).collect())
    }

    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|&start| start <= offset) + 1
    }
}

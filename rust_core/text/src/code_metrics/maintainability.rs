//! The maintainability index, and the complexity of a whole file that goes into it, as radon 6.0.1 defines both.

use ruff_python_ast::visitor::{Visitor, walk_comprehension, walk_expr, walk_stmt};
use ruff_python_ast::{Comprehension, ElifElseClause, Expr, MatchCase, Pattern, Stmt};

use super::LineCounts;

/// The index, 0 to 100. The operations stand in radon's order, so that the last bit agrees too.
pub(super) fn index(halstead_volume: f64, complexity: u32, lines: &LineCounts) -> f64 {
    if halstead_volume <= 0.0 || lines.logical == 0 {
        return 100.0;
    }
    let comment_percent = if lines.source == 0 {
        0.0
    } else {
        (lines.comments + lines.multi) as f64 / lines.source as f64 * 100.0
    };
    let comment_angle = (2.46 * (comment_percent * (std::f64::consts::PI / 180.0))).sqrt();
    let index = 171.0 - 5.2 * halstead_volume.ln() - 0.23 * f64::from(complexity) - 16.2 * (lines.logical as f64).ln()
        + 50.0 * comment_angle.sin();
    (index * 100.0 / 171.0).clamp(0.0, 100.0)
}

/// One plus the decisions of the module, of its functions and of its classes' methods.
///
/// Decisions of functions within functions and of classes within functions or classes do not count.
pub(super) fn complexity(body: &[Stmt]) -> u32 {
    let mut decisions = Decisions::new(Scope::Module);
    decisions.visit_body(body);
    1 + decisions.count
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Module,
    Class,
    Function,
}

struct Decisions {
    scope: Scope,
    count: u32,
}

impl Decisions {
    fn new(scope: Scope) -> Self {
        Self { scope, count: 0 }
    }

    fn of(scope: Scope, body: &[Stmt]) -> u32 {
        let mut decisions = Self::new(scope);
        decisions.visit_body(body);
        decisions.count
    }

    fn add(&mut self, count: usize) {
        self.count = self.count.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    fn definition(&mut self, statement: &Stmt) {
        match (statement, self.scope) {
            (Stmt::FunctionDef(function), Scope::Module) => self.count += Self::of(Scope::Function, &function.body),
            // A method itself is a decision of its class.
            (Stmt::FunctionDef(function), Scope::Class) => self.count += 1 + Self::of(Scope::Function, &function.body),
            (Stmt::ClassDef(class), Scope::Module) => self.count += Self::of(Scope::Class, &class.body),
            _ => {}
        }
    }
}

impl<'a> Visitor<'a> for Decisions {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            // Decorators, parameters, annotations and base classes are not visited.
            Stmt::FunctionDef(_) | Stmt::ClassDef(_) => return self.definition(statement),
            // Nor is what an assertion says.
            Stmt::Assert(_) => return self.add(1),
            Stmt::If(_) => self.add(1),
            Stmt::For(each) => self.add(1 + usize::from(!each.orelse.is_empty())),
            Stmt::While(repeat) => self.add(1 + usize::from(!repeat.orelse.is_empty())),
            Stmt::Try(guarded) if !guarded.is_star => {
                self.add(guarded.handlers.len() + usize::from(!guarded.orelse.is_empty()));
            }
            Stmt::Match(choice) => self.add(choice.cases.len() - usize::from(choice.cases.iter().any(is_capture))),
            _ => {}
        }
        walk_stmt(self, statement);
    }

    fn visit_elif_else_clause(&mut self, clause: &'a ElifElseClause) {
        if let Some(test) = &clause.test {
            self.add(1);
            self.visit_expr(test);
        }
        self.visit_body(&clause.body);
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::BoolOp(operation) => self.add(operation.values.len() - 1),
            Expr::If(_) => self.add(1),
            _ => {}
        }
        walk_expr(self, expression);
    }

    fn visit_comprehension(&mut self, comprehension: &'a Comprehension) {
        self.add(1 + comprehension.ifs.len());
        walk_comprehension(self, comprehension);
    }
}

/// Whether the case is `case _:` or `case name:`, with or without a guard.
fn is_capture(case: &MatchCase) -> bool {
    matches!(&case.pattern, Pattern::MatchAs(pattern) if pattern.pattern.is_none())
}

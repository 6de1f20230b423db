//! The Halstead volume of a file as radon 6.0.1 counts it.
//!
//! Operators are the unary, binary, boolean, augmented and comparison ones, and no others; operands are what those
//! apply to. Operators are distinct by kind in the whole file; operands by value within functions of the same name.

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{BoolOp, CmpOp, Expr, Operator, Stmt, UnaryOp};
use rustc_hash::FxHashSet;

use super::operands::{Operand, operand};

/// Length times the bits of the vocabulary; 0 for a file without operators.
pub(super) fn volume(source: &str, body: &[Stmt]) -> f64 {
    let mut counter = Counter {
        source,
        function: None,
        operators: FxHashSet::default(),
        operands: FxHashSet::default(),
        num_unnamed_operands: 0,
        length: 0,
    };
    counter.visit_body(body);
    let vocabulary = counter.operators.len() + counter.operands.len() + counter.num_unnamed_operands;
    if vocabulary == 0 {
        return 0.0;
    }
    counter.length as f64 * ((vocabulary as f64).ln() / std::f64::consts::LN_2)
}

#[derive(PartialEq, Eq, Hash)]
enum OperatorKind {
    Unary(UnaryOp),
    Binary(Operator),
    Boolean(BoolOp),
    Comparison(CmpOp),
}

struct Counter<'a> {
    source: &'a str,
    /// Name of the innermost function around the current node.
    function: Option<&'a str>,
    operators: FxHashSet<OperatorKind>,
    operands: FxHashSet<(Option<&'a str>, Operand<'a>)>,
    /// Operands other than names, attributes and constants: each is distinct.
    num_unnamed_operands: usize,
    /// Operators and operands, repetitions included.
    length: usize,
}

impl<'a> Counter<'a> {
    fn operator(&mut self, kind: OperatorKind) {
        self.operators.insert(kind);
        self.length += 1;
    }

    fn operand(&mut self, expression: &'a Expr) {
        self.length += 1;
        match operand(self.source, expression) {
            Some(operand) => {
                self.operands.insert((self.function, operand));
            }
            None => self.num_unnamed_operands += 1,
        }
    }
}

impl<'a> Visitor<'a> for Counter<'a> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            // Decorators, parameters and annotations of a function are not visited; those of a class are.
            Stmt::FunctionDef(function) => {
                let outer = self.function.replace(&function.name);
                self.visit_body(&function.body);
                self.function = outer;
                return;
            }
            Stmt::AugAssign(assignment) => {
                self.operator(OperatorKind::Binary(assignment.op));
                self.operand(&assignment.target);
                self.operand(&assignment.value);
            }
            _ => {}
        }
        walk_stmt(self, statement);
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::UnaryOp(operation) => {
                self.operator(OperatorKind::Unary(operation.op));
                self.operand(&operation.operand);
            }
            Expr::BinOp(operation) => {
                self.operator(OperatorKind::Binary(operation.op));
                self.operand(&operation.left);
                self.operand(&operation.right);
            }
            Expr::BoolOp(operation) => {
                self.operator(OperatorKind::Boolean(operation.op));
                operation.values.iter().for_each(|value| self.operand(value));
            }
            Expr::Compare(comparison) => {
                for &kind in &comparison.ops {
                    self.operator(OperatorKind::Comparison(kind));
                }
                self.operand(&comparison.left);
                comparison.comparators.iter().for_each(|value| self.operand(value));
            }
            _ => {}
        }
        walk_expr(self, expression);
    }
}

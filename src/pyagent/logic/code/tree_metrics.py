"""Complexity by function and maintainability of JavaScript, TypeScript, Rust and Go, read by tree-sitter.

A function's complexity is what the usual tool of its language counts: ESLint's rule `complexity` (JavaScript and
TypeScript), gocyclo (Go, literals of functions in the function around them), rust-code-analysis (Rust, closures in the
function around them). Maintainability is radon's formula: Halstead's volume over words and signs, the complexity of
the functions, the lines of code and the share of comments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from pyagent.logic.code.trees import load_grammar

_JAVASCRIPT_QUERY = """
[(function_declaration) (generator_function_declaration) (function_expression) (generator_function)
 (arrow_function) (method_definition)] @function
[(class_static_block)] @other
[(if_statement) (for_statement) (for_in_statement) (while_statement) (do_statement) (catch_clause)
 (ternary_expression) (switch_case) (optional_chain) (object_assignment_pattern) (assignment_pattern)] @decision
(binary_expression operator: ["&&" "||" "??"]) @decision
(augmented_assignment_expression operator: ["&&=" "||=" "??="]) @decision
(comment) @comment
[(string) (template_string) (regex)] @literal
"""
_FIELDS = "(field_definition value: (_) @other)"
_TYPESCRIPT_QUERY = f"""{_JAVASCRIPT_QUERY}
(public_field_definition value: (_) @other)
(required_parameter value: (_)) @decision
(optional_parameter value: (_)) @decision
"?." @decision
"""
_RUST_QUERY = """
(function_item) @function
[(if_expression) (for_expression) (while_expression) (loop_expression) (match_arm) (try_expression)] @decision
(binary_expression operator: ["&&" "||"]) @decision
(let_chain "&&" @decision)
(match_pattern "if" @decision)
[(line_comment) (block_comment)] @comment
[(string_literal) (raw_string_literal) (char_literal)] @literal
"""
_GO_QUERY = """
[(function_declaration) (method_declaration)] @function
(source_file (var_declaration (var_spec value: (expression_list (func_literal) @function))))
(source_file (var_declaration (var_spec_list (var_spec value: (expression_list (func_literal) @function)))))
[(if_statement) (for_statement) (expression_case) (type_case) (communication_case)] @decision
(binary_expression operator: ["&&" "||"]) @decision
(comment) @comment
[(interpreted_string_literal) (raw_string_literal) (rune_literal)] @literal
"""
_QUERIES = {
    "JavaScript": f"{_JAVASCRIPT_QUERY}{_FIELDS}",
    "TypeScript": _TYPESCRIPT_QUERY,
    "TSX": _TYPESCRIPT_QUERY,
    "Rust": _RUST_QUERY,
    "Go": _GO_QUERY,
}
_JAVASCRIPT_KEYWORDS = (
    "as async await break case catch class const continue debugger default delete do else enum export extends finally"
    " for from function get if implements import in instanceof interface let new of package private protected public"
    " return set static super switch this throw try typeof var void while with yield"
)
_RUST_KEYWORDS = (
    "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub"
    " ref return self Self static struct super trait type unsafe use where while"
)
_GO_KEYWORDS = (
    "break case chan const continue default defer else fallthrough for func go goto if import interface map package"
    " range return select struct switch type var"
)
_TYPESCRIPT_KEYWORDS = f"{_JAVASCRIPT_KEYWORDS} abstract declare is keyof namespace readonly type"
_KEYWORDS = {
    "JavaScript": _JAVASCRIPT_KEYWORDS,
    "TypeScript": _TYPESCRIPT_KEYWORDS,
    "TSX": _TYPESCRIPT_KEYWORDS,
    "Rust": _RUST_KEYWORDS,
    "Go": _GO_KEYWORDS,
}
_MAX_NAME = 120
_MAX_DEPTH = 50
_AFTER_ALL = 1 << 62
_ANY_DEPTH_BYTES = 64_000
_MAX_NESTING = 1_000
"""Levels of a tree of a longer text: queries, and the way to what is around a node, take time by the depth's square."""
_WORDS = re.compile(
    rb"(?P<operand>[A-Za-z_$\x80-\xff][\w$\x80-\xff]*|\d[\w.]*)"
    rb"|>>>=|===|!==|\.\.\.|\.\.=|>>=|<<=|&&=|\|\|=|\?\?=|\*\*=|>>>|=>|->|::|:=|<-|==|!=|<=|>=|&&|\|\||\?\?|\?\.|\+\+|--"
    rb"|[-+*/%&|^]=|<<|>>|&\^|\*\*|[-+*/%&|^~!<>=?:;,.@#(\[{]"
)


class FunctionMetrics(msgspec.Struct, frozen=True):
    """A function, the line it starts on, and its cyclomatic complexity."""

    name: str
    line: int
    complexity: int


class TreeMetrics(msgspec.Struct, frozen=True):
    """A file's maintainability from 0 to 100 and its functions in order; `fault` says what could not be read."""

    maintainability: float
    functions: list[FunctionMetrics]
    fault: str = ""


def tree_metrics(language: str, source: bytes) -> TreeMetrics:
    """Return the metrics of a file's text. Raises `ImportError`, `ValueError`."""
    tree_sitter, grammar = load_grammar(language)
    root: Any = tree_sitter.Parser(grammar).parse(source).root_node
    if len(source) > _ANY_DEPTH_BYTES and _is_deep(root):
        raise ValueError(f"it nests deeper than {_MAX_NESTING:,} levels, or has as many faults")
    found: dict[str, list[Any]] = tree_sitter.QueryCursor(_query(language)).captures(root)
    functions = _functions(language, found)
    total = sum(function.complexity for function in functions)
    index = _maintainability(language, source, found.get("comment", []), found.get("literal", []), total)
    return TreeMetrics(
        index, functions, f"line {_first_fault(root)} is no {language} that can be read" if root.has_error else ""
    )


def _is_deep(root: Any) -> bool:
    """Whether a tree nests deep, or has a fault with as many parts that fit nowhere."""
    cursor = root.walk()
    while cursor.depth <= _MAX_NESTING:
        if root.has_error and cursor.node.is_error and cursor.node.child_count > _MAX_NESTING:
            return True
        if not cursor.goto_first_child():
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return False
    return True


@cache
def _query(language: str) -> Any:
    tree_sitter, grammar = load_grammar(language)
    return tree_sitter.Query(grammar, _QUERIES[language])


def _first_fault(root: Any) -> int:
    """Return the first line that the grammar could not read."""
    cursor = root.walk()
    while True:
        node = cursor.node
        if node.is_error or node.is_missing:
            return node.start_point[0] + 1
        if not (node.has_error and cursor.goto_first_child()):
            while not cursor.goto_next_sibling():
                if not cursor.goto_parent():
                    return 1


def _functions(language: str, found: dict[str, list[Any]]) -> list[FunctionMetrics]:
    """Return the functions, each with the decisions that lie in it and in no function within it."""
    spans = [*((node, True) for node in found.get("function", [])), *((node, False) for node in found.get("other", []))]
    spans.sort(key=lambda span: (span[0].start_byte, -span[0].end_byte, span[1]))
    counts = [1] * len(spans)
    depths = [0] * len(spans)
    around: list[int] = []
    following = 0
    decisions = sorted({(node.start_byte, node.end_byte) for node in found.get("decision", [])})
    for start, end in [*decisions, (_AFTER_ALL, _AFTER_ALL)]:
        while following < len(spans) and spans[following][0].start_byte <= start:
            while around and spans[around[-1]][0].end_byte <= spans[following][0].start_byte:
                around.pop()
            depths[following] = len(around)
            around.append(following)
            following += 1
        while around and spans[around[-1]][0].end_byte <= start:
            around.pop()
        # What begins where a function does may be around it: `function () {} || x`.
        holder = next((index for index in reversed(around) if spans[index][0].end_byte >= end), None)
        if holder is not None:
            counts[holder] += 1
    return [
        FunctionMetrics(_name(node, language, depths[index]), node.start_point[0] + 1, counts[index])
        for index, (node, is_function) in enumerate(spans)
        if is_function
    ]


_OWNERS = frozenset({"class_declaration", "abstract_class_declaration", "class", "impl_item", "trait_item"})
_NAMING = {
    "variable_declarator": "name",
    "pair": "key",
    "assignment_expression": "left",
    "field_definition": "property",
    "public_field_definition": "name",
    "var_spec": "name",
}
"""Fields that name the function which is their value."""


def _name(node: Any, language: str, depth: int) -> str:
    """Return a function's name, with its class before it; `<anonymous>` for one that has none."""
    named = node.child_by_field_name("name")
    if depth > _MAX_DEPTH:  # finding what is around a node takes time by its depth
        return _text(named) if named is not None else "<anonymous>"
    holder = node.parent
    if language == "Go" and holder is not None and holder.type == "expression_list":
        holder = holder.parent
    if named is None and holder is not None and holder.type in _NAMING:
        named = holder.child_by_field_name(_NAMING[holder.type])
    own = _text(named) if named is not None else "<anonymous>"
    receiver = node.child_by_field_name("receiver")
    if receiver is not None:
        kind = _text(receiver).strip("()").rpartition(" ")[2].lstrip("*").partition("[")[0]
        return f"{kind}.{own}"
    if node.type in {"method_definition", "function_item", "arrow_function", "function_expression"}:
        body = holder if holder is None or holder.type in {"class_body", "declaration_list"} else holder.parent
        owner = None if body is None or body.type not in {"class_body", "declaration_list"} else body.parent
        if owner is not None and owner.type in _OWNERS:
            of = owner.child_by_field_name("type") or owner.child_by_field_name("name")
            if of is not None:
                return f"{_text(of).partition('<')[0]}.{own}"
    return own


def _text(node: Any) -> str:
    return " ".join(node.text.decode("utf-8", "replace").split())[:_MAX_NAME]


def _maintainability(
    language: str, source: bytes, comments: Sequence[Any], literals: Sequence[Any], complexity: int
) -> float:
    """Return radon's index of a text; comments and literals are its nodes of these kinds."""
    parts = [(node.start_byte, node.end_byte, False) for node in comments]
    parts += [(node.start_byte, node.end_byte, True) for node in literals]
    code: list[bytes] = []
    texts: list[bytes] = []
    num_comment_lines = last = 0
    for start, end, is_literal in sorted(parts):
        if start < last:
            continue  # inside of a template, which is one operand
        lines = source.count(b"\n", start, end)
        code += [source[last:start], b'""' if is_literal else b"", b"\n" * lines]
        if is_literal:
            texts.append(source[start:end])
        else:
            num_comment_lines += lines + (source[end - 1 : end] != b"\n")
        last = end
    rest = b"".join([*code, source[last:]])
    operands, operators = _words_and_signs(language, rest)
    distinct = len(set(operators)) + len({*operands, *texts})
    volume = (len(operators) + len(operands) + len(texts)) * math.log2(distinct or 1)
    num_lines = sum(1 for line in rest.split(b"\n") if line.strip())
    if volume <= 0 or not num_lines:
        return 100.0
    angle = math.sqrt(2.46 * math.radians(100 * num_comment_lines / num_lines))
    index = 171 - 5.2 * math.log(volume) - 0.23 * complexity - 16.2 * math.log(num_lines) + 50 * math.sin(angle)
    return min(max(0.0, index * 100 / 171), 100.0)


def _words_and_signs(language: str, code: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the operands (names and numbers) and the operators (keywords and signs) of code without its texts."""
    operands: list[bytes] = []
    operators: list[bytes] = []
    keywords = _keywords(language)
    for found in _WORDS.finditer(code):
        is_operand = found.lastgroup == "operand" and found[0] not in keywords
        (operands if is_operand else operators).append(found[0])
    return operands, operators


@cache
def _keywords(language: str) -> frozenset[bytes]:
    return frozenset(_KEYWORDS[language].encode().split())

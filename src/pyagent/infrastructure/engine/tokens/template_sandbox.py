"""jinja2's sandbox, with what could make a template's texts and lists large bounded.

Four bounds hold: on any one text or list (counted with everything in it, as often as it is in it: lists of lists of
lists are printed in full), on all that one rendering makes, on what each operation could make before anybody could
count it, and on time, looked at in every turn of a loop, every macro and every call. Attributes of built-in values are
allowed by name.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn, cast

from jinja2 import TemplateRuntimeError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import loopcontrols
from jinja2.filters import do_round
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT_CHARS = 16 * 1024 * 1024
MAX_VALUES = 200_000
MAX_SPENT_CHARS = 256 * 1024 * 1024
MAX_RANGE = 10_000
MAX_SECONDS = 2.0
_STRING_METHOD_NAMES = """
    capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower
    isnumeric isprintable isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind
    rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_STRING_METHODS = frozenset(_STRING_METHOD_NAMES.split())
# Filters that pad, wrap or repeat to any width, and those templates of models never use.
_REMOVED_FILTERS = ("center", "format", "wordwrap", "xmlattr", "urlize", "pprint", "batch", "slice", "filesizeformat")
# Filters that compare, copy or print whole values at once, in C, where no clock can stop them.
_COUNTED_FILTERS = ("sort", "dictsort", "unique", "groupby", "min", "max", "sum", "list", "string")


@dataclass(slots=True)
class _Spent:
    """What one rendering has made, and when it must be over (on the monotonic clock)."""

    deadline: float
    num_chars: int = 0


_spent: ContextVar[_Spent] = ContextVar("spent")


class TemplateLimitError(Exception):
    """A template tried to grow or run past its bounds."""


@contextlib.contextmanager
def spending() -> Generator[None]:
    """Around one rendering: what it makes is counted from nothing, and so is its time; within another that goes on."""
    until, outer = time.monotonic() + MAX_SECONDS, _spent.get(None)
    token = _spent.set(_Spent(until if outer is None else min(until, outer.deadline)))
    try:
        yield
    finally:
        _spent.reset(token)


def _spend(num_chars: int) -> None:
    """Count characters about to be made."""
    if num_chars > MAX_TEXT_CHARS:
        raise TemplateLimitError(f"a text longer than {MAX_TEXT_CHARS} characters")
    spent = _spent.get(None)
    if spent is None:  # jinja folds constants while it compiles
        return
    spent.num_chars += num_chars
    if spent.num_chars > MAX_SPENT_CHARS:
        raise TemplateLimitError(f"it makes more than {MAX_SPENT_CHARS} characters of text")
    _tick()


def _tick() -> None:
    """Raise when the rendering's time is over; again and again, since jinja swallows errors in some places."""
    spent = _spent.get(None)
    if spent is not None and time.monotonic() > spent.deadline:
        raise TemplateLimitError(f"it ran for more than {MAX_SECONDS:g} s")


def _measured(value: object) -> int:
    """Characters the value would print, roughly, with everything in it as often as it is in it."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | tuple | dict | Namespace):
        return 24
    num_values, num_chars = 0, 0
    left: list[object] = [value]
    while left:
        item = left.pop()
        num_values += 1
        num_chars += len(item) if isinstance(item, str) else 8
        if isinstance(item, Namespace):
            item = object.__getattribute__(item, "_Namespace__attrs")
        if isinstance(item, list | tuple):
            left.extend(cast("Sequence[object]", item))
        elif isinstance(item, dict):
            mapping = cast("dict[object, object]", item)
            left.extend(mapping.keys())
            left.extend(mapping.values())
        if num_values + len(left) > MAX_VALUES or num_chars > MAX_TEXT_CHARS:
            raise TemplateLimitError(f"a value of more than {MAX_VALUES} parts or {MAX_TEXT_CHARS} characters")
    return num_chars


def _counted(value: Any) -> Any:
    """Return the value, its size counted; an iterator becomes a list."""
    if isinstance(value, Iterator):
        value = list(islice(cast("Iterator[object]", value), MAX_VALUES + 1))
    _spend(_measured(value))
    return value


def _text(value: object) -> str:
    """Return the value as text; raises before making one that is too long."""
    return str(_counted(value))


def _joined(separator: str, values: Iterable[object]) -> str:
    items: list[object] = _counted(values) if isinstance(values, list | tuple) else list(islice(values, MAX_VALUES + 1))
    texts = [item if isinstance(item, str) else _text(item) for item in items]
    _spend(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    if len(new) > len(old):
        num_found = len(text) + 1 if not old else text.count(old)
        num_found = num_found if count < 0 else min(num_found, count)
        _spend(len(text) + num_found * (len(new) - len(old)))
    else:
        _spend(len(text))
    return text.replace(old, new, count)


class _BoundedCode(CodeGenerator):
    """Compiles `a ~ b` and literal lists to calls that count, and loops and macros to ones that look at the clock."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - jinja's name
        node.body.insert(0, _tick_node())
        super().visit_For(node, frame)

    def macro_body(self, node: Any, frame: Frame) -> Any:
        node.body.insert(0, _tick_node())
        return super().macro_body(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja's name
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._write_counted(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._write_counted(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._write_counted(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _write_counted(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.counted(")
        visit(node, frame)
        self.write(")")


def _tick_node() -> nodes.Node:
    return nodes.ExprStmt(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None))


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates run in."""

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], cache_size=0, finalize=_printed
        )
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        for name in _COUNTED_FILTERS:
            self.filters[name] = _counting(self.filters[name])
        self.filters |= {"tojson": _to_json, "join": _join, "replace": _replace, "indent": _indent, "round": _round}
        self.globals = {
            "raise_exception": _raise,
            "strftime_now": _now,
            "range": _bounded_range,
            "namespace": Namespace,
            "dict": _dict,
        }

    @staticmethod
    def concat(parts: Iterable[object]) -> str:
        """`a ~ b`, and the text of a macro or a block, bounded."""
        return _joined("", parts)

    @staticmethod
    def tick() -> None:
        """Called in every turn of a loop and every macro."""
        _tick()

    @staticmethod
    def counted(value: object) -> object:
        """Return a literal list, tuple or mapping, its size counted."""
        return _counted(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse operators that multiply texts, lists or digits."""
        sized = (str, bytes, list, tuple)
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                _spend(len(left) + len(right))
                return left + right
            return _counted(left + right)
        if isinstance(left, sized) or isinstance(right, sized):
            raise TemplateLimitError(f"the operator '{operator}' on texts or lists")
        if operator == "**" or (operator == "*" and max(abs(int(left)), abs(int(right))) > 2**63):
            raise TemplateLimitError("numbers of more than 64 bits")
        return self.binop_table[operator](left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As jinja2's; of texts only the methods that make nothing larger, of numbers and bytes none."""
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        if isinstance(obj, bytes | int | float | complex):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """None, so that `str.format` is refused like the other methods that pad."""

    def call(__self, __context: Any, __obj: Any, *args: Any, **fields: Any) -> Any:  # noqa: N805 - as jinja2's
        """Call something; methods of texts are counted."""
        _tick()
        text = getattr(__obj, "__self__", None)
        if isinstance(text, str):
            if __obj.__name__ == "join":
                return _joined(text, *args)
            if __obj.__name__ == "replace":
                return _replaced(text, *args)
            _spend(len(text))
        return super().call(__context, __obj, *args, **fields)


def _printed(value: object) -> object:
    """Return what `{{ value }}` writes."""
    return value if isinstance(value, str | Undefined) else _text(value)


def _counting(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter, its arguments counted first."""

    @functools.wraps(filter_)
    def run(*args: Any, **fields: Any) -> Any:
        return filter_(*map(_counted, args), **{key: _counted(value) for key, value in fields.items()})

    return run


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"a range of more than {MAX_RANGE} numbers")
    return numbers


def _now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern[:64])


def _dict(*args: Any, **fields: Any) -> dict[Any, Any]:
    return _counted(dict(*args, **fields))


def _raise(message: object) -> NoReturn:
    raise TemplateRuntimeError(str(message)[:1000])


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, as models were trained on."""
    marks = None if separators is None else (str(separators[0])[:8], str(separators[1])[:8])
    width = None if indent is None else min(int(indent), 8)
    return json.dumps(
        _counted(value), ensure_ascii=ensure_ascii, indent=width, separators=marks, sort_keys=sort_keys, default=_text
    )


def _join(values: Iterable[object], d: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        values = [_item(value, attribute) for value in islice(values, MAX_VALUES)]
    return _joined(str(d), values)


def _item(value: object, name: str) -> object:
    return cast("Mapping[str, object]", value).get(name, "") if isinstance(value, Mapping) else ""


def _replace(value: object, old: str, new: str, count: int | None = None) -> str:
    return _replaced(_text(value), str(old), str(new), -1 if count is None else int(count))


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    mark = width[:64] if isinstance(width, str) else " " * min(int(width), 64)
    lines = _text(value).split("\n")
    _spend(sum(map(len, lines)) + len(lines) * (len(mark) + 1))
    shifted = [
        line if (number == 0 and not first) or not (line or blank) else mark + line for number, line in enumerate(lines)
    ]
    return "\n".join(shifted)


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    return do_round(value, max(-20, min(int(precision), 20)), cast("Any", method))

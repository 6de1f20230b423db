"""Chat templates: a conversation to the text a model was trained on.

Templates come with model files and are hostile input. They run in jinja2's sandbox, with what could make them large or
endless taken out or bounded: string repetition, padding, big ranges, long output, long time.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2.compiler import CodeGenerator, Frame
from jinja2.nodes import Concat

from pyagent.core.errors import ModelError, RequestError

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_TEXT_CHARS = 16 * 1024 * 1024
MAX_RANGE = 10_000
MAX_SECONDS = 2.0
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"})


class TemplateLimitError(Exception):
    """A template tried to grow or run past its bounds."""


class _BoundedCode(CodeGenerator):
    """Compiles `a ~ b` to a join that is bounded; jinja's own is not one of the operators a sandbox may intercept."""

    def visit_Concat(self, node: Concat, frame: Frame) -> None:  # noqa: N802 - jinja's name
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's sandbox with bounded strings, ranges and numbers."""

    code_generator_class = _BoundedCode
    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
        """Refuse operators that multiply texts, lists or digits."""
        del context
        sized = (str, bytes, list, tuple)
        if operator == "+":
            if isinstance(left, sized) and isinstance(right, sized) and len(left) + len(right) > MAX_TEXT_CHARS:
                raise TemplateLimitError(f"a text longer than {MAX_TEXT_CHARS} characters")
            return left + right  # type: ignore[operator]  # any types a template adds; a TypeError is the template's
        if operator in {"*", "**", "%"} and (isinstance(left, sized) or isinstance(right, sized)):
            raise TemplateLimitError(f"the operator '{operator}' on texts or lists")
        if operator == "**" or (operator == "*" and max(abs(int(left)), abs(int(right))) > 2**63):  # type: ignore[call-overload]
            raise TemplateLimitError("numbers of more than 64 bits")
        return self.binop_table[operator](left, right)

    def join(self, parts: Sequence[object]) -> str:
        """`a ~ b`, bounded."""
        texts = [str(part) for part in parts]
        if sum(map(len, texts)) > MAX_TEXT_CHARS:
            raise TemplateLimitError(f"a text longer than {MAX_TEXT_CHARS} characters")
        return "".join(texts)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """As jinja2's, without the methods that pad texts to any width."""
        if isinstance(obj, str) and attr in _PADDING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"a range of more than {MAX_RANGE} numbers")
    return numbers


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateRuntimeError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON without HTML escapes, as models were trained on."""
    return json.dumps(value, ensure_ascii=False, indent=None if indent is None else min(indent, 8))


def _environment() -> _Environment:
    extensions = [jinja2.ext.loopcontrols]
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, cache_size=0)
    for name in ("center", "indent", "format", "wordwrap", "xmlattr", "urlize", "pprint", "batch", "slice"):
        environment.filters.pop(name, None)
    environment.filters["tojson"] = _to_json
    environment.globals = {
        "raise_exception": _raise,
        "strftime_now": lambda pattern: datetime.datetime.now().astimezone().strftime(pattern[:64]),
        "range": _bounded_range,
        "namespace": jinja2.utils.Namespace,
        "dict": dict,
    }
    return environment


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, texts: Mapping[str, str], name: str) -> None:
        """`texts` are the model's `bos_token` and `eos_token`. Raises `ModelError` when it cannot be compiled."""
        self.source = source
        self._name = name
        self._texts = dict(texts)
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(f"{name}: a chat template of {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}", model=name)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:
            raise ModelError(f"{name}: the chat template is not valid: {error}", model=name) from error

    def render(self, messages: Sequence[Mapping[str, object]], tools: Sequence[object] = ()) -> str:
        """The conversation as text, up to where the model's answer begins.

        Raises `RequestError` with the template's own words when it refuses the conversation, `ModelError` when it
        breaks its bounds.
        """
        variables = {"messages": messages, "tools": list(tools) or None, "add_generation_prompt": True, **self._texts}
        try:
            return _within(MAX_SECONDS, lambda: self._render(variables))
        except TemplateLimitError as error:
            raise ModelError(f"{self._name}: the chat template was stopped: {error}", model=self._name) from error
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise RequestError(f"the model's chat template refuses this conversation: {error}", param="messages") from error
        except (RecursionError, MemoryError) as error:
            raise ModelError(f"{self._name}: the chat template was stopped: it needs too much memory", model=self._name) from error

    def _render(self, variables: Mapping[str, object]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > MAX_TEXT_CHARS:
                raise TemplateLimitError(f"it writes more than {MAX_TEXT_CHARS} characters")
            pieces.append(piece)
        return "".join(pieces)


def _within(seconds: float, work: Callable[[], str]) -> str:
    """Run `work`, raising `TemplateLimitError` inside it when it takes longer than `seconds`."""
    thread_id = threading.get_ident()
    lock = threading.Lock()
    state = {"is_done": False, "is_raised": False}

    def stop() -> None:
        with lock:
            if not state["is_done"]:
                state["is_raised"] = True
                set_exception = cast("Callable[..., int]", ctypes.pythonapi.PyThreadState_SetAsyncExc)
                set_exception(ctypes.c_ulong(thread_id), ctypes.py_object(TemplateLimitError))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        return work()
    except TemplateLimitError as error:
        raise TemplateLimitError(str(error) or f"it ran for more than {seconds:g} s") from None
    finally:
        timer.cancel()
        with lock:
            state["is_done"] = True
        if state["is_raised"]:
            _take_pending_exception()


def _take_pending_exception() -> None:
    """The timer raised just as the work ended: the exception is on its way to this thread; meet it here."""
    try:
        for _ in range(100):
            time.sleep(0.001)
    except TemplateLimitError:
        return

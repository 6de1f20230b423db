"""Chat templates: a conversation to the text a model was trained on.

Templates come with model files and are hostile input. They run in `TemplateSandbox`, and for a bounded time.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jinja2
from jinja2.exceptions import SecurityError

from pyagent.core.errors import ModelError, RequestError
from pyagent.infrastructure.engine.tokens.template_sandbox import (
    MAX_TEXT_CHARS,
    TemplateLimitError,
    TemplateSandbox,
    spending,
)

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_SECONDS = 2.0
_STOP_AGAIN_SECONDS = 0.2


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, texts: Mapping[str, str], name: str) -> None:
        """`texts` are the model's `bos_token` and `eos_token`. Raises `ModelError` when it cannot be compiled."""
        self.source = source
        self._name = name
        self._texts = dict(texts)
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                f"{name}: a chat template of {len(source)} characters; the limit is {MAX_TEMPLATE_CHARS}", model=name
            )
        try:
            self._template = TemplateSandbox().from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise ModelError(f"{name}: the chat template is not valid: {error}", model=name) from error

    def render(self, messages: Sequence[Mapping[str, object]], tools: Sequence[object] = ()) -> str:
        """The conversation as text, up to where the model's answer begins.

        Raises `RequestError` with the template's own words when it refuses the conversation, `ModelError` when it
        breaks its bounds.
        """
        variables = {"messages": messages, "tools": list(tools) or None, "add_generation_prompt": True, **self._texts}
        try:
            with spending():
                return _within(MAX_SECONDS, lambda: self._render(variables))
        except (TemplateLimitError, SecurityError) as error:
            raise ModelError(f"{self._name}: the chat template was stopped: {error}", model=self._name) from error
        except (RecursionError, MemoryError) as error:
            text = f"{self._name}: the chat template was stopped: it needs too much memory"
            raise ModelError(text, model=self._name) from error
        except Exception as error:
            text = f"the model's chat template refuses this conversation: {error}"
            raise RequestError(text, param="messages") from error

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
    """Run `work`, raising `TemplateLimitError` inside it when it takes longer than `seconds`.

    The error is raised again and again until it gets through: jinja swallows errors in some places.
    """
    thread_id = ctypes.c_ulong(threading.get_ident())
    set_exception = cast("Callable[..., int]", ctypes.pythonapi.PyThreadState_SetAsyncExc)
    is_done, is_late = threading.Event(), threading.Event()
    lock = threading.Lock()

    def watch() -> None:
        wait = seconds
        while not is_done.wait(wait):
            with lock:
                if not is_done.is_set():
                    is_late.set()
                    set_exception(thread_id, ctypes.py_object(TemplateLimitError))
            wait = _STOP_AGAIN_SECONDS

    watcher = threading.Thread(target=watch, name="pyagent-template", daemon=True)
    watcher.start()
    try:
        return work()
    except TemplateLimitError as error:
        raise TemplateLimitError(str(error) or f"it ran for more than {seconds:g} s") from None
    finally:
        _end_watch(is_done, lock)
        if is_late.is_set():  # CPython 3.11 spins for ever in a traced thread when nothing is taken back
            set_exception(thread_id, None)  # one that was on its way


def _end_watch(is_done: threading.Event, lock: threading.Lock) -> None:
    while not is_done.is_set():
        try:
            with lock:
                is_done.set()
        except TemplateLimitError:  # it met us here; the work is over all the same
            continue

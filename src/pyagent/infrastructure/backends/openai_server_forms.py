"""Asks a link's server for forms that OpenAI does not have, where it is known to hold answers to them; else in words.

A server may leave a field out without a word: now and then an answer of each form is held back and checked, the first
one always. One that does not match, or a refusal, is no fault of the request, which is asked in words then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pyagent.core.backends import ServerSetting
from pyagent.core.chain.structured_output import check_answer
from pyagent.core.errors import (
    ContextOverflowError,
    InvalidOutputError,
    PyAgentError,
    RequestError,
    UnsupportedError,
)
from pyagent.core.messages import ChatDelta, ChatRequest, ResponseFormat
from pyagent.core.resilience.deadline import Deadline
from pyagent.infrastructure.backends.openai_forms import ServerKind, form_fields, kind_of
from pyagent.infrastructure.backends.openai_models import ListedModel

logger = logging.getLogger(__name__)

Asking = Callable[[ChatRequest, ServerKind | None], AsyncGenerator[ChatDelta, None]]
_KNOWN_SECONDS, _UNKNOWN_SECONDS, _LIST_SECONDS = 300.0, 30.0, 3.0
_MAX_KNOWN = 256
_NOT_OF_THE_FORM = frozenset({"model_not_found", "loop_detected"})


class ServerForms:
    """What is known of one link's server. `ask` asks it, with the fields of the server named."""

    def __init__(
        self, name: str, setting: ServerSetting, models: Callable[[], Awaitable[list[ListedModel]]], ask: Asking
    ) -> None:
        self._name, self._models, self._ask = name, models, ask
        self._setting: ServerSetting = setting
        self._listed: list[ListedModel] = []
        self._listed_until = 0.0
        self._is_held: dict[tuple[str, str], bool] = {}
        self._is_held_until = 0.0

    async def answer(self, request: ChatRequest, model: str) -> AsyncGenerator[ChatDelta, None]:
        """Stream an answer."""
        if time.monotonic() >= self._is_held_until:  # it may be another server by now
            self._is_held.clear()
            self._is_held_until = time.monotonic() + _KNOWN_SECONDS
        server = await self._server(request, model)
        known = (model, request.response_format.type if request.response_format else "")
        if server is not None and self._is_held.get(known, True):
            is_begun = False
            try:
                async with aclosing(self._forwarded(request, server, known)) as deltas:
                    async for delta in deltas:
                        is_begun = True
                        yield delta
                return  # noqa: TRY300 - what follows is for a server that did not
            except (RequestError, UnsupportedError) as error:
                if is_begun or not _is_of_the_form(error):
                    raise
                logger.info("%s did not hold an answer to %s, and is asked in words", self._name, known[1])
        async with aclosing(self._ask(request, None)) as deltas:
            async for delta in deltas:
                yield delta

    async def _forwarded(
        self, request: ChatRequest, server: ServerKind, known: tuple[str, str]
    ) -> AsyncGenerator[ChatDelta, None]:
        """Stream an answer that the server holds to the form; of the first one, all at once when it is checked."""
        deadline = Deadline.after(request.timeout_seconds)
        async with aclosing(self._ask(request, server)) as deltas:
            if known in self._is_held or _ends_early(request):
                async for delta in deltas:
                    yield delta
                return
            held = [delta async for delta in deltas]
        is_whole = all(delta.finish_reason in {None, "stop"} for delta in held)
        try:
            await check_answer(held, request, self._name, deadline)
        except InvalidOutputError:
            self._remember(known, is_held=False)
            raise
        if is_whole:
            self._remember(known, is_held=True)
        for delta in held:
            yield delta

    def _remember(self, known: tuple[str, str], *, is_held: bool) -> None:
        if len(self._is_held) >= _MAX_KNOWN:
            self._is_held.clear()
        self._is_held[known] = is_held

    async def _server(self, request: ChatRequest, model: str) -> ServerKind | None:
        """Return the server whose fields ask for the request's form; None where it goes in words."""
        wanted, setting = request.response_format, self._setting
        if wanted is None or setting == "openai" or not _stands_alone(request):
            return None
        kind = await self._kind(model, request) if setting == "auto" else setting
        return kind if kind is not None and form_fields(wanted, kind) else None

    async def _kind(self, model: str, request: ChatRequest) -> ServerKind | None:
        if time.monotonic() >= self._listed_until:
            deadline = Deadline.after(request.timeout_seconds).sooner(_LIST_SECONDS)
            try:
                self._listed = await deadline.bound(self._models(), "its models")
                self._listed_until = time.monotonic() + _KNOWN_SECONDS
            except PyAgentError:
                self._listed = []
                self._listed_until = time.monotonic() + _UNKNOWN_SECONDS
        return kind_of(self._listed, model)


def is_for_servers(wanted: ResponseFormat | None) -> bool:
    """Whether a form is one that OpenAI does not have, and a server may."""
    return wanted is not None and wanted.type in {"choice", "regex", "grammar", "structural_tag"}


def _stands_alone(request: ChatRequest) -> bool:
    """Whether the whole answer has the form: none of it is a call, or was written before."""
    has_tools = bool(request.tools) and request.tool_choice != "none"
    return not (has_tools or request.assistant_prefix or request.answer_prefix or request.sampling.echo)


def _ends_early(request: ChatRequest) -> bool:
    """Whether an answer may end within its form, so that it says nothing of the server."""
    return bool(request.sampling.stop or request.sampling.stop_token_ids)


def _is_of_the_form(error: RequestError | UnsupportedError) -> bool:
    if isinstance(error, RequestError):
        return not isinstance(error, ContextOverflowError) and error.code not in _NOT_OF_THE_FORM
    return True

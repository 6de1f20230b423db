"""The grammar that a request's answers are held to. No thread and no other request waits while it compiles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyagent.core.errors import CapacityError, RequestError

if TYPE_CHECKING:
    from pyagent.core.messages import ResponseFormat
    from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
    from pyagent.infrastructure.engine.models.chat_format import AnswerFormat, ChatFormat
    from pyagent.infrastructure.engine.models.preprocessor import PromptTokens

_T = TypeVar("_T")


class Beside(Protocol):
    """Does work that may take long where the event loop goes on meanwhile."""

    def __call__(self, work: Callable[..., _T], *args: object) -> Awaitable[_T]:
        """Return what the work does."""
        ...


async def at_once(work: Callable[..., _T], *args: object) -> _T:
    """Do work that is known to be short."""
    return work(*args)


class AnswerGrammars:
    """Have grammars compiled for one model's chat requests."""

    def __init__(self, compiler: GrammarCompiler, chat_format: ChatFormat) -> None:
        self._compiler = compiler
        self._chat_format = chat_format

    async def compile(self, prompt: PromptTokens, beside: Beside) -> Grammar | None:
        """Return the grammar at the place where answers begin; None where they are free. Raises `RequestError`."""
        self._compiler.check_backend(prompt.format.request.guided_decoding_backend)
        if prompt.format.request.beam is not None and not prompt.format.is_structured:
            return None
        grammar = await self._compile(prompt.format, beside)
        return await beside(prompt.assistant_prefix.accepted, grammar) if prompt.assistant_prefix.tokens else grammar

    async def _compile(self, answer: AnswerFormat, beside: Beside) -> Grammar | None:
        request = answer.request
        form = request.response_format if answer.is_structured else None
        if answer.dialect is None or not answer.needs_grammar:
            begin, asked = self._compiler.begin, (request.origin.tenant, request.guided_decoding_backend)
            return None if form is None else await _awaited(await beside(begin, form, *asked))
        try:
            return await _awaited(await beside(self._calls, answer, form))
        except RequestError:
            if answer.has_strict:
                raise
        try:
            return await _awaited(await beside(self._calls, answer, form, True))
        except (RequestError, CapacityError):
            if answer.must_call or form is not None:
                raise
        return None  # calls are read all the same

    def _calls(self, answer: AnswerFormat, form: ResponseFormat | None, is_loose: bool = False) -> Future[Grammar]:
        """Begin the grammar of calls, or of text of a form where none is forced. Raises `RequestError`."""
        assert answer.dialect is not None
        lark = answer.grammar(self._chat_format.tag_ids(answer.dialect), is_loose=is_loose)
        tools, other = () if is_loose else answer.callable_tools, None if answer.must_call else form
        request = answer.request
        return self._compiler.begin_calls(lark, tools, request.origin.tenant, other, request.guided_decoding_backend)


async def _awaited(coming: Future[Grammar]) -> Grammar:
    return coming.result() if coming.done() else await asyncio.wrap_future(coming)

"""Compiles what was asked for, by the first backend that can enforce it, and remembers what was asked for last."""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from pyagent.core.errors import PluginError, RequestError
from pyagent.core.grammars import HOOK, GrammarBackend, GrammarBackendFactory, GrammarSource, mask_bytes
from pyagent.core.messages import JsonObject, ResponseFormat, Tool
from pyagent.core.structured_output.errors import CANNOT_ENFORCE, GrammarError, told_briefly
from pyagent.core.structured_output.lark_source import schemas_in
from pyagent.core.structured_output.schema_checks import check_schema
from pyagent.core.structured_output.schema_limits import source_excess
from pyagent.core.structured_output.sources import calls_source, source_of
from pyagent.infrastructure.engine.grammar.choice import pick_first
from pyagent.infrastructure.engine.grammar.compilation import Compilation, CompileQueue
from pyagent.infrastructure.engine.grammar.grammar import Grammar
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
    from pyagent.infrastructure.engine.memory.ledger import Reservation

logger = logging.getLogger(__name__)

_MAX_CACHED = 64
_LIBRARY_BYTES, _BYTES_A_TOKEN, _BYTES_A_LETTER = 6_600_000, 390, 100
"""What llguidance takes for its code, a vocabulary and a schema, as measured: 6.6 MB of its file, 18.2 MB of heap for
49,152 tokens, 4.5 MB for 48 kB."""

_Key = tuple[str, GrammarSource, str]
"""Whose grammar it is, of what, and the backend that is asked first, where the request says one."""


class GrammarCompiler:
    """Compiles for one vocabulary. Any thread may call: a slow grammar delays only those who want the same one.

    With a reservation, estimated bytes are held there first; what is remembered goes when memory is short.
    """

    def __init__(
        self,
        vocabulary: ModelVocabulary,
        memory: Reservation | None = None,
        factories: Sequence[GrammarBackendFactory] = (GUIDANCE,),
        compile_seconds: float = 10.0,
    ) -> None:
        """With the model's one vocabulary, backends in the order they are asked, and how long a grammar may compile."""
        self._vocabulary = vocabulary
        self._memory = memory
        self._factories = factories
        self._backends: dict[str, GrammarBackend] = {}
        self._opening = threading.Lock()
        self._queue = CompileQueue(compile_seconds, self._opening.locked, self._replace)
        self._compiled: OrderedDict[_Key, Compilation] = OrderedDict()
        # The process's own account has a library that was there before the model.
        self._library_bytes = 0 if "llguidance" in sys.modules else _LIBRARY_BYTES
        self._lock = threading.Lock()  # never held while something compiles

    def check_backend(self, name: str) -> None:
        """Raise `RequestError` for a backend that is not among those of this model."""
        pick_first(name, self._factories)

    def begin(self, wanted: ResponseFormat, tenant: str = "", backend: str = "") -> Future[Grammar]:
        """Have a grammar compiled; it comes at its start, or as `RequestError` saying what cannot be enforced.

        The `backend` that is named is asked first.

        What was compiled for another tenant (`Origin.tenant`) is compiled again: the time would tell of it.
        """
        return self._begin(
            (tenant, source_of(wanted, self._vocabulary.control_token), backend), [*schemas_in(wanted)], _as_it_is
        )

    def begin_calls(
        self,
        calls: str,
        tools: Sequence[Tool],
        tenant: str = "",
        other: ResponseFormat | None = None,
        backend: str = "",
    ) -> Future[Grammar]:
        """Likewise for a Lark grammar of calls; with `other`, an answer that follows that will do instead of a call."""
        source = calls_source(calls, other, self._vocabulary.control_token)
        for schema in () if other is None else schemas_in(other):
            check_schema(schema)
        return self._begin((tenant, source, backend), [tool.function.parameters for tool in tools], _of_tools)

    def give_back(self) -> None:
        """Forget what is remembered, unless memory is being asked for just now."""
        if self._memory is None or not self._lock.acquire(blocking=False):  # two compilers may ask each other
            return
        try:
            while self._forget_oldest():
                pass  # until there is none
            self._memory.try_resize(min(self._memory.num_bytes, self._num_bytes()))
        finally:
            self._lock.release()

    def _begin(
        self, key: _Key, schemas: Sequence[JsonObject], told: Callable[[BaseException], BaseException]
    ) -> Future[Grammar]:
        """Return what one request waits for. It may be cancelled: what is compiled is of use to others."""
        with self._lock:
            coming = self._compiled.get(key)
            is_first = coming is None
            if coming is None:
                self._queue.check(key[0])
                self._make_room(key)
                coming = self._compiled[key] = Compilation(key, partial(self._compiled_from, key, schemas))
                coming.add_done_callback(self._forget_failed)
            self._compiled.move_to_end(key)
        if is_first:
            self._queue.add(coming)
        own = Future[Grammar]()
        coming.add_done_callback(lambda done: self._hand_over(done, own, told))
        return own

    def _hand_over(
        self, done: Future[Grammar], own: Future[Grammar], told: Callable[[BaseException], BaseException]
    ) -> None:
        if not own.set_running_or_notify_cancel():
            return
        try:
            with self._lock:  # one thread at a time looks at what they all share
                grammar = done.result().fork()
        except BaseException as error:  # noqa: BLE001 - the request that waits must get it
            own.set_exception(told(error))
        else:
            own.set_result(grammar)

    def _forget_failed(self, done: Future[Grammar]) -> None:
        assert isinstance(done, Compilation)
        if done.exception() is not None and not done.is_given_up:
            self._replace(done, None)

    def _replace(self, over: Compilation, compiled: Grammar | None) -> None:
        """Remember what came of a compilation after it was given up; forget it where nothing did."""
        with self._lock:
            if self._compiled.get(over.key) is not over:
                return
            del self._compiled[over.key]
            if compiled is not None:
                late = self._compiled[over.key] = Compilation(over.key, over.work)
                late.set_result(compiled)

    def _compiled_from(self, key: _Key, schemas: Sequence[JsonObject]) -> Grammar:
        _, source, backend = key
        for schema in schemas:
            check_schema(schema)
        if text := source_excess(source):
            raise RequestError(f"{CANNOT_ENFORCE}: {text}", param="response_format")
        return self._first_that_can(source, pick_first(backend, self._factories))

    def _first_that_can(self, source: GrammarSource, factories: Sequence[GrammarBackendFactory]) -> Grammar:
        """Compile by the first backend that can enforce it; raise the first one's reason where none can."""
        refusal: Exception | None = None
        for factory in factories:
            try:
                grammar = self._compiled_by(factory, source)
            except RequestError as error:
                refusal = refusal if isinstance(refusal, RequestError) else error
            except PluginError as error:
                logger.warning("%s", error)
                refusal = refusal or error
            else:
                if refusal is not None:
                    logger.info("the grammar backend %s enforces what another could not", factory.name)
                return grammar
        raise refusal or RequestError(f"{CANNOT_ENFORCE}: no grammar backend can be used here", param="response_format")

    def _compiled_by(self, factory: GrammarBackendFactory, source: GrammarSource) -> Grammar:
        """Compile by one backend. Raises `RequestError`, also for what allows no first token, or `PluginError`."""
        backend = self._backend(factory)
        try:
            grammar = Grammar(backend.compile(source), backend, factory.name, mask_bytes(self._vocabulary.size))
            has_start = any(grammar.mask())  # what has none would end the request in the middle of a step
        except (RequestError, GrammarError) as error:
            raise RequestError(str(error), param="response_format") from error
        except BaseException as error:  # a native panic is no `Exception`
            text = f"the grammar backend {factory.name!r} failed to compile: {type(error).__name__}"
            raise PluginError(text, plugin=factory.name, hook=HOOK) from error
        if not has_start:
            raise RequestError(told_briefly("NoExtension"), param="response_format")
        return grammar

    def _backend(self, factory: GrammarBackendFactory) -> GrammarBackend:
        with self._opening:
            found = self._backends.get(factory.name)
            if found is None:
                found = self._backends[factory.name] = factory.open(self._vocabulary)
        return found

    def _make_room(self, key: _Key) -> None:
        """Hold memory for one grammar more, at the cost of those remembered. Raises `CapacityError`."""
        if len(self._compiled) >= _MAX_CACHED:
            self._forget_oldest()
        if self._memory is None:
            return
        while not self._memory.try_resize(self._num_bytes(key)) and self._forget_oldest():
            pass
        self._memory.resize(self._num_bytes(key))

    def _forget_oldest(self) -> bool:
        """Forget the grammar used longest ago; whether there was one."""
        oldest = next((key for key, grammar in self._compiled.items() if grammar.done()), None)
        if oldest is not None:
            del self._compiled[oldest]
        return oldest is not None

    def _num_bytes(self, *more: _Key) -> int:
        sources = sum(len(source.text) for _, source, _ in (*self._compiled, *more))
        return self._library_bytes + _BYTES_A_TOKEN * self._vocabulary.size + _BYTES_A_LETTER * sources


def _as_it_is(error: BaseException) -> BaseException:
    return error


def _of_tools(error: BaseException) -> BaseException:
    """Return what tools are refused with."""
    if not isinstance(error, ValueError | RecursionError | RequestError):
        return error
    text = str(error) if isinstance(error, RequestError) else told_briefly(error)
    refusal = RequestError(text.replace("response_format", "tools", 1), param="tools")
    refusal.__cause__ = error
    return refusal

"""Compiles what was asked for, by the first backend that can enforce it, and remembers what was asked for last."""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyagent.core.errors import CapacityError, PluginError, RequestError
from pyagent.core.grammars import HOOK, GrammarBackend, GrammarBackendFactory, GrammarSource, mask_bytes
from pyagent.core.messages import JsonObject, ResponseFormat, Tool
from pyagent.core.structured_output.deep_stack import start_deep
from pyagent.core.structured_output.errors import CANNOT_ENFORCE, GrammarError, told_briefly
from pyagent.core.structured_output.lark_source import schemas_in
from pyagent.core.structured_output.schema_checks import check_schema
from pyagent.core.structured_output.schema_limits import source_excess
from pyagent.core.structured_output.sources import calls_source, source_of
from pyagent.infrastructure.engine.grammar.compilation import Compilation
from pyagent.infrastructure.engine.grammar.grammar import Grammar
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

logger = logging.getLogger(__name__)

_MAX_CACHED, _MAX_COMPILING, _MAX_STUCK = 64, 2, 2
_LIBRARY_BYTES, _BYTES_A_TOKEN, _BYTES_A_LETTER = 6_600_000, 390, 100
"""What llguidance takes for its code, a vocabulary and a schema, as measured: 6.6 MB of its file, 18.2 MB of heap for
49,152 tokens, 4.5 MB for 48 kB."""

_Key = tuple[str, GrammarSource]


class GrammarCompiler:
    """Compiles for one vocabulary. Any thread may call: a slow grammar delays only those who want the same one.

    With a reservation, estimated bytes are held there first; what is remembered goes when memory is short.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        memory: Reservation | None = None,
        factories: Sequence[GrammarBackendFactory] = (GUIDANCE,),
        compile_seconds: float = 10.0,
    ) -> None:
        """With the backends in the order in which they are asked, and how long a request waits for its grammar."""
        self._vocabulary = ModelVocabulary(tokenizer)
        self._memory = memory
        self._factories = factories
        self._backends: dict[str, GrammarBackend] = {}
        self._opening = threading.Lock()
        self._compile_seconds = compile_seconds
        self._slots = threading.BoundedSemaphore(_MAX_COMPILING)
        self._compiled: OrderedDict[_Key, Compilation] = OrderedDict()
        # The process's own account has a library that was there before the model.
        self._library_bytes = 0 if "llguidance" in sys.modules else _LIBRARY_BYTES
        self._lock = threading.Lock()  # never held while something compiles

    def compile(self, wanted: ResponseFormat, tenant: str = "") -> Grammar:
        """Return a grammar at its start. Raises `RequestError` saying what in the schema cannot be enforced.

        What was compiled for another tenant (`Origin.tenant`) is compiled again: the time would tell of it.
        """
        return self._compile((tenant, source_of(wanted)), [*schemas_in(wanted)])

    def compile_calls(
        self, calls: str, tools: Sequence[Tool], tenant: str = "", other: ResponseFormat | None = None
    ) -> Grammar:
        """Likewise for a Lark grammar of calls; with `other`, an answer that follows that will do instead of a call."""
        source = calls_source(calls, other)
        for schema in () if other is None else schemas_in(other):
            check_schema(schema)
        try:
            return self._compile((tenant, source), [tool.function.parameters for tool in tools])
        except (ValueError, RecursionError, RequestError) as error:
            text = str(error) if isinstance(error, RequestError) else told_briefly(error)
            raise RequestError(text.replace("response_format", "tools", 1), param="tools") from error

    def give_back(self) -> None:
        """Forget what is remembered, unless memory is being asked for just now."""
        if self._memory is None or not self._lock.acquire(blocking=False):  # two compilers may ask each other
            return
        try:
            while self._forget_oldest():
                pass
            self._memory.try_resize(min(self._memory.num_bytes, self._num_bytes()))
        finally:
            self._lock.release()

    def _compile(self, key: _Key, schemas: Sequence[JsonObject]) -> Grammar:
        with self._lock:
            coming = self._compiled.get(key)
            is_first = coming is None
            if coming is None:
                self._check_stuck(key[0])
                self._make_room(key)
                coming = self._compiled[key] = Compilation(self._slots)
            self._compiled.move_to_end(key)
        if is_first:
            # No thread can be ended from outside: one that goes on for ever takes none of those that prepare requests.
            start_deep(lambda: self._fulfil(coming, key, schemas), "pyagent-grammar")
        grammar = self._awaited(coming)
        with self._lock:  # one thread at a time looks at what they all share
            return grammar.fork()

    def _check_stuck(self, tenant: str) -> None:
        """Raise `CapacityError` while grammars of this tenant's go on compiling that were given up."""
        if sum(one.is_stuck for (owner, _), one in self._compiled.items() if owner == tenant) >= _MAX_STUCK:
            text = (
                "grammars asked for before still compile, though they were given up; no other is begun until they end"
            )
            raise CapacityError(text, retry_after_seconds=self._compile_seconds)

    def _awaited(self, coming: Compilation) -> Grammar:
        while True:
            try:
                return coming.result(0 if coming.is_stuck else self._compile_seconds)
            except TimeoutError:
                if (
                    coming.is_stuck or not self._opening.locked()
                ):  # a backend may import torch first, which is no fault of the request
                    coming.give_up()
                    text = f"{CANNOT_ENFORCE}: it did not compile within {self._compile_seconds:g} s; simplify it"
                    raise RequestError(text, param="response_format") from None

    def _fulfil(self, coming: Compilation, key: _Key, schemas: Sequence[JsonObject]) -> None:
        try:
            for schema in schemas:
                check_schema(schema)
            if text := source_excess(key[1]):
                raise RequestError(f"{CANNOT_ENFORCE}: {text}", param="response_format")  # noqa: TRY301
            coming.begin()
            coming.set_result(self._first_that_can(key[1]))
        except BaseException as error:  # noqa: BLE001 - the requests that wait must get it
            with self._lock:
                self._compiled.pop(key, None)
            coming.set_exception(error)
        finally:
            coming.leave()

    def _first_that_can(self, source: GrammarSource) -> Grammar:
        """Compile by the first backend that can enforce it; raise the first one's reason where none can."""
        refusal: Exception | None = None
        for factory in self._factories:
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
        sources = sum(len(source.text) for _, source in (*self._compiled, *more))
        return self._library_bytes + _BYTES_A_TOKEN * self._vocabulary.size + _BYTES_A_LETTER * sources

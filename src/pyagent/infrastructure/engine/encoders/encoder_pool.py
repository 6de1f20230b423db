"""The encoders of this process, by name, in the ledger of the other models: loaded when asked for, let go when idle.

What one takes is reserved before it is loaded. One in use is never unloaded; one that is idle goes when others need its
memory. Loading runs in a thread of its own: a caller who gives up leaves the load to the others that wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import CapacityError, ModelError, RequestError
from pyagent.core.messages import ModelInfo, ModelTask
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.engine.encoders.conversations import Conversations
from pyagent.infrastructure.engine.encoders.encoder_queue import Embed, EncoderQueue, LongText
from pyagent.infrastructure.engine.encoders.tasks import STEP_MARK
from pyagent.infrastructure.engine.load_watch import Load, LoadWatch
from pyagent.infrastructure.engine.memory.ledger import Ledger, Reservation
from pyagent.infrastructure.engine.memory.shared_load import SharedLoad, arrived

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyagent.infrastructure.engine.encoders.late_tokens import LateTokens
    from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens
    from pyagent.infrastructure.engine.options import EngineOptions

logger = logging.getLogger(__name__)

BATCH_TOKENS = 1024
"""Tokens computed together: enough for the kernels, few enough that a chat's step does not wait long for threads."""
_TOKENIZER_BYTES = 500
"""Expected for each token of a vocabulary."""
_CLOSED = "the engine is closed; make a new one"


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder in memory."""

    name: str
    model: _rust.EncoderModel
    tokens: TextTokens
    queue: EncoderQueue
    load_seconds: float
    task: ModelTask
    token_queue: EncoderQueue
    late: LateTokens | None
    """How queries and documents are read, of a model that ranks by its tokens' vectors."""
    step_token: int | None
    """The token at whose places the steps of a text are scored, of a process reward model."""
    conversations: Conversations

    @property
    def labels(self) -> Sequence[str]:
        """The labels of a model that ranks or classifies."""
        return self.model.info()["labels"] or ()

    @property
    def tasks(self) -> Sequence[tuple[str, str]]:
        """The tasks that texts may be of, each with what is put before them."""
        return self.model.info()["tasks"]

    @property
    def joins_poolings(self) -> bool:
        """Whether a text's vector is that of several poolings, one after another."""
        return "+" in self.model.info()["pooling"]

    def rows(self, packed: bytes) -> list[list[float]]:
        """Return what the texts gave, a row for each: its vector, or a number for each label."""
        numbers, width = array("f", packed).tolist(), self.width
        return [numbers[start : start + width] for start in range(0, len(numbers), width)]

    def info(self) -> ModelInfo:
        """Return what it is."""
        about = self.model.info()
        return ModelInfo(
            id=self.name,
            backend=f"native:{self.name}",
            context_length=about["max_tokens"],
            architecture=about["architecture"],
            size_bytes=about["weight_bytes"],
            is_loaded=True,
            task=self.task,
        )

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.model.info()["num_outputs"]

    def close(self) -> None:
        """Fail what waits, and free the memory."""
        self.queue.close()
        self.token_queue.close()
        self.model.close()


@dataclass(slots=True, eq=False)
class _Entry:
    name: str
    load: SharedLoad[LoadedEncoder]
    encoder: LoadedEncoder | None = None
    users: int = 0
    held: list[Reservation] = field(default_factory=list[Reservation])
    reading: list[Reservation] = field(default_factory=list[Reservation])
    """Of long texts on their way."""


class EncoderPool:
    """Encoders by name, in the memory of one ledger."""

    def __init__(self, locate: Callable[[str], Path], options: EngineOptions, ledger: Ledger, watch: LoadWatch) -> None:
        """`locate` finds a model's folder, fetching it if need be; it may block and raise `ModelError`."""
        self.watch = watch
        self._locate = locate
        self._options = options
        self._ledger = ledger
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def loaded(self) -> dict[str, LoadedEncoder]:
        """Return the encoders in memory now, by name."""
        with self._lock:
            return {name: entry.encoder for name, entry in self._entries.items() if entry.encoder is not None}

    def loading(self) -> list[str]:
        """Return those on their way into memory, by name."""
        with self._lock:
            return [name for name, entry in self._entries.items() if entry.load.running is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes that encoders hold of the ledger."""
        with self._lock:
            return sum(one.num_bytes for entry in self._entries.values() for one in (*entry.held, *entry.reading))

    @contextlib.asynccontextmanager
    async def using(self, name: str) -> AsyncGenerator[LoadedEncoder]:
        """The encoder, loaded when it is not, and kept as long as the block runs.

        Raises `RequestError` for a model that embeds nothing, `ModelError` when its files cannot be used or never fit,
        `CapacityError` when there is no room now.
        """
        with self._lock:
            if self._is_closed:
                raise CapacityError(_CLOSED)
            entry = self._entries.setdefault(name, _Entry(name, SharedLoad(f"pyagent-load-{name}", self._lock)))
            entry.users += 1
            coming = entry.encoder or self._loading(entry)
            for reservation in entry.held:
                reservation.touch()
        try:
            yield await arrived(coming)
        finally:
            with self._lock:
                entry.users -= 1

    def _loading(self, entry: _Entry) -> Future[LoadedEncoder]:
        held: list[Reservation] = []

        def load() -> LoadedEncoder:
            try:
                with self.watch.watching(entry.name) as watched:
                    return self._load(entry, held, watched)
            except BaseException:
                for reservation in held:
                    reservation.release()
                raise

        def keep(encoder: LoadedEncoder) -> None:
            entry.encoder, entry.held = encoder, held

        return entry.load.begin(load, keep)

    def _load(self, entry: _Entry, held: list[Reservation], watched: Load) -> LoadedEncoder:
        path, name = self._locate(entry.name), entry.name
        runner = self._options.runner
        threads = runner.threads or _rust.available_cores()
        try:
            about = _rust.describe_encoder(path, threads=threads, most_tokens=BATCH_TOKENS)
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=name) from error
        if about is None:
            text = f"native:{name} cannot embed; name an embedding model, such as native:all-minilm:l6-v2"
            raise RequestError(text, param="model")
        sizes = {
            "weights": about["weight_bytes"],
            "tokenizer": _TOKENIZER_BYTES * about["vocab_size"],
            "workspace": about["workspace_bytes"],
        }
        if sum(sizes.values()) > self._ledger.total_bytes:
            needs, total = format_bytes(sum(sizes.values())), format_bytes(self._ledger.total_bytes)
            text = f"{name} needs {needs}, but the engine may use {total}; raise engine.memory or take a smaller model"
            raise ModelError(text, model=name)
        for account, num_bytes in sizes.items():
            reclaim = partial(self._unload_for, entry) if account == "weights" else None
            held.append(self._ledger.reserve(f"{account}:{name}", num_bytes, reclaim))
        started = time.perf_counter()
        task = _rust.model_task(path)
        tokens = _text_tokens(path, about, task)
        late = _late_tokens(path, tokens) if about["ranks_by_tokens"] else None
        step_token = _step_token(path, tokens) if about["labels_steps"] else None
        watched.expect(sizes["weights"])
        try:
            model = _rust.EncoderModel.load(
                path, threads=threads, most_tokens=BATCH_TOKENS, isa=runner.isa, progress=watched.counter
            )
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=name) from error
        seconds = time.perf_counter() - started
        logger.info("the embedding model %s is loaded in %.1f s", name, seconds)

        def queue_of(compute: Embed, *, gives_tokens: bool) -> EncoderQueue:
            begin = partial(self._begin, name, model, gives_tokens=gives_tokens) if about["long_text_bytes"] else None
            return EncoderQueue(name, compute, BATCH_TOKENS, begin=begin, gives_tokens=gives_tokens)

        queue = queue_of(model.compute, gives_tokens=False)
        token_queue = queue_of(model.compute_tokens, gives_tokens=True)
        conversations = Conversations(path, about["vocab_size"])
        return LoadedEncoder(name, model, tokens, queue, seconds, task, token_queue, late, step_token, conversations)

    def _begin(self, name: str, model: _rust.EncoderModel, text: list[int], *, gives_tokens: bool) -> LongText:
        """Take a text that is longer than a batch, in memory of its own, which it holds until it is computed."""
        needed = model.long_text_bytes(len(text))
        with self._lock:
            entry = self._entries[name]
            own = sum(reservation.num_bytes for reservation in entry.held)
        if own + needed > self._ledger.total_bytes:
            needs, total = format_bytes(own + needed), format_bytes(self._ledger.total_bytes)
            why = f"{name} needs {needs} for a text of {len(text):,} tokens, but the engine may use {total}"
            raise RequestError(f"{why}; raise engine.memory or send shorter texts", param="input")
        with self._in_use(entry):
            held = self._ledger.reserve(f"workspace:{name}", needed)
        with self._lock:
            entry.reading.append(held)
        try:
            begun = model.begin(text, gives_tokens=gives_tokens)
        except BaseException:
            self._end_reading(entry, held)
            raise
        return LongText(partial(model.advance, begun), partial(self._end_reading, entry, held))

    def _end_reading(self, entry: _Entry, held: Reservation) -> None:
        with self._lock:
            entry.reading.remove(held)
        held.release()

    @contextlib.contextmanager
    def _in_use(self, entry: _Entry) -> Generator[None]:
        """Keep an encoder though its request is gone: its queue's thread, which cannot end itself, asks for memory."""
        with self._lock:
            entry.users += 1
        try:
            yield
        finally:
            with self._lock:
                entry.users -= 1

    def give_back(self, level: int) -> None:
        """Unload idle encoders (2); there is nothing else to free (1)."""
        if level > 1:
            with self._lock:
                entries = list(self._entries.values())
            for entry in entries:
                self._unload(entry)

    def unload(self, name: str) -> None:
        """Unload an encoder that no request uses. Blocks."""
        with self._lock:
            entry = self._entries.get(name)
        if entry is not None:
            self._unload(entry)

    def close(self) -> None:
        """Unload everything, also what is in use (its requests end); waits for what is loading. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            entries = list(self._entries.values())
            loading = [entry.load.running for entry in entries if entry.load.running is not None]
        for future in loading:
            future.exception()
        for entry in entries:
            self._unload(entry, is_forced=True)

    def _unload_for(self, entry: _Entry, num_bytes: int) -> None:
        del num_bytes  # an encoder goes whole
        self._unload(entry)

    def _unload(self, entry: _Entry, *, is_forced: bool = False) -> None:
        with self._lock:
            encoder = entry.encoder
            if encoder is None or (entry.users and not is_forced):
                return
            held, entry.held, entry.encoder = entry.held, [], None
        encoder.close()
        _rust.trim_memory()
        for reservation in held:
            reservation.release()


def _text_tokens(path: Path, about: _rust.EncoderShape, task: ModelTask) -> TextTokens:
    """Return a model's tokenizer; of a decoder that ranks with the template by which it is shown pairs."""
    from pyagent.infrastructure.engine.encoders.pair_template import PairTemplate
    from pyagent.infrastructure.engine.encoders.text_tokens import TextTokens

    pairs = PairTemplate.of(path, about["vocab_size"]) if task == "rank" else None
    if about["ranks_by_words"] and pairs is None:
        text = f"{path}: its chat template shows no messages of the roles query and document, by which it would rank"
        raise ModelError(text, model=str(path))
    closing, skips = about["closing_token"], about["skips_instructions"]
    sizes = (about["max_tokens"], about["vocab_size"])
    return TextTokens(path, *sizes, pairs, closing=closing, skips_instructions=skips)


def _late_tokens(path: Path, tokens: TextTokens) -> LateTokens:
    from pyagent.infrastructure.engine.encoders.late_tokens import LateTokens

    return LateTokens(path, tokens)


def _step_token(path: Path, tokens: TextTokens) -> int:
    found = tokens.token_id(STEP_MARK)
    if found is None:
        text = f"{path}: its tokenizer has no token {STEP_MARK}, at which a process reward model scores a step"
        raise ModelError(text, model=str(path))
    return found

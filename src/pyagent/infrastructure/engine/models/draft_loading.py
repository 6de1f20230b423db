"""A model's draft model: found by the settings, reserved and loaded with it, and of the same vocabulary.

What stands in the way is said as a fault of the setting, and the model goes on without it: drafts change no answer, so
none may be lost for them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyagent import _rust
from pyagent.core.errors import CapacityError, ConfigError, ModelError
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.engine.drafts.draft_model import DraftModel, largest_step
from pyagent.infrastructure.engine.models.memory_estimate import DraftMemory, Estimates
from pyagent.infrastructure.models.describe import task_of
from pyagent.infrastructure.models.names import is_path, place_of

if TYPE_CHECKING:
    from pyagent.core.runners.factory import LargestStep, ModelNeeds, RunnerFactory
    from pyagent.core.runners.runner import ModelRunner
    from pyagent.infrastructure.engine.memory.ledger import Reclaim, Reservation
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.engine.tokens import ModelTokenizer
    from pyagent.infrastructure.models.store import ModelStore

logger = logging.getLogger(__name__)

DRAFT_KEY = "engine.speculative.model"
"""The setting that names draft models."""
_HOW = f"name another, or say for which models it drafts: {DRAFT_KEY} = {{MODEL = DRAFT}}"


@dataclass(slots=True)
class DraftFault:
    """Why a model goes on without the draft model that the settings name; no text while nothing stands in the way.

    What was `told` as the server started is not warned of again.
    """

    target: str
    told: Collection[str] = ()
    text: str = ""

    @contextlib.contextmanager
    def noted(self) -> Generator[None]:
        """Note what fails in the block, and log it; nothing is raised."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the model itself can answer
            self.text = str(error) or type(error).__name__
            level = logging.INFO if self.text in self.told else logging.WARNING
            logger.log(level, "%s goes on without a draft model: %s", self.target, self.text)


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft model in memory."""

    name: str
    target: str
    path: Path
    runner: ModelRunner

    def model_for(self, target: ModelRunner, tokenizer: ModelTokenizer, options: EngineOptions) -> DraftModel:
        """Return what drafts for a target. Raises `ConfigError` where its vocabulary is not the same."""
        from pyagent.infrastructure.engine.tokens import ModelTokenizer  # late: a server that starts needs none

        own = ModelTokenizer.load(self.path, vocab_size=self.runner.vocab_size, options=options.tokenizer)
        check_vocabulary(tokenizer, own, self.target, self.name)
        ratio = self.runner.info.weight_bytes / max(1, target.info.weight_bytes)
        return DraftModel(self.runner, target.vocab_size, options.limits.most_running, ratio)

    def give_back(self, num_bytes: int) -> None:
        """Free so many bytes of KV memory that no sequence holds. Any thread."""
        self.runner.give_back(num_bytes)

    def drop_kv(self) -> None:
        """Forget what is cached and give its memory back."""
        self.runner.pool.clear_index()
        self.runner.give_back()

    def close(self) -> None:
        """Free its memory. Safe to call twice."""
        self.runner.close()


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """A draft model that is to be loaded beside `target`, and what it takes where that is known."""

    name: str
    target: str
    path: Path
    factory: RunnerFactory
    needs: ModelNeeds
    step: LargestStep
    most: Estimates = field(default_factory=lambda: Estimates(0, 0, 0, 0, 0, ()))

    @property
    def head(self) -> None:
        """It has pages of its own."""

    @property
    def weights(self) -> int:
        """Bytes of its weights, where they are known."""
        return self.most.weights

    def fitted(self, options: EngineOptions, room_bytes: int) -> FoundDraft:
        """Return it with what it takes of so many bytes. Raises `ConfigError` where they are too few."""
        most = replace(Estimates.of(self.needs, options, room_bytes), tokenizer=0)  # its target's is the same
        if most.least_bytes > room_bytes:
            text = f"{DRAFT_KEY}: {self.name} needs {format_bytes(most.least_bytes)} to draft for {self.target}"
            left = f"which leaves {format_bytes(max(0, room_bytes))} of engine.memory"
            raise ConfigError(f"{text}, {left}; raise that, or name a smaller one", key=DRAFT_KEY)
        return replace(self, most=most)

    def reserve(self, reserve: Callable[[str, int, Reclaim | None], Reservation], shrink: Reclaim) -> DraftMemory:
        """Hold what it takes, in accounts of its own; `shrink` is asked to free its KV memory."""
        return DraftMemory(
            weights=reserve("draft_weights", self.most.weights, None),
            workspace=reserve("draft_workspace", self.most.workspace, None),
            kv=reserve("draft_kv", self.most.least_kv, shrink),
        )

    def load(self, target: ModelRunner, options: EngineOptions, memory: DraftMemory | None) -> LoadedDraft | None:
        """Load it; None, and nothing is reserved, for a target whose runner takes no drafts. Raises `ConfigError`."""
        if memory is None:
            return None
        if not target.verifies_drafts:
            logger.warning("%s is not loaded: nothing drafts for %s, as it is run", self.name, self.target)
            memory.release()
            return None
        try:
            chosen = replace(options.runner, kv_bytes=self.most.take_kv(memory.kv, can_grow=True))
            runner = self.factory.load(self.path, chosen, self.step, memory.kv)
        except ModelError as error:
            raise ConfigError(f"{DRAFT_KEY}: {error}", key=DRAFT_KEY) from error
        try:
            self._check(runner)
            memory.weights.resize(runner.info.weight_bytes)
        except BaseException:
            runner.close()
            raise
        return LoadedDraft(self.name, self.target, self.path, runner)

    def _check(self, runner: ModelRunner) -> None:
        if runner.info.decoder_start is not None:
            text = f"{DRAFT_KEY}: {self.name} is an encoder-decoder, which drafts for no other model"
            raise ConfigError(f"{text}; {_HOW}", key=DRAFT_KEY)
        if not runner.computes_ahead:
            text = f"{DRAFT_KEY}: {self.name} cannot draft on the {self.factory.name} runner"
            raise ConfigError(f"{text}, as it cannot go back to before a draft; {_HOW}", key=DRAFT_KEY)


def find_draft(target: str, options: EngineOptions, locate: Callable[[str], Path]) -> FoundDraft | None:
    """Return the draft model that the settings name for a model, fetched if need be; None where there is none.

    Raises `ConfigError`.
    """
    name = None if options.drafts is None else options.drafts.model_for(target)
    if name is None:
        return None
    step = largest_step(options.limits.most_running, options.max_model_len)
    try:
        path = locate(name)
        _check_task(name, path)
        factory, needs = options.runners.runner_for(path, options.runner, step)
    except (CapacityError, ModelError) as error:
        raise ConfigError(f"{DRAFT_KEY}: {error}", key=DRAFT_KEY) from error
    if needs.device is not None:
        text = f"{DRAFT_KEY}: {name} would draft in the memory of {needs.device.name}, which a draft model cannot yet"
        raise ConfigError(f"{text}; engine.speculative.method = suffix copies drafts from texts there", key=DRAFT_KEY)
    return FoundDraft(name, target, path, factory, needs, step)


def fault_of_draft(name: str, store: ModelStore) -> str:
    """Return what is wrong with a draft model's name or file, empty where nothing is; fetches and loads nothing."""
    try:
        store.look(name)
        stored = store.find(name)
        path = stored.path if stored else place_of(name) if is_path(name) else None
        if path is not None:
            _rust.read_model_header(path, arrays=False)
            _rust.describe_drafter(path)
            _check_task(name, path)
    except ConfigError as error:
        return str(error)
    except (ModelError, _rust.ModelFileError) as error:
        return f"{DRAFT_KEY}: {error}"
    return ""


def _check_task(name: str, path: Path) -> None:
    if task_of(path) != "generate":
        raise ConfigError(f"{DRAFT_KEY}: {name} is an encoder, which writes no text; {_HOW}", key=DRAFT_KEY)


def check_vocabulary(target: ModelTokenizer, draft: ModelTokenizer, target_name: str, draft_name: str) -> None:
    """Raise `ConfigError` where a token of one model is not the same one of the other.

    Where one vocabulary is longer, what it has more is not looked at: it is never proposed.
    """
    ours, theirs = target.vocabulary(), draft.vocabulary()
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((place for place, (mine, other) in pairs if mine != other), None)
    if place is None:
        return
    shown = f"token {place} is {_shown(theirs[place])} there and {_shown(ours[place])} in {target_name}"
    raise ConfigError(f"{DRAFT_KEY}: {draft_name} has another vocabulary: {shown}; {_HOW}", key=DRAFT_KEY)


def _shown(token: bytes) -> str:
    return repr(token[:40].decode(errors="replace")) if token else "none"

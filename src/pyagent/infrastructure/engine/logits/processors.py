"""The logits processors of a model: which there are, which always run, and what a request's names and args become.

Any thread may make them; a step's rows go through them in `step_logits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyagent.core.errors import ConfigError, PyAgentError, RequestError, UnsupportedError
from pyagent.core.logits_processors import BroughtLogitsProcessor, Vocabulary
from pyagent.core.nearest import did_you_mean
from pyagent.core.sampling_params import LogitsProcessorSpec, SamplingParams
from pyagent.infrastructure.engine.logits.bounded_thread import BoundedThread
from pyagent.infrastructure.engine.logits.row_processors import BatchProcessor, RowProcessor
from pyagent.infrastructure.engine.logits.step_logits import StepLogits

if TYPE_CHECKING:
    from pyagent.core.messages import JsonObject

_PARAM = "logits_processors"
_KEY = "engine.logits_processors"
_TIMES_AS_LONG = 10
"""Making a processor may take so many times as long as calling it: tables of a whole vocabulary are made then."""


@dataclass(frozen=True, slots=True)
class LogitsOptions:
    """The processors that plugins bring, those that run for every request, and how long each may take in a step."""

    brought: Mapping[str, BroughtLogitsProcessor] = field(default_factory=dict[str, BroughtLogitsProcessor])
    always: Sequence[LogitsProcessorSpec] = ()
    limit_seconds: float = 5.0


class LogitsProcessors:
    """Makes what changes the rows of a model's requests."""

    def __init__(self, options: LogitsOptions, vocabulary: Vocabulary, *, is_possible: bool) -> None:
        """Where `is_possible` is false, the model's runner shows no logits."""
        self.step = StepLogits(options.limit_seconds)
        self._is_possible = is_possible
        self._options = options
        self._vocabulary = vocabulary
        batched = [brought for brought in options.brought.values() if brought.is_batched]
        self._batches = {brought.name: BatchProcessor(brought, vocabulary) for brought in batched}

    def runs_for(self, params: SamplingParams) -> bool:
        """Whether a request has any."""
        return bool(self._options.always or params.logits_processors)

    def make(self, asked: Sequence[LogitsProcessorSpec], *, is_greedy: bool) -> tuple[RowProcessor, ...]:
        """Return the processors of a request's first answer, ready. Blocks while plugins make them.

        With `is_greedy`, those that cannot change the best token are left out. Raises `RequestError` for a name or args
        that cannot be, `PluginError` where a plugin fails.
        """
        always = self._options.always
        if not (always or asked):
            return ()
        if not self._is_possible:
            text = "this model's runner lets no logits processors change its logits"
            raise UnsupportedError(text, backend="native", fields=[_PARAM])
        named = [self._named(spec) for spec in asked]
        found = [*map(self._one, always), *named]
        used = [one for one in found if not (is_greedy and one.brought.is_argmax_invariant)]
        for processor in used:
            self._make_ready(processor, is_setting=processor not in named)
        return tuple(one for one in used if not one.changes_nothing)

    def _named(self, spec: LogitsProcessorSpec) -> RowProcessor:
        """Return a processor that a request names, checked."""
        if any(one.name == spec.name for one in self._options.always):
            text = f"the logits processor {spec.name!r} runs for every request already (engine.logits_processors)"
            raise RequestError(f"{text}; leave it out", param=_PARAM)
        find_processor(spec.name, self._options.brought, _unknown).check_args(spec.args, _PARAM)
        return self._one(spec)

    def _one(self, spec: LogitsProcessorSpec) -> RowProcessor:
        brought = self._options.brought[spec.name]
        return RowProcessor(brought, spec.args, self._vocabulary, self._batches.get(spec.name))

    def _make_ready(self, processor: RowProcessor, *, is_setting: bool) -> None:
        """Have the plugin make what the processor needs, in bounded time."""
        brought, failed = processor.brought, list[BaseException]()
        if self.step.is_stuck(brought.name):
            raise brought.error("took too long, and is busy still; it is asked again when that call is over")

        def make() -> None:
            try:
                processor.make()
            except BaseException as error:  # noqa: BLE001 - a plugin's failure, SystemExit too
                failed.append(error)

        limit = self._options.limit_seconds * _TIMES_AS_LONG
        thread = BoundedThread(limit)
        overdue = thread.run([make])
        thread.close()
        if overdue:
            raise brought.error(f"took longer than {limit:g} s to be made")
        if failed:
            raise _as_ours(failed[0], brought, is_setting=is_setting) from failed[0]


def find_processor(
    name: str, brought: Mapping[str, BroughtLogitsProcessor], unknown: Callable[[str], PyAgentError]
) -> BroughtLogitsProcessor:
    """Return a processor by its name; raises what `unknown` makes of a sentence where there is none."""
    if name not in brought:
        known = f"there are {', '.join(sorted(brought))}" if brought else "no plugin brings any"
        raise unknown(f"there is no logits processor {name!r:.80}; {did_you_mean(name, brought, known)}")
    return brought[name]


def pick_logits(
    always: Mapping[str, JsonObject], brought: Mapping[str, BroughtLogitsProcessor], limit_seconds: float
) -> LogitsOptions:
    """Return the options of settings. Raises `ConfigError` for an unknown processor, and for wrong args."""
    specs = [LogitsProcessorSpec(name, args) for name, args in always.items()]
    for spec in specs:
        try:
            find_processor(spec.name, brought, _unknown_setting).check_args(spec.args, _PARAM)
        except RequestError as error:
            raise ConfigError(f"{_KEY}: {error}", key=_KEY) from error
    return LogitsOptions(brought, specs, limit_seconds)


def _unknown(text: str) -> PyAgentError:
    return RequestError(text, param=_PARAM)


def _unknown_setting(text: str) -> PyAgentError:
    return ConfigError(f"{_KEY}: {text}", key=_KEY)


def _as_ours(error: BaseException, brought: BroughtLogitsProcessor, *, is_setting: bool) -> PyAgentError:
    """Return why a processor cannot be made: `ValueError` says that of its args, all else is the plugin's fault."""
    if not isinstance(error, ValueError):
        return brought.error(f"cannot be made: {type(error).__name__}: {error}")
    text = f"the logits processor {brought.name!r} cannot take these args: {error}"
    return ConfigError(f"{_KEY}: {text}", key=_KEY) if is_setting else RequestError(text, param=_PARAM)

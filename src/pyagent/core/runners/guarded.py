"""A plugin's runner factory, contained: what it raises or returns wrongly fails the load of that model, by name.

The runner itself is not wrapped: the engine's loop calls it directly.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from pyagent.core.errors import PluginError, PyAgentError
from pyagent.core.runners.factory import (
    ChoosyRunnerFactory,
    KvReservation,
    LargestStep,
    ModelNeeds,
    RunnerFactory,
    RunnerOptions,
)
from pyagent.core.runners.runner import ModelRunner, Runner, RunnerInfo

_HOOK = "pyagent_register_runners"
_MEMBERS = sorted(
    name for kind in (Runner, ModelRunner) for name in vars(kind) if not name.startswith("_") and name != "info"
)


class GuardedRunnerFactory:
    """Loads models as the factory does; its failures are `PluginError`s, or errors that say who can act."""

    def __init__(self, factory: RunnerFactory, plugin: str) -> None:
        self._factory = factory
        self._plugin = plugin
        self.name = factory.name

    def unavailable_reason(self) -> str | None:
        """Return why it cannot run on this machine; None where it can."""
        with self._named("say whether it can run here"):
            reason = cast("object", self._factory.unavailable_reason())
        return self._checked(reason, "it cannot run here")

    def passed_over_reason(self) -> str | None:
        """Return why `auto` takes another runner; None where it may take this one."""
        if not isinstance(self._factory, ChoosyRunnerFactory):
            return None
        with self._named("say whether it is the best here"):
            reason = cast("object", self._factory.passed_over_reason())
        return self._checked(reason, "another is better here")

    def estimate(self, path: Path, options: RunnerOptions, step: LargestStep) -> ModelNeeds:
        """Return what a model will take."""
        with self._named(f"estimate the memory of {path}"):
            needs = cast("object", self._factory.estimate(path, options, step))
        if not isinstance(needs, ModelNeeds):
            raise self._error(f"estimated {needs!r:.80} for {path}, expected ModelNeeds")
        return needs

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> ModelRunner:
        """Load a model."""
        with self._named(f"load {path}"):
            runner = self._factory.load(path, options, step, kv)
            missing = [name for name in _MEMBERS if not hasattr(runner, name)]
            has_info = isinstance(cast("object", getattr(runner, "info", None)), RunnerInfo)
        if missing or not has_info:
            lacks = ", ".join([*missing, *(() if has_info else ("info, a RunnerInfo",))])
            raise self._error(f"loaded {path} as a {type(runner).__name__}, which is no ModelRunner: it lacks {lacks}")
        return runner

    def _checked(self, reason: object, what: str) -> str | None:
        if reason is not None and not isinstance(reason, str):
            raise self._error(f"gave {reason!r:.80} as the reason why {what}, expected a text or None")
        return reason

    @contextmanager
    def _named(self, what: str) -> Generator[None]:
        try:
            yield
        except (PyAgentError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._error(f"failed to {what}: {type(error).__name__}: {error}") from error

    def _error(self, what: str) -> PluginError:
        text = f"plugin {self._plugin!r} {what}; its runner is {self.name!r}: set engine.runner to another, such as cpu"
        return PluginError(text, plugin=self._plugin, hook=_HOOK)

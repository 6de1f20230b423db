"""Which runner a model gets: the one that `engine.runner` names, or with `auto` the first that can run it here.

Knows factories, no device. Runners come in the plugins' order, the CPU's last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyagent.core.errors import CapacityError, ConfigError, ModelError, PluginError
from pyagent.core.nearest import did_you_mean
from pyagent.core.runners.attention import KEY as ATTENTION_KEY
from pyagent.core.runners.attention import AttentionBackend, AttentionChoice
from pyagent.core.runners.factory import ChoosyRunnerFactory, LargestStep, ModelNeeds, RunnerFactory, RunnerOptions
from pyagent.infrastructure.engine.runners.cpu_factory import CPU

logger = logging.getLogger(__name__)

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """Runners in the order in which they are tried; one alone where the settings name it, and not `is_auto`."""

    factories: tuple[RunnerFactory, ...] = (CPU,)
    is_auto: bool = False

    def runner_for(self, path: Path, options: RunnerOptions, step: LargestStep) -> tuple[RunnerFactory, ModelNeeds]:
        """Return the runner that a model gets, and what the model will take there.

        Raises `ConfigError` when no runner is available, and what the last one says when none can run the model.
        """
        *others, last = self.available()
        for factory in others:
            try:
                return factory, factory.estimate(path, options, step)
            except (CapacityError, ConfigError, ModelError, PluginError) as error:
                logger.warning("the runner %s cannot run %s, the next one is asked: %s", factory.name, path, error)
        return last, last.estimate(path, options, step)

    def available(self) -> list[RunnerFactory]:
        """Return the runners that can run on this machine. Raises `ConfigError` with the reasons when there is none."""
        found = [(factory, self._unavailable_reason(factory)) for factory in self.factories]
        if not any(reason is None for _, reason in found):
            reasons = "; ".join(f"{factory.name}: {reason}" for factory, reason in found)
            raise ConfigError(f"engine.runner: no runner can run here; {reasons}", key="engine.runner")
        return [factory for factory, reason in found if reason is None]

    def unavailable(self) -> Iterator[tuple[str, str]]:
        """Yield the names of runners that cannot run on this machine, with the reasons."""
        for factory in self.factories:
            if (reason := self._unavailable_reason(factory)) is not None:
                yield factory.name, reason

    def _unavailable_reason(self, factory: RunnerFactory) -> str | None:
        """Return why a runner is not asked; a plugin that fails to say is not."""
        try:
            if self.is_auto and isinstance(factory, ChoosyRunnerFactory):
                reason = factory.passed_over_reason()
                if reason is not None:
                    return reason
            return factory.unavailable_reason()
        except PluginError as error:
            return str(error)


def pick_runners(name: str, factories: Mapping[str, RunnerFactory]) -> RunnerChoice:
    """Return the runners that the settings allow. Raises `ConfigError` for a name that no plugin brings.

    The CPU's is there even when the plugin that brings it is disabled.
    """
    factories = {**factories, CPU.name: factories.get(CPU.name, CPU)}
    if name == AUTO:
        ordered = sorted(factories.values(), key=lambda factory: factory.name == CPU.name)
        return RunnerChoice(tuple(ordered), is_auto=True)
    if name not in factories:
        hint = did_you_mean(name, (AUTO, *factories), f"there are {', '.join((AUTO, *sorted(factories)))}")
        raise ConfigError(f"engine.runner: no plugin brings the runner {name!r}; {hint}", key="engine.runner")
    return RunnerChoice((factories[name],))


def pick_attention(name: str, backends: Mapping[str, AttentionBackend]) -> AttentionChoice:
    """Return the attention backends that the settings allow. Raises `ConfigError` for a name that no plugin brings."""
    known = tuple(backends.values())
    if name == AUTO:
        return AttentionChoice(known, known=known)
    if name not in backends:
        hint = did_you_mean(name, (AUTO, *backends), f"there are {', '.join((AUTO, *sorted(backends)))}")
        text = f"{ATTENTION_KEY}: no plugin brings the attention backend {name!r}; {hint}"
        raise ConfigError(text, key=ATTENTION_KEY)
    return AttentionChoice((backends[name],), is_auto=False, known=known)

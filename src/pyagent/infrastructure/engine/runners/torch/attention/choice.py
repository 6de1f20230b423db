"""Which attention backend a model gets: the one that the settings name, or the quickest that a trial finds right."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.runners.attention import (
    KEY,
    AttentionBackend,
    AttentionChoice,
    AttentionShape,
    ChoosyAttentionBackend,
    InvariantAttentionBackend,
    SinkAttentionBackend,
)
from pyagent.infrastructure.engine.runners.torch.attention import Attend, plain
from pyagent.infrastructure.engine.runners.torch.attention.trial import AttentionTrial, first_line
from pyagent.infrastructure.engine.runners.torch.attention_backends import BACKENDS

logger = logging.getLogger(__name__)


class ChosenAttention(NamedTuple):
    """What computes attention, and what `engine.attention` calls it."""

    name: str
    attend: Attend


def check_attention(choice: AttentionChoice, shape: AttentionShape, *, is_invariant: bool) -> None:
    """Raise `ConfigError` where the backend that is named cannot compute a model's attention here. Tries nothing."""
    if is_invariant:
        _invariant_forms(choice)
    if not choice.is_auto:
        _named(choice, shape)


def _named(choice: AttentionChoice, shape: AttentionShape) -> AttentionBackend:
    (named,) = choice.backends
    if (reason := _unavailable_reason(named, shape)) is not None:
        raise ConfigError(f"{KEY} is {named.name}, which cannot be used here: {reason}", key=KEY)
    return named


def _unavailable_reason(backend: AttentionBackend, shape: AttentionShape) -> str | None:
    """Return why a backend cannot compute such a model's attention here; None where it can."""
    if shape.has_sinks and not (isinstance(backend, SinkAttentionBackend) and backend.takes_sinks):
        return "the model's attention has sinks, which it does not say that it takes"
    return backend.unavailable_reason(shape)


def _invariant_forms(choice: AttentionChoice) -> list[InvariantAttentionBackend]:
    backends = BACKENDS if choice.is_auto else choice.backends
    forms = [backend for backend in backends if isinstance(backend, InvariantAttentionBackend)]
    if not forms:
        text = f"{KEY} is {choice.backends[0].name}, which has no form for engine.batch_invariant"
        raise ConfigError(f"{text}; set it to auto, triton or torch", key=KEY)
    return forms


@torch.inference_mode()
def choose_attention(choice: AttentionChoice, trial: AttentionTrial) -> ChosenAttention:
    """Return what computes a model's attention, with its name. Raises `ConfigError` where the one named cannot."""
    if not choice.is_auto:
        named = _named(choice, trial.shape)
        return ChosenAttention(named.name, named.open(trial.shape))
    if trial.device.type != "cuda":
        return _first_right(_usable(BACKENDS, trial), trial)  # in their order: measuring takes a CPU too long
    return quickest_right(_usable(choice.backends or BACKENDS, trial), trial)


@torch.inference_mode()
def choose_invariant_attention(choice: AttentionChoice, trial: AttentionTrial) -> ChosenAttention:
    """Return what computes each query by itself: the first form of its kind that a trial finds right.

    Raises `ConfigError` for a backend named that has none, or where none is found right.
    """
    faults: list[str] = []
    for backend in _invariant_forms(choice):
        fault = _unavailable_reason(backend, trial.shape)
        if fault is None and choice.is_auto and isinstance(backend, ChoosyAttentionBackend):
            fault = backend.passed_over_reason(trial.shape)
        if fault is None:
            attend = backend.open_invariant(trial.shape)
            fault = trial.fault(attend) or trial.variance(attend)
            if fault is None:
                logger.info("attention by %s, batch-invariant", backend.name)
                return ChosenAttention(backend.name, attend)
        faults.append(f"{backend.name}: {fault}")
    text = f"engine.batch_invariant cannot be kept on this machine: no attention is right ({'; '.join(faults)})"
    raise ConfigError(f"{text}; set it to false", key="engine.batch_invariant")


def _first_right(attends: Iterable[tuple[str, Attend]], trial: AttentionTrial) -> ChosenAttention:
    """Return the first that the trial finds right, or the plain form."""
    for name, attend in attends:
        if (fault := trial.fault(attend)) is None:
            return ChosenAttention(name, attend)
        logger.warning("attention is not by %s, which may be quicker: %s", name, fault)
    return ChosenAttention("torch", plain.attend)


def quickest_right(attends: Iterable[tuple[str, Attend]], trial: AttentionTrial) -> ChosenAttention:
    """Return the quickest of those that the trial finds right, or the plain form; the log tells of all."""
    right: dict[str, Attend] = {}
    seconds: dict[str, tuple[float, float]] = {}
    for name, attend in attends:
        fault = trial.fault(attend)
        if fault is None:
            try:
                seconds[name] = trial.seconds(attend)
            except Exception as error:  # noqa: BLE001 - a larger batch may take memory that is not there
                fault = first_line(error)
        if fault is None:
            right[name] = attend
        else:
            logger.warning("attention is not by %s, which may be slower: %s", name, fault)
    if not right:
        return ChosenAttention("torch", plain.attend)
    name = quickest(seconds)
    shown = ", ".join(f"{other} {1e6 * times[0]:.0f} and {1e6 * times[1]:.0f}" for other, times in seconds.items())
    logger.info("attention by %s (us for a layer's decode and prefill: %s)", name, shown)
    return ChosenAttention(name, right[name])


def quickest(seconds: Mapping[str, tuple[float, ...]]) -> str:
    """Return the name with the least sum of times, each told as a multiple of the best of its kind."""
    best = [min(kind) for kind in zip(*seconds.values(), strict=True)]
    return min(seconds, key=lambda name: sum(one / least for one, least in zip(seconds[name], best, strict=True)))


def _usable(backends: tuple[AttentionBackend, ...], trial: AttentionTrial) -> Iterator[tuple[str, Attend]]:
    """Yield the backends that can compute the model's attention here, opened."""
    for backend in backends:
        reason = _unavailable_reason(backend, trial.shape)
        if reason is None and isinstance(backend, ChoosyAttentionBackend):
            reason = backend.passed_over_reason(trial.shape)
        if reason is not None:
            logger.debug("attention is not by %s: %s", backend.name, reason)
            continue
        try:
            yield backend.name, backend.open(trial.shape)
        except PluginError as error:
            logger.warning("%s; attention is by another", error)


def told_of(choice: AttentionChoice) -> str | None:
    """Return the name that tells other ranks' processes of a choice, None for any. Raises `ConfigError` for a plugin's.

    Those processes load no plugins.
    """
    if choice.is_auto:
        return None
    (named,) = choice.backends
    if all(named.name != own.name for own in BACKENDS):
        text = f"{KEY} is {named.name}, a plugin's, which the processes of other ranks do not have"
        raise ConfigError(f"{text}; set it to auto, {', '.join(own.name for own in BACKENDS)}", key=KEY)
    return named.name


def choice_told(name: str | None) -> AttentionChoice:
    """Return the choice that `told_of` tells: among the runner's own."""
    return AttentionChoice(tuple(own for own in BACKENDS if name in {None, own.name}), is_auto=name is None)

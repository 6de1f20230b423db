"""The engine's options and the settings they are made from."""

from __future__ import annotations

from pyagent.assembly import make_host
from pyagent.core.settings import Engine, Settings
from pyagent.infrastructure.engine.options import SchedulerLimits
from pyagent.infrastructure.engine.plugin import options_of


def test_scheduler_limits_default_to_the_settings() -> None:
    """An engine made in Python batches and queues as much as one made from default settings."""
    limits, settings = SchedulerLimits(), Engine()
    assert limits.max_num_seqs == settings.max_num_seqs
    assert limits.max_num_batched_tokens == settings.max_num_batched_tokens
    assert limits.max_num_waiting == settings.max_num_waiting


def test_bound_of_the_queue_reaches_the_engine() -> None:
    """`engine.max_num_waiting` is the bound that the engine refuses by."""
    settings = Settings(engine=Engine(max_num_waiting=3))
    options = options_of(settings, make_host(settings))
    assert options.limits.max_num_waiting == 3

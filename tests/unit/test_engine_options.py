"""The engine's options and the settings they are made from."""

from __future__ import annotations

from pyagent.core.settings import Engine
from pyagent.infrastructure.engine.options import SchedulerLimits


def test_scheduler_limits_default_to_the_settings() -> None:
    """An engine made in Python batches as many sequences and tokens as one made from default settings."""
    limits, settings = SchedulerLimits(), Engine()
    assert limits.max_num_seqs == settings.max_num_seqs
    assert limits.max_num_batched_tokens == settings.max_num_batched_tokens

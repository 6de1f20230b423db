"""Backends of encoders by their paths, and ways to ask one of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.models.describe import task_of


def native(*paths: Path, memory: int = 1 << 30) -> NativeBackend:
    """A backend of models by their paths."""
    pool = ModelPool(Path, EngineOptions(), Ledger(memory))
    names = [str(path) for path in paths]
    return NativeBackend(names, LocalEngine(pool), look=lambda _: "", task_of=lambda name: task_of(Path(name)))


def on(make: Callable[[], Any], work: Callable[[Any], Any]) -> Any:
    """Do something with a backend of its own, and close it."""

    async def whole() -> Any:
        backend = make()
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(whole())

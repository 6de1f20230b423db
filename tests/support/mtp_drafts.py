"""A model with a head that drafts, whose engine asks it in every step and verifies all that it drafts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from support.draft_models import EagerlyDrafted
from support.native import options, running

from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.drafts.mtp_head import MtpHead
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.options import EngineOptions


@asynccontextmanager
async def eagerly_headed(
    path: Path, chosen: EngineOptions | None = None, copies: float = 0.2
) -> AsyncIterator[tuple[NativeBackend, EagerlyDrafted]]:
    """A backend whose engine drafts so."""
    async with running(path, replace(chosen or options(), drafts=DraftOptions())) as backend:
        engine = (await backend.load()).engine
        head = engine.speculation.model.model
        assert isinstance(head, MtpHead)
        engine.speculation = eager = EagerlyDrafted(engine, head, copies)
        yield backend, eager

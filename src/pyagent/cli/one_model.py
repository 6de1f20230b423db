"""One model asked alone: where it lies, a text to ask it by, and a chain that has no other."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyagent.cli.startup import read_settings
from pyagent.core.errors import ModelError, RequestError

if TYPE_CHECKING:
    from pyagent.core.chain.chain import Chain

_TEXT_FILE = Path(__file__).parent / "demo_text.txt"
_TEXT_CHARS = 8_000
"""Of the text in the wheel: about 1,600 tokens, seconds of a small model."""
_T = TypeVar("_T")


def sample_text(file: Path | None) -> str:
    """Return a file's text for the model to read; without a file, that of the wheel."""
    try:
        text = (file or _TEXT_FILE).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{file} is not UTF-8 text: {error.reason}", param="text") from error
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}", param="text") from error
    if not text.strip():
        raise RequestError(f"{file}: there is no text in it", param="text")
    return text if file else text[:_TEXT_CHARS]


def local_path(source: str, config: Path | None) -> Path:
    """Return the path of a model that is here; nothing is fetched."""
    from pyagent.infrastructure.models.names import is_path
    from pyagent.infrastructure.models.store import ModelStore

    if not is_path(source) and os.path.exists(source):
        return Path(source)
    store = ModelStore.of(read_settings(config))
    source = store.meant(source)
    if not is_path(source) and store.find(source) is None:
        store.look(source)  # an unknown name says so itself
        raise ModelError(f"{source} is not here yet; fetch it first: pyagent models pull {source}", model=source)
    return store.locate(source)


def ask_alone(path: Path, config: Path | None, ask: Callable[[Chain], Awaitable[_T]]) -> _T:
    """Return what a chain of this model alone answers."""
    import asyncio

    from pyagent.assembly import make_chain, make_host

    settings = read_settings(config, model=str(path.absolute()))

    async def answered() -> _T:
        made = make_chain(settings, make_host(settings))
        try:
            return await ask(made)
        finally:
            await made.close()

    return asyncio.run(answered())

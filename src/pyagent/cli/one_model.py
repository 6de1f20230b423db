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
    from pyagent.infrastructure.models.store import ModelStore

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


def resolved_name(asked: str, store: ModelStore) -> str:
    """Return the name or the path of the model that is meant: the store's, or else a file or folder of this name here.

    A name that means neither comes back as it is. Raises `RequestError` where it means both, or several.
    """
    from pyagent.infrastructure.models.names import is_path

    name = store.meant(asked)
    if is_path(asked) or not os.path.exists(asked):
        return name
    here, found = os.path.join(os.curdir, asked), store.find(name)
    if found is None and name not in store.catalog:
        return here
    if found is not None and os.path.samefile(found.path, asked):
        return name
    other = f"the model {name} at {found.path}" if found else f"the model {name}, which can be fetched"
    text = f"{asked!r:.200} may be {other}, or {here}; write {here} for that, and the other by its "
    raise RequestError(text + ("whole name" if name != asked else "path"), param="model", code="model_not_found")


def local_name(asked: str, store: ModelStore) -> str:
    """As `resolved_name`, of a model that is here; nothing is fetched. Raises `ModelError` where it is not."""
    from pyagent.infrastructure.models.names import is_path

    name = resolved_name(asked, store)
    if not is_path(name) and store.find(name) is None:
        store.look(name)  # an unknown name says so itself
        raise ModelError(f"{name} is not here yet; fetch it first: pyagent models pull {name}", model=name)
    return name


def local_path(source: str, config: Path | None) -> Path:
    """Return the path of a model that is here; nothing is fetched."""
    from pyagent.infrastructure.models.store import ModelStore

    store = ModelStore.of(read_settings(config))
    return store.locate(local_name(source, store))


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

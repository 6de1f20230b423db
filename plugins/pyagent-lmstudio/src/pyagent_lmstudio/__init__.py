"""The PyAgent plugin for LM Studio: registers the backend scheme `lmstudio`. The SDK is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, Link, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Settings


def make_backend(link: Link, settings: Settings) -> Backend:
    """The backend of a chain entry `lmstudio`, `lmstudio:MODEL` or `lmstudio:URL#MODEL`."""
    from pyagent_lmstudio.backend import LMStudioBackend

    url, _, model = link.target.partition("#") if link.target.startswith("http") else ("", "", link.target)
    return LMStudioBackend(
        url,
        model=model,
        name=str(link),
        connect_seconds=settings.backends.connect_timeout_seconds,
        read_seconds=settings.backends.timeout_seconds,
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `lmstudio`."""
    return {"lmstudio": make_backend}

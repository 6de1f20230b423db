"""The PyAgent plugin for LM Studio: registers the backend scheme `lmstudio`. The SDK is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, LinkSpec, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Settings


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry `lmstudio`, `lmstudio:MODEL` or `lmstudio:URL#MODEL`, options after a `?`."""
    from pyagent_lmstudio.backend import LMStudioBackend
    from pyagent_lmstudio.options import read_options

    place = link.target.partition("?")[0]
    url, _, model = place.partition("#") if place.startswith("http") else ("", "", place)
    return LMStudioBackend(
        url,
        model=model,
        name=str(link),
        options=read_options(link),
        connect_seconds=settings.backends.connect_timeout_seconds,
        read_seconds=settings.backends.timeout_seconds,
        unsupported=settings.backends.unsupported,
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `lmstudio`."""
    return {"lmstudio": make_backend}

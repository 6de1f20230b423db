"""The PyAgent plugin for Ollama: registers the backend scheme `ollama`. The client is imported when first used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, LinkSpec, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Settings


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry `ollama`, `ollama:MODEL` or `ollama:URL#MODEL`, options after a `?`.

    Without a URL the server is that of `OLLAMA_HOST`, as for Ollama's own tools; `OLLAMA_API_KEY` goes to it.
    """
    from pyagent.plugin import read_headers
    from pyagent_ollama.backend import OllamaBackend
    from pyagent_ollama.options import read_options, url_of

    place = link.target.partition("?")[0]
    is_url = place.startswith(("http://", "https://"))
    url, _, model = place.partition("#") if is_url else (url_of(os.environ.get("OLLAMA_HOST", "")), "", place)
    return OllamaBackend(
        url,
        model=model,
        name=str(link),
        api_key=os.environ.get("OLLAMA_API_KEY", ""),
        options=read_options(link),
        connect_seconds=settings.backends.connect_timeout_seconds,
        read_seconds=settings.backends.timeout_seconds,
        unsupported=settings.backends.unsupported,
        headers=read_headers(link),
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `ollama`."""
    return {"ollama": make_backend}

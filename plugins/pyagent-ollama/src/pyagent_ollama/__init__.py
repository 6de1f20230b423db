"""The PyAgent plugin for Ollama: registers the backend scheme `ollama`. The client is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, Link, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Settings

DEFAULT_URL = "http://127.0.0.1:11434"


def make_backend(link: Link, settings: Settings) -> Backend:
    """The backend of a chain entry `ollama`, `ollama:MODEL` or `ollama:URL#MODEL`."""
    from pyagent_ollama.backend import OllamaBackend

    is_url = link.target.startswith(("http://", "https://"))
    url, _, model = link.target.partition("#") if is_url else (DEFAULT_URL, "", link.target)
    return OllamaBackend(
        url,
        model=model,
        name=str(link),
        connect_seconds=settings.backends.connect_timeout_seconds,
        read_seconds=settings.backends.timeout_seconds,
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `ollama`."""
    return {"ollama": make_backend}

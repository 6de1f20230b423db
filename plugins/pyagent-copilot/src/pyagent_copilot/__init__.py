"""The PyAgent plugin for the GitHub Copilot CLI: registers the backend scheme `copilot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, LinkSpec, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Settings


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry `copilot` or `copilot:MODEL`."""
    from pyagent_copilot.backend import CopilotBackend

    return CopilotBackend(
        model=link.target,
        name=str(link),
        read_seconds=settings.backends.timeout_seconds,
        unsupported=settings.backends.unsupported,
    )


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `copilot`."""
    return {"copilot": make_backend}

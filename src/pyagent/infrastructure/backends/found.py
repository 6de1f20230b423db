"""The default chain, `auto`: what is looked for on this machine, in order, and links that are made once they are found.

Looking costs next to nothing: whether something listens on a loopback port, whether a program or a key is there. It is
done again every few seconds: a server that is started later is found, and one that went is passed by in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from pyagent.core.addresses import is_loopback, leads_to
from pyagent.core.backends import Backend
from pyagent.core.capabilities import PLAIN, Capabilities
from pyagent.core.config import read_secret
from pyagent.core.errors import PyAgentError
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, ModelInfo

_LOOK_SECONDS = 5.0
_CONNECT_SECONDS = 0.05
_GITHUB_HOST = "models.github.ai"
_NOT_HERE = "it is not on this machine; name it in `chain`, or set backends.allow_remote = true"
_ITSELF = "it is this server itself"
_NO_GITHUB = f"backends.api_keys names no key for {_GITHUB_HOST}"
Look = Callable[[], str]
"""Returns why something is not there; empty when it is."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry of the default chain, how it is looked for, and the URL it asks; empty is this process."""

    entry: str
    look: Look
    url: str = ""


def candidates(
    schemes: Collection[str],
    key_hosts: Collection[str],
    *,
    allow_remote: bool = False,
    own_address: tuple[str, int] | None = None,
) -> Iterator[Candidate]:
    """The default chain in order, of what these schemes can reach. `native` is always there.

    No text leaves this machine unasked: servers elsewhere are found only with `allow_remote`. `own_address` is
    the host and port of the server that asks, which is no link of its own. `key_hosts` are the hosts that settings name
    keys for; as a token for GitHub lies about on many machines for other ends, GitHub Models wants a key named for it.
    """
    openai, ollama = _openai_entry(), read_secret("env:OLLAMA_HOST")
    known = (
        Candidate("lmstudio", _at_port(1234, "LM Studio"), "http://127.0.0.1:1234"),
        Candidate("native", lambda: ""),
        Candidate(openai, _no_openai, openai.partition(":")[2]),
        Candidate("ollama", _no_ollama, _url_of(ollama or "127.0.0.1:11434")),
        Candidate("copilot", _no_copilot, "https://api.githubcopilot.com"),
        Candidate("github", lambda: "" if _GITHUB_HOST in key_hosts else _NO_GITHUB, f"https://{_GITHUB_HOST}"),
    )
    for candidate in known:
        if candidate.entry.partition(":")[0] not in schemes:
            continue
        if candidate.url and not allow_remote and not is_loopback(candidate.url):
            yield replace(candidate, look=_unless_absent(candidate.look, _NOT_HERE))
        elif own_address is not None and leads_to(candidate.url, *own_address):
            yield replace(candidate, look=lambda: _ITSELF)
        else:
            yield candidate


def _unless_absent(look: Look, reason: str) -> Look:
    return lambda: look() or reason


def _url_of(host: str) -> str:
    """Return OLLAMA_HOST as a URL: it may lack a scheme, a port and, as an address to listen on, a host."""
    if "://" not in host:
        name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdigit() else (host, "", "")
        host = f"http://{name or '127.0.0.1'}:{port or 11434}"
    return host.replace("://0.0.0.0", "://127.0.0.1", 1)


def is_before_native() -> bool:
    """Return whether something runs here that goes before `native`, if a plugin can reach it."""
    return not _at_port(1234, "")()


def _at_port(port: int, program: str) -> Look:
    def look() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            is_there = probe.connect_ex(("127.0.0.1", port)) == 0
        return "" if is_there else f"{program} does not run at 127.0.0.1:{port}"

    return look


def _no_ollama() -> str:
    is_named = read_secret("env:OLLAMA_HOST") is not None
    return "" if is_named else _at_port(11434, "Ollama")()


def _openai_entry() -> str:
    url, model = read_secret("env:OPENAI_BASE_URL"), read_secret("env:OPENAI_MODEL")
    return f"openai:{url or 'https://api.openai.com/v1'}" + (f"#{model}" if model else "")


def _no_openai() -> str:
    if read_secret("env:OPENAI_BASE_URL"):
        return ""
    has_key = read_secret("env:OPENAI_API_KEY") is not None
    is_named = read_secret("env:OPENAI_MODEL") is not None
    return "" if has_key and is_named else "OPENAI_BASE_URL is not set, nor OPENAI_API_KEY with OPENAI_MODEL"


def _no_copilot() -> str:
    return "" if shutil.which("copilot") else "there is no program `copilot`"


@dataclass(slots=True)
class FoundLink:
    """A backend that may not be there yet; `make` makes it when it is first asked."""

    name: str
    look: Look
    make: Callable[[], Backend]
    clock: Callable[[], float] = time.monotonic
    _made: Backend | None = None
    _absence: str = ""
    _look_at: float = field(default=float("-inf"))
    _making: threading.Lock = field(default_factory=threading.Lock)

    def absence(self) -> str:
        """Return why it is not there; empty when it is."""
        now = self.clock()
        if now >= self._look_at:
            self._absence, self._look_at = self.look(), now + _LOOK_SECONDS
        return self._absence

    @property
    def backend(self) -> Backend:
        """Return the backend itself, made on first use."""
        with self._making:
            self._made = self._made or self.make()
            return self._made

    @property
    def made(self) -> Backend | None:
        """Return the backend itself, if it was made."""
        return self._made

    def anew(self) -> FoundLink:
        """Return the same link, not made."""
        return FoundLink(self.name, self.look, self.make, self.clock)

    async def prepare(self) -> None:
        """Make it beside the event loop, where it is there. What goes wrong is raised where it is asked."""
        if self._made is None and not self.absence():
            with contextlib.suppress(PyAgentError):
                await asyncio.to_thread(lambda: self.backend)

    @property
    def capabilities(self) -> Capabilities:
        """Return the backend's; `PLAIN` while it is absent or cannot be made: a request then gets the error."""
        if self.absence():
            return PLAIN
        try:
            return self.backend.capabilities
        except PyAgentError:
            return PLAIN

    async def models(self) -> list[ModelInfo]:
        """Return its models."""
        await self.prepare()
        return await self.backend.models()

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Return its answer."""
        return self.backend.chat(request)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return its vectors."""
        return await self.backend.embed(request)

    async def health(self) -> Health:
        """Return its health; not ready while it is absent."""
        absence = self.absence()
        if absence:
            return Health(is_ready=False, detail=absence)
        await self.prepare()
        return await self.backend.health()

    async def close(self) -> None:
        """Close it, if it was made."""
        if self._made is not None:
            await self._made.close()

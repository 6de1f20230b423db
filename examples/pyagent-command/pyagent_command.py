"""A PyAgent plugin with one backend: `command:PROGRAM` sends the prompt to a program and streams what it writes."""

import asyncio
import codecs
import shlex
import shutil
from collections.abc import AsyncIterator

from pyagent.plugin import (
    Backend,
    BackendError,
    BackendFactory,
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    Health,
    Link,
    ModelInfo,
    RequestError,
    Settings,
    hookimpl,
)


class CommandBackend:
    """Runs the program once for each request: the prompt on its standard input, the answer on its standard output."""

    def __init__(self, link: Link) -> None:
        self.name = str(link)
        self.words = shlex.split(link.target)

    async def models(self) -> list[ModelInfo]:
        """The program."""
        return [ModelInfo(id=self.name, backend=self.name)]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Stream the program's output; closing the iterator ends the program."""
        prompt = "\n\n".join(message.text for message in request.messages) or request.prompt or ""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise BackendError(f"{self.name} cannot start: {error}", backend=self.name) from error
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(prompt.encode())
            process.stdin.close()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while data := await process.stdout.read(4096):
                yield ChatDelta(content=decoder.decode(data), backend=self.name)
            if status := await process.wait():
                raise BackendError(f"{self.name} ended with status {status}", backend=self.name)
            yield ChatDelta(finish_reason="stop", backend=self.name)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Programs do not embed."""
        raise RequestError(f"{self.name} cannot embed; use a backend with an embedding model", param="model")

    async def health(self) -> Health:
        """Ready when the program is there."""
        is_there = bool(self.words) and shutil.which(self.words[0]) is not None
        return Health(is_ready=is_there, detail="" if is_there else f"there is no program {self.words[:1]}")

    async def close(self) -> None:
        """Nothing is kept between requests."""


def make_backend(link: Link, settings: Settings) -> Backend:
    """The backend of a chain entry such as `command:my-model --quiet`."""
    return CommandBackend(link)


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `command`."""
    return {"command": make_backend}

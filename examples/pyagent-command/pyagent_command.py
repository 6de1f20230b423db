"""A PyAgent plugin with one backend: `command:PROGRAM` sends the prompt to a program and streams what it writes."""

import asyncio
import codecs
import shlex
import shutil
from collections.abc import AsyncGenerator

from pyagent.plugin import (
    Backend,
    BackendError,
    BackendFactory,
    Capabilities,
    ChatDelta,
    ChatRequest,
    Deadline,
    EmbedRequest,
    EmbedResult,
    Health,
    LinkSpec,
    ModelInfo,
    RequestError,
    Settings,
    estimated_usage,
    fulfil,
    hookimpl,
)


class CommandBackend:
    """Runs the program once for each request: the prompt on its standard input, the answer on its standard output."""

    capabilities = Capabilities(abilities=frozenset({"prompt"}))  # besides one answer of text to messages

    def __init__(self, link: LinkSpec) -> None:
        self.name = str(link)
        self.words = shlex.split(link.target)

    async def models(self) -> list[ModelInfo]:
        """The program."""
        return [ModelInfo(id=self.name, backend=self.name)]

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Stream the program's output. What a program cannot do is emulated, or refused by name."""
        return fulfil(request, self.answer, self.capabilities.abilities, backend=self.name)

    async def answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Closing the iterator ends the program."""
        deadline = Deadline.after(request.timeout_seconds)
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
            decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
            while data := await deadline.bound(process.stdout.read(4096), self.name):
                piece = decoder.decode(data)
                text += piece
                yield ChatDelta(content=piece, model=self.name, backend=self.name)
            if status := await process.wait():
                raise BackendError(f"{self.name} ended with status {status}", backend=self.name)
            usage = estimated_usage(request, text)
            yield ChatDelta(finish_reason="stop", usage=usage, model=self.name, backend=self.name)
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


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry such as `command:my-model --quiet`."""
    return CommandBackend(link)


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `command`."""
    return {"command": make_backend}

"""The embedded engine does what every backend must."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.native import options, running
from support.tiny_model import write_tiny_model

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatRequest, FunctionDefinition, Message, SamplingParams, Tool
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.testing import BackendConformance, Subject


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for tools told in words, a token a letter."""
    return write_tiny_model(tmp_path_factory.mktemp("roomy") / "tiny.gguf", llama__context_length=1024)


class TestNative(BackendConformance):
    """A tiny random model in this process."""

    @pytest.fixture(autouse=True)
    def _model(self, roomy_model: Path) -> None:
        self.path = roomy_model

    def test_tools_reach_the_model_in_words(self) -> None:
        """A model whose chat template knows no tools is told of them in words, or they are refused."""
        tool = Tool(FunctionDefinition("add", "adds", {"type": "object"}))
        request = ChatRequest(messages=[Message("user", "1+1")], tools=[tool], sampling=SamplingParams(max_tokens=4))

        async def main() -> Answer:
            async with running(self.path, options()) as backend:
                refusing = msgspec.structs.replace(request, unsupported="refuse")
                with pytest.raises(BackendError, match="tiny cannot do tools: its chat template"):
                    await collect(backend.chat(refusing))
                return await collect(backend.chat(request))

        answer = asyncio.run(main())
        assert answer.usage.prompt_tokens > 200

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        # its chat template has nothing for tools and thinking: those are told in words
        lacks = frozenset({"tools", "tool_choice", "parallel_tool_calls", "strict", "reasoning_effort"})
        yield Subject(lambda: NativeBackend.of("tiny", lambda: self.path, options()), scheme="native", lacks=lacks)

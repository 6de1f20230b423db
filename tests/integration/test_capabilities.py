"""What Ollama's API says of models: what their links can do with them, and what is emulated for them."""

from __future__ import annotations

import asyncio
import json

import ollama
import pytest
from pyagent_lmstudio.backend import LMStudioBackend
from pyagent_ollama.backend import OllamaBackend
from support.server import serving

from pyagent.core.backends import Backend
from pyagent.core.chain import Chain
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.infrastructure.backends.openai_models import decode_models
from pyagent.testing import lmstudio_server, ollama_server, openai_server


def shown(backend: Backend, *names: str, emulates: bool = True) -> list[list[str]]:
    """The capabilities of models of a chain with this link alone, read by Ollama's client."""

    async def main() -> list[list[str]]:
        chain = Chain([backend])
        try:
            async with serving(chain, emulates=emulates) as url, ollama.AsyncClient(url) as client:
                return [list((await client.show(name)).capabilities or []) for name in names]
        finally:
            await chain.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("own", "emulated", "plain"),
    [
        (("completion",), ["completion", "tools"], ["completion"]),
        (("completion", "vision"), ["completion", "tools", "vision"], ["completion", "vision"]),
        (("completion", "tools"), ["completion", "tools"], ["completion", "tools"]),
    ],
)
def test_ollamas_models_are_shown_as_ollama_shows_them(
    own: tuple[str, ...], emulated: list[str], plain: list[str]
) -> None:
    """What a model lacks is not claimed, but for what is emulated, where that is wanted."""
    with ollama_server(capabilities=own) as server:
        name = server.models[0]
        assert shown(OllamaBackend(server.url), name) == [emulated]
        assert shown(OllamaBackend(server.url), name, emulates=False) == [plain]


def test_lm_studio_says_which_models_see() -> None:
    """A model without vision has none, whatever LM Studio itself can do."""
    for reads_images, expected in ((True, ["completion", "tools", "vision"]), (False, ["completion", "tools"])):
        with lmstudio_server(reads_images=reads_images) as server:
            assert shown(LMStudioBackend(server.url), server.models[0]) == [expected]


def test_openai_servers_say_so_where_they_do() -> None:
    """GitHub and OpenRouter list what a model reads; of other servers it is not known, and images are tried."""
    rows = [
        {"id": "a", "supported_input_modalities": ["text", "image"]},
        {"id": "b", "supported_input_modalities": ["text"]},
        {"id": "c", "architecture": {"input_modalities": ["image", "text"]}},
        {"id": "d", "architecture": "llama"},
    ]
    listed = decode_models(json.dumps(rows).encode(), "b")
    assert [model.reads_images for model in listed] == [True, False, True, None]
    with openai_server() as server:
        assert shown(OpenAIBackend(server.url), server.models[0]) == [["completion", "tools", "vision"]]

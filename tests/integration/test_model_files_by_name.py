"""Model files over HTTP: named by their short names in each API, by the clients of OpenAI and Ollama themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import ollama
import openai
import pytest
from support.server import HI, Model, connected, serving

from pyagent.assembly import make_chain, make_host
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.settings import Settings
from pyagent.infrastructure.models.store import ModelStore

OPTIONS = {"temperature": 0, "num_predict": 3}


@dataclass
class Server:
    client: openai.AsyncOpenAI
    ollama: Any  # its types are partly unknown
    http: httpx.AsyncClient
    chain: Chain

    async def answer(self, model: str) -> str:
        said = await self.client.chat.completions.create(model=model, messages=HI, max_tokens=3, temperature=0)
        assert said.model == model, "the answer has the name that was asked for"
        return said.choices[0].message.content or ""


@pytest.fixture
def folder(tmp_path: Path, tiny_model_path: Path) -> Path:
    """Two files of one name in two folders, one of another name, and one in the store's folder."""
    for file in ("q4/m.gguf", "q8/m.gguf", "Qwen9-1B.gguf", "models/mine.gguf"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(tiny_model_path)
    return tmp_path


@asynccontextmanager
async def served(folder: Path, *files: str, **more: object) -> AsyncGenerator[Server]:
    """A server over `native` with these models: paths below the folder, or names."""
    names = [str(folder / file) if file.endswith(".gguf") else file for file in files]
    overrides = {"engine.models": names, "engine.threads": 1, "chain": ["native"], "paths.models": folder / "models"}
    settings: Settings = load_settings(overrides={**overrides, **more}).settings
    chain = make_chain(settings, make_host(settings))
    async with (
        serving(chain, store=ModelStore.of(settings)) as url,
        connected(url) as client,
        cast("Any", ollama.AsyncClient(url)) as local,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        yield Server(client, local, http, chain)
    await chain.close()


def test_each_api_lists_and_takes_the_short_name(folder: Path) -> None:
    """No id is a path; the file's name, its path and the link's name all mean one model, which is loaded once."""

    async def work() -> None:
        async with served(folder, "Qwen9-1B.gguf") as server:
            path = str(folder / "Qwen9-1B.gguf")
            assert [model.id async for model in server.client.models.list()] == ["Qwen9-1B"]
            assert (await server.client.models.retrieve("qwen9-1b")).id == "Qwen9-1B"
            answers = {
                await server.answer(name)
                for name in ("Qwen9-1B", "qwen9-1b", "Qwen9-1B.gguf", path, f"native:{path}", "native:Qwen9-1B")
            }
            assert len(answers) == 1
            several = {"model": "qwen9-1b", "prompt": ["a", "b"], "max_tokens": 2}
            assert len((await server.http.post("/v1/completions", json=several)).json()["choices"]) == 2
            local = server.ollama
            assert [model.model for model in (await local.list()).models] == ["Qwen9-1B"]
            shown = await local.show("Qwen9-1B:latest")
            assert shown.details is not None
            assert (shown.details.format, shown.details.parameter_size != "") == ("gguf", True)
            for name in ("Qwen9-1B", "Qwen9-1B:latest", path):
                said = await local.chat(name, HI, options=OPTIONS)
                assert {said.message.content} == answers
            assert [model.model for model in (await local.ps()).models] == ["Qwen9-1B"], "loaded once"
            assert await server.chain.has_model(path)
            headers = {"anthropic-version": "2023-06-01"}
            listed = (await server.http.get("/v1/models", headers=headers)).json()
            assert [model["id"] for model in listed["data"]] == ["Qwen9-1B"]
            body = {"model": "qwen9-1b", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
            assert (await server.http.post("/v1/messages", json=body, headers=headers)).status_code == 200
            assert 'model="Qwen9-1B"' in (await server.http.get("/metrics")).text

    asyncio.run(work())


def test_two_files_of_one_name_are_told_apart(folder: Path) -> None:
    """Their folders join their names; the name that both have is refused in one sentence, in each API's own shape."""

    async def work() -> None:
        async with served(folder, "q4/m.gguf", "q8/m.gguf") as server:
            assert [model.id async for model in server.client.models.list()] == ["q4/m", "q8/m"]
            assert (await server.client.models.retrieve("q4/m")).id == "q4/m"
            assert await server.answer("q8/m") == await server.answer(str(folder / "q4/m.gguf"))
            told = "model 'm' may be any of q4/m, q8/m; name one of them"
            with pytest.raises(openai.NotFoundError) as caught:
                await server.answer("m")
            assert caught.value.body == {
                "message": told, "type": "invalid_request_error", "param": "model", "code": "model_not_found",
            }  # fmt: skip
            with pytest.raises(ollama.ResponseError) as refused:
                await server.ollama.chat("m", HI)
            assert (refused.value.status_code, refused.value.error) == (404, told)
            wrong = await server.http.post("/v1/embeddings", json={"model": "m", "input": "x"})
            assert (wrong.status_code, wrong.json()["error"]["message"]) == (404, told)

    asyncio.run(work())


def test_a_file_in_the_folder_of_models_needs_no_path(folder: Path) -> None:
    """`engine.models` has the file's name alone, in a process of its own too, where settings by path reach it."""

    async def work() -> None:
        templates = {
            str(folder / "Qwen9-1B.gguf"): "{% for one in messages %}Say it again: {{ one.content }}{% endfor %}"
        }
        more = {"engine.process": True, "engine.chat_templates": templates}
        async with served(folder, "mine", "Qwen9-1B.gguf", **more) as server:
            assert [model.id async for model in server.client.models.list()] == ["mine", "Qwen9-1B"]
            assert await server.answer("mine") != await server.answer("Qwen9-1B"), "another template, another answer"
            missing = await server.http.post("/v1/chat/completions", json={"model": "nine", "messages": HI})
            assert (missing.status_code, missing.json()["error"]["message"]) == (
                404,
                "there is no model 'nine'; did you mean 'mine'?",
            )

    asyncio.run(work())


def test_pulling_a_file_of_ones_own_is_done_at_once(folder: Path) -> None:
    """Clients of Ollama pull before they ask; a name that is too long is not repeated whole."""

    async def work() -> None:
        async with served(folder, "Qwen9-1B.gguf") as server:
            assert (await server.ollama.pull("Qwen9-1B")).status == "success"
            with pytest.raises(ollama.ResponseError) as refused:
                await server.ollama.chat("x" * 100_000, HI)
            assert refused.value.status_code == 404
            assert len(refused.value.error) < 400

    asyncio.run(work())


def test_odd_names_of_another_servers_models_are_listed(tmp_path: Path) -> None:
    """Names that are too long for a file, or of a home of no user."""
    names = ["a" * 300, f"/{'b' * 300}.gguf", "~nobody-of-this-name/x.gguf", "a\0b", ".", "m"]

    async def work() -> None:
        async with (
            serving(Model(models=names), store=ModelStore(tmp_path)) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            listed = (await http.get("/api/tags")).json()["models"]
            assert [model["name"] for model in listed] == names
            for name in names:
                assert (await http.post("/api/show", json={"model": name})).status_code == 200

    asyncio.run(work())

"""Keeps the KV of prompts in the folder `$KV_FOLDER`, for engines that start later or run beside this one."""

import asyncio
import os
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from hashlib import sha256
from pathlib import Path

from pyagent.plugin import (
    BLOCK_TOKENS,
    KvCache,
    KvConnector,
    KvConnectorFactory,
    KvLayers,
    KvMatch,
    KvPages,
    KvPrompt,
    hookimpl,
)


class FolderConnector:
    patience = 0.1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.caches: dict[str, KvCache] = {}
        self.saving: set[asyncio.Task[None]] = set()
        self.seconds_per_byte = 1e-9  # until something was read

    def register(self, model: str, cache: KvCache) -> None:
        self.caches[model] = cache

    def forget(self, model: str) -> None:
        self.caches.pop(model, None)

    async def matched_tokens(self, prompt: KvPrompt) -> KvMatch | None:
        files = self.files(prompt)
        for blocks in range(len(files), prompt.num_local // BLOCK_TOKENS, -1):
            if (file := files[blocks - 1]).exists():
                return KvMatch(blocks * BLOCK_TOKENS, file.stat().st_size * self.seconds_per_byte, None, file)
        return None

    async def load(self, prompt: KvPrompt, match: KvMatch, pages: KvPages) -> AsyncGenerator[KvLayers, None]:
        started = time.perf_counter()
        data = await asyncio.to_thread(Path(str(match.source)).read_bytes)
        shape = self.caches[prompt.model].layout.shape
        size, view = shape.layer_bytes, memoryview(data)
        for layer in range(shape.layers_per_page):
            first = layer * pages.num_pages
            parts = [view[(first + page) * size : (first + page + 1) * size] for page in pages.wanted]
            yield KvLayers(layer, 1, b"".join(parts))
        self.seconds_per_byte = (time.perf_counter() - started) / len(data)

    def save(self, prompt: KvPrompt) -> None:
        if prompt.tokens and not (file := self.files(prompt)[-1]).exists():
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self.write, prompt, file))
            self.saving.add(task)
            task.add_done_callback(self.saving.discard)

    def write(self, prompt: KvPrompt, file: Path) -> None:
        cache = self.caches[prompt.model]
        held = cache.hold(prompt.tokens, prompt.key)
        try:
            held.open()
            if held.num_tokens == len(prompt.tokens):
                pages = range(held.num_pages)
                layers = [held.read(pages, layer, 1) for layer in range(cache.layout.shape.layers_per_page)]
                part = file.with_suffix(f".{os.getpid()}")
                part.write_bytes(b"".join(layers))
                part.rename(file)  # whole, or not there
        finally:
            held.close()

    async def close(self) -> None:
        await asyncio.gather(*self.saving)

    def files(self, prompt: KvPrompt) -> Sequence[Path]:
        """A file for each block that a prompt could end with; where the key or the model differ, so do the names."""
        key = prompt.key
        begun = sha256(repr((self.caches[prompt.model].layout, key.tenant, key.adapter_id, key.media_hash)).encode())
        files: list[Path] = []
        for start in range(0, len(prompt.tokens), BLOCK_TOKENS):
            begun.update(array("I", prompt.tokens[start : start + BLOCK_TOKENS]).tobytes())
            files.append(self.folder / f"{begun.hexdigest()}.kv")
        return files


class KvFolder:
    name = "folder"

    def open(self) -> KvConnector:
        return FolderConnector(Path(os.environ["KV_FOLDER"]))


@hookimpl
def pyagent_register_kv_connectors() -> Sequence[KvConnectorFactory]:
    return [KvFolder()]

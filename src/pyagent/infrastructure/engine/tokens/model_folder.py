"""What a model's folder says of its tokens in JSON files, and its tokenizer.json. All of it is hostile input."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from pyagent.core.errors import ModelError

_MAX_JSON_BYTES = 256_000_000
_MAX_TEMPLATE_BYTES = 4 << 20
_NAMED = "added_tokens_decoder"


class ModelFolder:
    """The JSON files of a model's folder, read when they are first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def settings(self) -> dict[str, object]:
        """What config.json and, before it, generation_config.json say."""
        return {**read_json(self.path / "config.json"), **read_json(self.path / "generation_config.json")}

    @cached_property
    def about(self) -> dict[str, object]:
        """What tokenizer_config.json says."""
        return read_json(self.path / "tokenizer_config.json")

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end an answer."""
        found = self.settings.get("eos_token_id")
        ids = cast("list[object]", found) if isinstance(found, list) else [found]
        return [one for one in ids if isinstance(one, int)]

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads the prompts."""
        return self.settings.get("is_encoder_decoder") is True

    @property
    def suppressed_ids(self) -> list[int]:
        """The tokens that are never to be written, such as those that stand for a picture in a prompt."""
        found = self.settings.get("suppress_tokens")
        ids = cast("list[object]", found) if isinstance(found, list) else []
        return [one for one in ids if isinstance(one, int) and one >= 0]

    def begin_id(self, usual: int | None) -> int | None:
        """Return the token before a plain text: `usual` where the folder does not say whether there is one."""
        adds_begin, begin_id = self.about.get("add_bos_token"), self.settings.get("bos_token_id")
        if adds_begin is None:
            return usual
        return (begin_id if isinstance(begin_id, int) else usual) if adds_begin else None

    @property
    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Tokens that tokenizer_config.json adds to a vocabulary, and whether each is a control token."""
        added = self.about.get(_NAMED)
        if not isinstance(added, dict):
            return {}
        items = cast("dict[str, object]", added).items()
        return {int(key): told for key, value in items if key.isdecimal() and (told := _added(value))}

    def token_name(self, key: str) -> str:
        """Return the text of `bos_token` or `eos_token`: they stand as texts, or as mappings with theirs."""
        value = self.about.get(key)
        if isinstance(value, Mapping):
            value = cast("Mapping[str, object]", value).get("content")
        return value if isinstance(value, str) else ""

    @property
    def template(self) -> str | None:
        """The source of its chat template."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            try:
                return read_bounded(file, _MAX_TEMPLATE_BYTES).decode()
            except UnicodeDecodeError as error:
                raise ModelError(f"{file}: not a text in UTF-8: {error}", model=str(self.path)) from error
        value = self.about.get("chat_template")
        if isinstance(value, list):
            items = (
                cast("Mapping[str, object]", item) for item in cast("list[object]", value) if isinstance(item, Mapping)
            )
            value = next((item.get("template") for item in items if item.get("name") == "default"), None)
        return value if isinstance(value, str) else None


def file_in(folder: Path, patterns: Sequence[str], is_one: Callable[[Path], bool]) -> Path | None:
    """Return the first file of a folder that has one of these names, and looks like what is wanted."""
    found = (file for pattern in patterns for file in sorted(folder.glob(pattern))) if folder.is_dir() else ()
    return next((file for file in found if file.is_file() and is_one(file)), None)


def read_bounded(file: Path, max_bytes: int = _MAX_JSON_BYTES) -> bytes:
    """Return what is in a file. Raises `ModelError` for a larger one."""
    if file.stat().st_size > max_bytes:
        raise ModelError(f"{file}: larger than {max_bytes} bytes", model=str(file.parent))
    return file.read_bytes()


def read_json(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; an empty one where there is none. Raises `ModelError`."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_bounded(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON: {error}", model=str(path.parent)) from error
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def object_in(fields: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return the object under a key; an empty one where there is none."""
    value = fields.get(key)
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _added(value: object) -> tuple[str, bool] | None:
    token = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    content = token.get("content")
    return (content, bool(token.get("special"))) if isinstance(content, str) and content else None

"""What OpenAI-compatible servers list as their models. Pure; servers differ, so it is read loosely."""

from __future__ import annotations

import msgspec

from pyagent.core.errors import BackendError


class _Limits(msgspec.Struct):
    max_input_tokens: int | None = None


class _Architecture(msgspec.Struct):
    input_modalities: list[str] | None = None


class ListedModel(msgspec.Struct):
    """One entry of GET /models. Context lengths have no agreed name; these are the ones servers use."""

    id: str
    owned_by: object = None
    max_model_len: int | None = None
    context_length: int | None = None
    limits: _Limits | None = None
    supported_input_modalities: list[str] | None = None
    architecture: _Architecture | str | None = None

    @property
    def reads_images(self) -> bool | None:
        """Whether it reads images, where the server says: GitHub and OpenRouter do."""
        about = self.architecture if isinstance(self.architecture, _Architecture) else _Architecture()
        said = self.supported_input_modalities or about.input_modalities
        return None if said is None else "image" in said

    @property
    def context(self) -> int | None:
        """The longest prompt, where the server says."""
        return self.context_length or self.max_model_len or (self.limits and self.limits.max_input_tokens)


class _ModelList(msgspec.Struct):
    data: list[ListedModel] = []


def decode_models(body: bytes, backend: str) -> list[ListedModel]:
    """What GET /models lists, in an object or bare. Raises `BackendError`."""
    try:
        listed = msgspec.json.decode(body, type=_ModelList | list[ListedModel])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackendError(f"{backend}: what it lists as models is no such list: {error}", backend=backend) from error
    return listed.data if isinstance(listed, _ModelList) else listed

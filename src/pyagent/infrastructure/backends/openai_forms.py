"""Forms of answers that OpenAI's API does not have, as vLLM, SGLang and llama.cpp take them.

Which of them a link's server is, its table says (`server`), or the server itself, in its list of models. Others are
asked in words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from pyagent.core.messages import JsonObject, ResponseFormat
from pyagent.core.structured_output.regex_gbnf import gbnf_of_regex, quoted
from pyagent.infrastructure.backends.openai_models import ListedModel

ServerKind = Literal["vllm", "sglang", "llama.cpp"]
_OWNERS: Mapping[object, ServerKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""What these servers say in `owned_by`."""


def kind_of(listed: Sequence[ListedModel], model: str) -> ServerKind | None:
    """Return which server lists a model; of a name that is not listed, what all that are listed agree in."""
    owners = {listing.owned_by for listing in listed if listing.id == model and isinstance(listing.owned_by, str)}
    owners = owners or {listing.owned_by if isinstance(listing.owned_by, str) else "" for listing in listed}
    return _OWNERS.get(owners.pop()) if len(owners) == 1 else None


def form_fields(wanted: ResponseFormat, server: ServerKind) -> JsonObject | None:
    """Return the fields that hold a server to a form; None for one that it does not have."""
    match server:
        case "vllm":
            inner = _of_vllm(wanted)
            return {"structured_outputs": inner} if inner else None
        case "sglang":
            return _of_sglang(wanted)
        case "llama.cpp":
            return _of_llama_cpp(wanted)


def _of_vllm(wanted: ResponseFormat) -> JsonObject | None:
    match wanted.type:
        case "choice":
            return {"choice": wanted.choice}
        case "regex":
            return {"regex": wanted.regex}
        case "grammar" if wanted.grammar is not None:
            return {"grammar": wanted.grammar.definition}
        case "structural_tag":
            return {"structural_tag": json.dumps(_structural_tag(wanted))}
        case _:
            return None


def _of_sglang(wanted: ResponseFormat) -> JsonObject | None:
    if wanted.type == "regex":
        return {"regex": wanted.regex}
    if wanted.type == "structural_tag":
        return {"response_format": _structural_tag(wanted)}
    gbnf = _gbnf(wanted)
    return {"ebnf": gbnf} if gbnf else None


def _of_llama_cpp(wanted: ResponseFormat) -> JsonObject | None:
    if wanted.type == "choice" and wanted.choice:
        return {"grammar": f"root ::= {' | '.join(map(quoted, wanted.choice))}"}
    gbnf = gbnf_of_regex(wanted.regex) if wanted.type == "regex" and wanted.regex else _gbnf(wanted)
    return {"grammar": gbnf} if gbnf else None


def _gbnf(wanted: ResponseFormat) -> str | None:
    grammar = wanted.grammar
    return grammar.definition if grammar is not None and grammar.syntax == "gbnf" else None


def _structural_tag(wanted: ResponseFormat) -> JsonObject:
    return {"type": "structural_tag", "format": msgspec.to_builtins(wanted.structural_tag)}

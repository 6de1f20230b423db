"""The JSON-Schema-Test-Suite that jsonschema's sdist carries: each schema is enforced, or refused with its place.

`make schemas` fetches it and prints the figures. Of a schema that is enforced, no instance may be wrong for jsonschema:
neither those of the suite that the grammar takes, nor those of random walks through its masks.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonSchemaFormat, ResponseFormat
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.grammar.xgrammar import XGRAMMAR
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary

pytestmark = pytest.mark.oracle
SUITE = Path(__file__).parents[2] / ".cache/json-schema-suite"
DRAFTS: dict[str, Any] = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft4": jsonschema.Draft4Validator,
}
END = 256
NUM_WALKS, MAX_BYTES = 6, 3000


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    vocab_size, end_ids = 257, frozenset({END})

    def vocabulary(self) -> list[bytes]:
        return [*(bytes([byte]) for byte in range(256)), b"<end>"]

    def control_ids(self) -> list[int]:
        return [END]

    def encode_further(self, text: str) -> list[int]:
        return list(text.encode())


def allows(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


def takes(grammar: Grammar, data: bytes) -> bool:
    for byte in data:
        if grammar.is_finished or not allows(grammar.mask(), byte):
            return False
        grammar.accept(byte)
    return grammar.is_finished or allows(grammar.mask(), END)


def walk(grammar: Grammar, draw: random.Random, words: list[bytes]) -> bytes | None:
    """A random text of the grammar, of letters and of words that its schema has; None for one without an end."""
    text = bytearray()
    while not grammar.is_finished and len(text) < MAX_BYTES:
        word = draw.choice(words) if words and draw.random() < 0.3 else b""
        if word and _takes_on(grammar.fork(), word):
            for byte in word:
                grammar.accept(byte)
            text += word
            continue
        mask = grammar.mask()
        if allows(mask, END) and draw.random() < 0.5:
            return bytes(text)
        allowed = [byte for byte in range(256) if allows(mask, byte)]
        if not allowed:
            return bytes(text) if allows(mask, END) else None
        closing = [byte for byte in allowed if byte in b'"}],']
        is_closing = closing and draw.random() < (0.3 if len(text) < 150 else 0.9)
        byte = draw.choice(closing if is_closing else [byte for byte in allowed if 32 <= byte < 127] or allowed)
        grammar.accept(byte)
        text.append(byte)
    return bytes(text) if grammar.is_finished else None


def _takes_on(grammar: Grammar, word: bytes) -> bool:
    for byte in word:
        if grammar.is_finished or not allows(grammar.mask(), byte):
            return False
        grammar.accept(byte)
    return True


def cases(draft: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """The suite's schemas that are objects, each with its draft, and what it says of some instances."""
    for path in sorted(SUITE.glob(f"{draft}/**/*.json")):
        for case in json.loads(path.read_text()):
            if isinstance(case["schema"], dict):
                name = f"{path.relative_to(SUITE)}: {case['description']}"
                yield name, {"$schema": DRAFTS[draft].META_SCHEMA["$schema"], **case["schema"]}, case["tests"]


@pytest.mark.parametrize("backend", [GUIDANCE, XGRAMMAR], ids=lambda backend: backend.name)
@pytest.mark.parametrize("draft", DRAFTS)
def test_schemas_are_enforced_or_refused(draft: str, backend: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Every schema of a draft; nothing that a grammar takes or makes is wrong, and each refusal has a JSON pointer."""
    if not (SUITE / draft).is_dir():
        pytest.skip("make schemas fetches the suite")
    if (reason := backend.unavailable_reason()) is not None:
        pytest.skip(reason)
    compiler, counts, wrong = GrammarCompiler(ModelVocabulary(Bytes()), factories=[backend]), Counter[str](), []  # type: ignore[arg-type]
    for name, schema, tests in cases(draft):
        try:
            grammar = compiler.begin(ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))).result()
        except RequestError as error:
            counts["refused"] += 1
            if not re.search(r"#[^ :]*[:)]", str(error)):
                wrong.append((name, "refused without a place", str(error)))
            continue
        found = [*_wrong_instances(grammar, DRAFTS[draft], schema, tests, counts)]
        wrong += [(name, *one) for one in found]
        counts["wrong" if found else "enforced"] += 1
    with capsys.disabled():
        told = ", ".join(f"{kind} {counts[kind]}" for kind in ("enforced", "refused", "wrong", "taken", "narrower"))
        print(f"\n{backend.name}, {draft}: {told}")
    assert not wrong, "\n".join(map(str, wrong))


def _wrong_instances(
    grammar: Grammar, draft: Any, schema: dict[str, Any], tests: list[dict[str, Any]], counts: Counter[str]
) -> Iterator[tuple[str, object]]:
    validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
    for test in tests:
        text = json.dumps(test["data"], ensure_ascii=False)
        if takes(grammar.fork(), text.encode()):
            counts["taken"] += 1
            if not test["valid"] and not _is_valid(validator, test["data"]):
                yield "takes", text
        elif test["valid"]:
            counts["narrower"] += 1
    words = [word.encode() for word in re.findall(r"[A-Za-z0-9]{2,}", json.dumps(schema).partition('"$schema"')[2])]
    for seed in range(NUM_WALKS):
        made = walk(grammar.fork(), random.Random(seed), words)
        if made is None:
            yield "has no end", seed
        elif not _is_valid(validator, json.loads(made)):
            yield "makes", made


def _is_valid(validator: Any, instance: object) -> bool:
    """Whether jsonschema takes an instance; what it cannot judge (other machines' schemas, other regexes) passes."""
    try:
        return bool(validator.is_valid(instance))
    except Exception:
        return True

"""Structured output: what the masks of any walk through a grammar allow."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from llguidance import LLMatcher, LLTokenizer
from support.chat_templates import sentencepiece_tokenizer
from support.grammars import allowed, schema_format
from support.tiny_model import CONTROL_TOKENS, vocabulary

from pyagent.core.errors import RequestError
from pyagent.core.messages import JsonObject, JsonSchemaFormat, ResponseFormat
from pyagent.core.structured_output.schema_checks import check_schema
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler, told_briefly
from pyagent.infrastructure.engine.grammar.vocabulary import llguidance_tokenizer
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.tokens import ModelTokenizer

NUM_TOKENS = len(vocabulary()[0])
CHOICES = [
    "yes",
    "no",
    "yesterday",
    'a"b\\c',
    "<|im_end|>",
    "line\nbreak\t",
    "naïve 中 🎉",
    "x/y",
    "\x07",
    "del\x7f",
    " ",
]


def walk(grammar: Grammar, tokenizer: ModelTokenizer, seed: int) -> str:
    """The text of a random walk; it ends by an end token, or where nothing can follow."""
    draw, tokens = random.Random(seed), list[int]()
    while not grammar.is_finished:
        token = draw.choice(allowed(grammar))
        if token in tokenizer.end_ids:
            break
        grammar.accept(token)
        tokens.append(token)
    return tokenizer.decode(tokens)


def test_choice_yields_exactly_the_texts(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """Random walks end in one of the texts and reach all of them, quotes, line breaks and control tokens included."""
    grammar = ResponseFormat(type="choice", choice=CHOICES)
    seen = {walk(compiler.begin(grammar).result(), tokenizer, seed) for seed in range(400)}
    assert seen == set(CHOICES)


def test_control_tokens_are_never_allowed_as_text(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """Inside a JSON text a control token's letters are allowed, the token itself is not."""
    grammar = compiler.begin(schema_format({"type": "string"})).result()
    grammar.accept(tokenizer.encode_text('"')[0])
    controls = {tokenizer.tokenizer.inner.token_to_id(text) for text in CONTROL_TOKENS}
    for token in tokenizer.tokenizer.inner.encode("<", add_special_tokens=False).ids:
        grammar.accept(token)
    assert not controls & set(allowed(grammar))


def test_end_is_allowed_only_where_the_text_is_whole(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """After `yes` of yes/yesterday both the end and more letters are allowed; after `ye` only letters."""
    grammar = compiler.begin(ResponseFormat(type="choice", choice=["yes", "yesterday"])).result()
    for letter in "ye":
        assert not tokenizer.end_ids & set(allowed(grammar))
        grammar.accept(tokenizer.encode_text(letter)[0])
    grammar.accept(tokenizer.encode_text("s")[0])
    assert tokenizer.end_ids & set(allowed(grammar))
    assert tokenizer.encode_text("t")[0] in allowed(grammar)
    assert not grammar.is_finished


def test_refused_token_is_an_error(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """A token the mask forbids is not taken."""
    grammar = compiler.begin(ResponseFormat(type="choice", choice=["yes"])).result()
    with pytest.raises(ValueError, match="cannot be enforced"):
        grammar.accept(tokenizer.encode_text("n")[0])


def test_thousands_of_choices_with_one_beginning_are_held_to(
    compiler: GrammarCompiler, tokenizer: ModelTokenizer
) -> None:
    """More choices than the parser has rows for, all with one beginning, are no fault of the request."""
    choices = [f"text {number}" for number in range(3000)]
    assert walk(compiler.begin(ResponseFormat(type="choice", choice=choices)).result(), tokenizer, 1) in choices


def test_what_cannot_be_enforced_is_said_briefly(compiler: GrammarCompiler) -> None:
    """A schema that is nested too deep, and choices that are too long, are refused; no inner state is told."""
    for depth in (200, 2000):
        schema: JsonObject = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "object", "properties": {"a": schema}}
        with pytest.raises(RequestError, match=r"recursion|too long"):
            compiler.begin(ResponseFormat("json_schema", JsonSchemaFormat(schema=schema))).result()
    with pytest.raises(RequestError, match="the limit is"):
        compiler.begin(ResponseFormat("choice", choice=["x" * 2**21])).result()
    dump = "Parser Error: Current row has 3001 items; max is 2000\n<state>\nTokens: secret\n</state>"
    assert told_briefly(ValueError(dump)) == (
        "response_format cannot be enforced: it is too complex: 3001 alternatives at one place, where 2000 are taken; "
        "simplify it"
    )


def test_any_json_is_an_object(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """`json_object` gives a JSON object."""
    for seed in range(5):
        assert isinstance(
            json.loads(walk(compiler.begin(ResponseFormat(type="json_object")).result(), tokenizer, seed)), dict
        )


def test_grammars_do_not_share_their_place(compiler: GrammarCompiler, tokenizer: ModelTokenizer) -> None:
    """Two requests with one schema walk it on their own, and more schemas than are remembered still compile."""
    wanted = ResponseFormat(type="choice", choice=["ab"])
    first, second = compiler.begin(wanted).result(), compiler.begin(wanted).result()
    first.accept(tokenizer.encode_text("a")[0])
    assert allowed(second) == [tokenizer.encode_text("a")[0]]
    for number in range(100):
        compiler.begin(ResponseFormat(type="choice", choice=[f"text {number}"])).result()
    assert allowed(compiler.begin(wanted).result()) == allowed(second)


@pytest.mark.parametrize(
    "wanted",
    [
        schema_format({"type": "nonsense"}),
        schema_format({"$ref": "#/nowhere"}),
        schema_format({"type": "string", "pattern": "("}),
        schema_format({"type": "array", "minItems": 5, "maxItems": 2}),
        schema_format({"not": {}}),
        schema_format({"type": "object", "properties": 3}),
        schema_format({"enum": ["a" * (1 << 20)]}),
        ResponseFormat(type="json_schema"),
        ResponseFormat(type="choice"),
        ResponseFormat(type="choice", choice=[]),
        ResponseFormat(type="choice", choice=["a", ""]),
    ],
)
def test_form_that_cannot_be_enforced_is_refused(compiler: GrammarCompiler, wanted: ResponseFormat) -> None:
    """What cannot be enforced is refused at the door, with the reason and the field at fault."""
    with pytest.raises(RequestError, match=r"response_format|JSON schema") as caught:
        compiler.begin(wanted).result()
    assert (caught.value.param or "").startswith("response_format")


OBJECT_OF_ITSELF: JsonObject = {"type": "object", "properties": {"next": {"$ref": "#"}}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#"}, "at #: $ref '#' leads back to itself"),
        ({"allOf": [{"$ref": "#"}]}, "at #/allOf/0: $ref '#' leads back"),
        ({"anyOf": [{"$ref": "#"}]}, "at #/anyOf/0: $ref '#' leads back"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "at #/$defs/a: $ref",
        ),
        (OBJECT_OF_ITSELF | {"required": ["next"]}, "at #/properties/next: $ref '#' leads back to itself"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "at #/items: $ref '#' leads back"),
        (
            {
                "$ref": "#/$defs/a~1b",
                "$defs": {
                    "a/b": {"type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/%24defs/a~1b"}}}
                },
            },
            "at #/$defs/a~1b/properties/x: $ref '#/%24defs/a~1b' leads back",
        ),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "no text can go on from here"),
        ({"$ref": "#/nowhere"}, "at #: $ref '#/nowhere' names no schema in it"),
        ({"properties": {"a": {"$ref": "#/$defs/0/1"}}, "$defs": [[1]]}, "at #/properties/a: $ref"),
        ({"$ref": "https://example.org/schema"}, "$ref to https://example.org/schema is outside the schema"),
        ({"properties": {"a": {"not": {}}}}, "are not supported; leave them out (#/properties/a/not)"),
        (
            {"properties": {"a": {"properties": {str(n): {} for n in range(500)}}}},
            "at #/properties/a: an object takes up",
        ),
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "use anyOf"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value follows the schema: incompatible types"),
    ],
)
def test_schema_without_values_is_refused_in_plain_words(
    compiler: GrammarCompiler, schema: JsonObject, says: str
) -> None:
    """A reference that has no end, leads nowhere or outside, and a contradiction, are told with their place."""
    with pytest.raises(RequestError) as caught:
        compiler.begin(schema_format(schema)).result()
    assert says in str(caught.value)
    assert "NoExtension" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT_OF_ITSELF,
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}], "$defs": {"node": OBJECT_OF_ITSELF}},
        {
            "type": "object",
            "properties": {"left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["left"],
        },
        {"type": "string", "maxLength": 3, "$defs": {"never": {"$ref": "#/$defs/never"}}},
        {
            "properties": {"a": {"$ref": "#/$defs/name"}, "b": {"$ref": "#/$defs/name"}},
            "$defs": {"name": {"enum": ["x"]}},
        },
    ],
)
def test_schema_of_trees_is_taken(compiler: GrammarCompiler, tokenizer: ModelTokenizer, schema: JsonObject) -> None:
    """Schemas that refer to themselves where a value may end (lists, trees, null) are held to as any others."""
    assert allowed(compiler.begin(schema_format(schema)).result())


def test_form_beside_calls_is_checked_too(compiler: GrammarCompiler) -> None:
    """A form that no answer can be held to is refused as one, also where an answer may be a call instead."""
    optional: JsonObject = {"type": "object", "properties": {f"p{at}": {"type": "null"} for at in range(491)}}
    endless: JsonObject = {"anyOf": [{"$ref": "#"}]}
    for schema in (optional, endless):
        with pytest.raises(RequestError) as refused:
            compiler.begin_calls('start: "call"', [], other=schema_format(schema)).result()
        assert refused.value.param == "response_format.json_schema.schema"


def test_long_chains_of_references_are_followed_at_once(compiler: GrammarCompiler) -> None:
    """5,000 definitions, each of which refers to the one before and is spelled in its own way, take no second."""
    names = [f"d{number}" for number in range(5000)]
    defs: JsonObject = {name: {"$ref": f"#/%24defs/{before}"} for before, name in itertools.pairwise(names)}
    check_schema({"$ref": f"#/$defs/{names[-1]}", "$defs": {names[0]: {"type": "null"}} | defs})
    with pytest.raises(RequestError, match="leads back to itself"):
        check_schema({"$ref": f"#/$defs/{names[-1]}", "$defs": {names[0]: {"$ref": "#"}} | defs})


def test_a_failed_grammar_allows_nothing_instead_of_the_end(compiler: GrammarCompiler) -> None:
    """A grammar that went wrong says so when asked what may follow: an answer that ends there would look whole."""
    grammar = compiler.begin(schema_format({"type": "object"})).result()
    with pytest.raises(ValueError, match="cannot be enforced"):
        grammar.accept(NUM_TOKENS - 1)
    with pytest.raises(ValueError, match="grammar") as failed:
        grammar.mask()
    assert "<state>" not in told_briefly(failed.value)


FORMS: list[JsonObject] = [
    {"type": "object"},
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 9},
            "kind": {"enum": ["<|im_end|>", "naïve 中 🎉", "a"]},
        },
        "required": ["city", "kind"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": [True, None, -1.5]}},
    {"type": "string", "pattern": "^[ab]{3}$"},
]


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_masks_are_those_of_the_tokenizer_that_llguidance_would_make(tokenizer: ModelTokenizer, kind: str) -> None:
    """Along random walks each mask over our vocabulary is equal to that over llguidance's own reading of the file."""
    if kind == "sentencepiece":
        tokenizer = sentencepiece_tokenizer("{{ messages }}")
    whole = LLTokenizer(
        tokenizer.tokenizer.inner.to_str(), n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.end_ids)
    )
    ours = llguidance_tokenizer(ModelVocabulary(tokenizer))
    for schema, seed in itertools.product(FORMS, range(12)):
        draw, source = random.Random(seed), LLMatcher.grammar_from_json_schema(json.dumps(schema))
        reference, matcher = (LLMatcher(vocabulary, source, log_level=0) for vocabulary in (whole, ours))
        for _ in range(40):
            mask = reference.compute_bitmask()
            assert matcher.compute_bitmask() == mask
            tokens = [token for token in range(tokenizer.vocab_size) if mask[token // 8] >> token % 8 & 1]
            if reference.is_stopped() or not tokens:
                break
            token = draw.choice(tokens)
            assert reference.consume_token(token)
            assert matcher.consume_token(token)

"""Schemas that would keep the compiler or the engine's step busy for seconds are refused before they are compiled."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.grammars import schema_format
from support.waiting import wait_until

from pyagent import validate_partial
from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.grammars import GrammarBackend, GrammarMatcher, GrammarSource, GrammarVocabulary
from pyagent.core.messages import JsonObject, ResponseFormat
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output.lark_depth import check_depth
from pyagent.core.structured_output.lark_source import schemas_in
from pyagent.core.structured_output.schema_limits import repeated, source_excess
from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.tokens import ModelTokenizer


def names(count: int) -> list[str]:
    return [f"p{number}" for number in range(count)]


def pattern(text: str) -> JsonObject:
    return {"type": "string", "pattern": text}


def doubled(keyword: str, depth: int) -> JsonObject:
    """A schema whose size doubles at each of its references."""
    defs: JsonObject = {f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{depth}": pattern("^a")}}


BOMBS: list[tuple[JsonObject, str]] = [
    ({"allOf": [pattern(f".*{letter}.{{9}}x") for letter in "abcdefghijkl"]}, "at #: up to 8 patterns and formats"),
    (doubled("allOf", 25), "patterns and formats are taken for one text"),
    (
        {"patternProperties": {f"^{name}[a-z]+$": {} for name in names(500)}},
        "at #/patternProperties: an object has up to",
    ),
    ({"items": {"type": "integer", "multipleOf": 9999991}}, "at #/items/multipleOf: a factor"),
    ({"type": "number", "multipleOf": 0.1234567}, "at #/multipleOf: a factor"),
    ({"properties": {"a": pattern("^(a{1000}){1000}$")}}, "at #/properties/a/pattern: repetitions within repetitions"),
    (pattern("^((((a{10}){10}){10}){10}){10}$"), "got 100000"),
    (pattern("^(.{0,1000}){50}$"), "got 50000"),
    (pattern("a" * 30_000), "a pattern has up to 20000 characters"),
    ({"const": "a" * 900_000}, "at #/const: a text has up to 10000 characters"),
    ({"enum": [{"a": number, "b": [number]} for number in range(20_000)]}, "enum and const have up to"),
    ({"enum": names(60_000)}, "enum and const have up to"),
    ({"anyOf": [{"required": [name]} for name in names(5000)]}, "parts and required names"),
    ({"oneOf": [{"const": name} for name in names(3000)]}, "at #/oneOf: 2000 alternatives"),
    ({"type": "object", "required": names(20_000)}, "parts and required names"),
    ({"properties": {name: pattern(f"^{name}$") for name in names(700)}, "required": names(700)}, "different patterns"),
]


REPEATED: list[tuple[str, str]] = [
    ('start: (("a"{100}){100}){100}', "in a rule of a grammar, repetitions within repetitions repeat"),
    ('start: (("a"~100)~100)~1..100', "in a rule of a grammar"),
    ('start: A\nA: (("a"{100}){100}){100}', "in a terminal of a grammar"),
    ('start: A\nA: B{100}\nB: C{100}\nC: "a"{,100}', "up to 2000 times, got 1000000"),
    ("start: A\nA: /x{100}/{100}", "up to 2000 times, got 10000"),
    ('start: A\nA: "x"\nb: %lark {\nstart: A\nA: B{100}\nB: /x{30}/\n}', "up to 2000 times, got 3000"),
]


@pytest.mark.parametrize(("lark", "says"), REPEATED)
def test_repetitions_of_a_grammar_are_counted_before_it_is_compiled(
    compiler: GrammarCompiler, lark: str, says: str
) -> None:
    """Lark's own repetitions within repetitions are counted as a regex's, through the terminals that are named."""
    with pytest.raises(RequestError, match=says):
        compiler.begin(ResponseFormat("grammar", grammar=GrammarFormat(lark))).result()


@pytest.mark.parametrize(
    "lark",
    [
        'start: LINE{1,100}\nLINE: /[a-z]{1,80}/ "\\n"',
        'start: row{1,100}\nrow: (/[a-z]/{1,9} ","){1,20} "\\n"',
        'start: "((a{100}){100}){100}" // ((a{100}){100}){100}',
        'start: %json {"const": "((a{100}){100}){100}"} # ((a{100}){100}){100}',
        'start: "a" %lark {\nstart: A{40}\nA: "a"{100}\n}\nA: "x"{100}',
    ],
)
def test_repetitions_that_are_none_are_not_counted(compiler: GrammarCompiler, lark: str) -> None:
    """Comments, texts and schemas repeat nothing; a rule may repeat lexemes that repeat letters."""
    assert not compiler.begin(ResponseFormat("grammar", grammar=GrammarFormat(lark))).result().is_finished


def test_many_schemas_that_are_none_take_no_time() -> None:
    """A hundred thousand `%json` without JSON are looked at once: they took 20 s, for which nothing else ran."""
    small, large = (f"start: {'%json ' * count}" for count in (1_000, 100_000))
    assert _seconds(large) < 1000 * max(_seconds(small), 0.001)


def _seconds(lark: str) -> float:
    started = time.process_time()
    assert not [*schemas_in(ResponseFormat("grammar", grammar=GrammarFormat(lark)))]
    return time.process_time() - started


@pytest.mark.parametrize(("schema", "says"), BOMBS, ids=[says for _, says in BOMBS])
def test_schema_bomb_is_refused_at_once(compiler: GrammarCompiler, schema: JsonObject, says: str) -> None:
    """What would take seconds or hundreds of megabytes is refused with its place, before anything is compiled."""
    start = time.process_time()
    with pytest.raises(RequestError) as caught:
        compiler.begin(schema_format(schema)).result()
    assert says in str(caught.value)
    assert time.process_time() - start < 1.0  # some 20 ms, of all threads


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat(type="choice", choice=["a" * 50_000]),
        ResponseFormat(type="choice", choice=names(30_000)),
        ResponseFormat(type="regex", regex="(a{1000}){1000}"),
        ResponseFormat(type="grammar", grammar=GrammarFormat('start: "x" /(a{1000}){1000}/')),
    ],
    ids=["long text", "many texts", "regex", "lark"],
)
def test_other_bombs_are_refused_at_once(compiler: GrammarCompiler, wanted: ResponseFormat) -> None:
    """Choices, regexes and grammars have bounds too."""
    with pytest.raises(RequestError, match=r"cannot be enforced: .*up to"):
        compiler.begin(wanted).result()


@pytest.mark.parametrize(
    "schema",
    [
        pattern("^(a{10}){10}$"),
        pattern("^[a-z]{1,1000}(-[a-z]{1,100}){0,5}$"),
        {"type": "string", "maxLength": 10**6},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 10**6},
        {"type": "integer", "multipleOf": 86_400},
        {"type": "number", "multipleOf": 1e-9},
        {"enum": names(3000)},
        {"type": "object", "properties": {name: {"type": "string"} for name in names(300)}, "required": names(300)},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_large_schemas_of_honest_use_are_taken(compiler: GrammarCompiler, schema: JsonObject) -> None:
    """Bounds leave room for long texts, lists and enumerations, and for patterns with counts."""
    assert not compiler.begin(schema_format(schema)).result().is_finished


@given(st.text(alphabet="ab(){}[]\\,0123456789*|", max_size=60))
def test_counting_repetitions_ends_for_any_text(text: str) -> None:
    """Whatever stands in a pattern, its repetitions are counted; what is no regex the backend refuses."""
    assert repeated(text) >= 1


class Endless:
    """A backend that refuses at once, but does not end with `endless` grammars until it is told."""

    name = "endless"

    def __init__(self) -> None:
        self.end = threading.Event()

    def unavailable_reason(self) -> None:
        return None

    def open(self, vocabulary: GrammarVocabulary) -> GrammarBackend:
        del vocabulary
        return self

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        if "endless" not in source.text:
            raise RequestError("at once")
        self.end.wait(60)
        raise RequestError("ended")

    def fill_masks(self, rows: object, masks: memoryview) -> None:
        raise NotImplementedError


def test_grammar_that_compiles_for_ever_is_given_up(tokenizer: ModelTokenizer) -> None:
    """A request waits for its grammar no longer than the bound; then only its own tenant's wait for it to end."""
    backend = Endless()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend], compile_seconds=0.2)
    for tenant in ("anna", "ben", "cleo"):  # more than compile at once
        with pytest.raises(RequestError, match="did not compile within"):
            compiler.begin(schema_format({"const": "endless"}), tenant).result()
    with pytest.raises(RequestError, match="did not compile within"):
        compiler.begin(schema_format({"const": "endless too"}), "anna").result()
    with pytest.raises(CapacityError, match="still compile"):
        compiler.begin(schema_format({"type": "null"}), "anna").result()
    with pytest.raises(RequestError, match="did not compile within"):
        compiler.begin(schema_format({"const": "endless"}), "anna").result()
    wait_until(lambda: _compiles(compiler, "dora"))
    backend.end.set()
    wait_until(lambda: _compiles(compiler, "anna"))


def _compiles(compiler: GrammarCompiler, tenant: str) -> bool:
    try:
        compiler.begin(schema_format({"type": "null"}), tenant).result()
    except CapacityError:
        return False
    except RequestError as error:
        return "at once" in str(error)
    return False


@pytest.mark.parametrize("num_references", [1200, 2900])
def test_long_chain_of_references_does_not_end_the_process(compiler: GrammarCompiler, num_references: int) -> None:
    """What llguidance follows by calls has a stack that is deep enough, in the engine and where answers are checked."""
    defs: dict[str, object] = {
        f"d{number}": {"type": "array", "items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(num_references)
    }
    schema: JsonObject = {"$defs": {**defs, f"d{num_references}": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert not compiler.begin(schema_format(schema)).result().is_finished
    assert not validate_partial("[[", schema=schema)


@pytest.mark.parametrize("rule", ["r{}: r{}", 'r{}[capture="n"]: r{} "y"?', "r{}::_ : r{}::_"])
def test_rules_of_all_forms_lead_only_so_deep(compiler: GrammarCompiler, rule: str) -> None:
    """Options and parameters of rules hide none of them from the bound."""
    rules = "\n".join(rule.format(number, number + 1) for number in range(3000))
    wanted = ResponseFormat(type="grammar", grammar=GrammarFormat(f'start: r0\n{rules}\nr3000: "z"\n'))
    with pytest.raises(RequestError, match="deep into one another"):
        compiler.begin(wanted).result()


@pytest.mark.parametrize("text", ["a" * 300_000, "<" * 300_000, "\\/" * 150_000, '\\"' * 150_000])
def test_what_has_no_end_is_looked_at_once(text: str) -> None:
    """A word, a text or a regex that is not closed: looking again from each of its letters would take hours."""
    started = time.process_time()
    check_depth(f'start: "x"\n{text}')
    check_depth(f'start: "x"\n/{text}')
    source_excess(GrammarSource("lark", f"/{text}"))
    source_excess(GrammarSource("lark", f'"{text}'))
    assert time.process_time() - started < 10


def test_unclosed_repetitions_are_looked_at_once(compiler: GrammarCompiler) -> None:
    """Spaces or digits after a brace, and no end: in GBNF and in patterns."""
    started = time.process_time()
    for definition in ('root ::= "a"{' + " " * 50_000 + "x", 'root ::= "a"{' + "1" * 50_000 + "x"):
        with pytest.raises(RequestError):
            compiler.begin(ResponseFormat(type="grammar", grammar=GrammarFormat(definition, "gbnf"))).result()
    assert repeated("a{" + "1" * 15_000) == 1
    assert repeated("(a{2}){" + "1" * 15_000 + "}") > 1
    assert time.process_time() - started < 10


def test_long_names_do_not_multiply(compiler: GrammarCompiler) -> None:
    """The places of 2,000 schemas below a name of 50,000 letters would take 100 MB."""
    inner: JsonObject = {"properties": {str(number): {} for number in range(2000)}}
    with pytest.raises(RequestError, match="too long"):
        compiler.begin(schema_format({"properties": {"a" * 50_000: inner}})).result()


def test_slash_in_a_text_hides_no_pattern(compiler: GrammarCompiler) -> None:
    """A regex is bounded also where a text before it has a slash."""
    wanted = GrammarFormat('start: T\nT: "/" /((a{100}){100}){100}/\n')
    with pytest.raises(RequestError, match="repetitions within repetitions"):
        compiler.begin(ResponseFormat(type="grammar", grammar=wanted)).result()

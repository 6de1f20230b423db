"""GBNF as llguidance's Lark: the same texts, errors with their place, and bounded work for hostile grammars."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from pyagent.core.errors import RequestError
from pyagent.core.response_format import GrammarFormat, ResponseFormat
from pyagent.core.structured_output.gbnf import read_gbnf
from pyagent.core.structured_output.gbnf_lark import lark_of_gbnf
from pyagent.core.structured_output.lark_source import lark_of
from pyagent.core.structured_output.nodes import Chars, Either, Node, Ref, Repeat, Sequence, Text, Token

BYTES = LLTokenizer("byte")
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
OLD_SPACE = r"""
root ::= "[" ws (item ("," ws item)*)? "]"
item ::= "x" ws | root ws
ws ::= ([ \t\n] ws)?
"""
KEYS = r"""
root ::= "{" space name-kv ("," space more)? "}" space
more ::= string ":" space value | "[" more "]"
name-kv ::= "\"name\"" space ":" space string
value ::= string | root
string ::= "\"" [^"\\]* "\"" space
space ::= " "?
"""


def matcher(lark: str) -> LLMatcher:
    found = LLMatcher(BYTES, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not found.is_error(), (found.get_error(), lark)
    return found


def takes(start: LLMatcher, text: str) -> bool:
    one = start.deep_copy()
    tokens = BYTES.tokenize_bytes(text.encode())
    return one.try_consume_tokens(tokens) == len(tokens) and one.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= [a-z]* "foo"\n', ["foo", "xfoo", "foofoo"], ["", "fo", "foox"]),
        ('root ::= "(" root ")" | [a-z]* "foo"', ["foo", "(xfoo)"], ["(foo", "xfoof", "foo)"]),
        ('root ::= "foo" | [a-z] "x" | "(" root ")"', ["foo", "fx", "(gx)"], ["f", "fo", "foox"]),
        ("root ::= .{2}", ["ab", "\n\n", "é🎉"], ["a", "abc"]),
        ('root ::= [^\\n]+ "\\n"', ["é\n", "ab\n"], ["\n", "a", "a\nb\n"]),
        ('root ::= "\\x41\\u00e9\\U0001F389\\"\\\\"', ['Aé🎉"\\'], ["A"]),
        ("root ::= '\"' [a\\]^-]+ '\"'", ['"a]^-"'], ['"b"', '""']),
        ('root ::= a{2} b{1,} c{,2} # so\na::="a"\nb ::= "b"\nc ::= "c"', ["aab", "aabbcc"], ["ab", "aaccc", "aabccc"]),
        ("root ::=", [""], ["a"]),
        ('root ::= ("a" |) ("b" | "")', ["", "a", "b", "ab"], ["ba"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
        ('root ::= x\nx ::= "a" x "b" |', ["", "ab", "aabb"], ["a", "aab", "ba"]),
        ('root ::= "a" | [ab] root [^a]* | "cccc"', ["bacc", "bcccccc"], ["bb", "ccc"]),
        (JSON, ["{}", '{"a": [1, -2.5e3, "x\\u00e9"], "b": {"c": null }}'], ["{", '{"a": 01}', '{"a": "\n"}', "[]"]),
        (OLD_SPACE, ["[]", "[ \n\t x , [x] ]"], ["[", "[x x]"]),
        (KEYS, ['{"name": "n"}', '{"name":"n", "x": "y"}', '{"name":"n",["k":{"name" :"m"}]}'], ['{"x": "y"}']),
    ],
)
def test_grammar_takes_its_texts_and_no_others(grammar: str, right: list[str], wrong: list[str]) -> None:
    """What a grammar takes in llama.cpp it takes here, also where lexemes taken as long as can be would forbid it."""
    start = matcher(lark_of_gbnf(grammar))
    assert [text for text in right if not takes(start, text)] == []
    assert [text for text in wrong if takes(start, text)] == []


def _nodes() -> st.SearchStrategy[Node]:
    leaf: st.SearchStrategy[Node] = st.one_of(
        st.text("abc", max_size=3).map(Text),
        st.sampled_from([((97, 97),), ((97, 98),), ((98, 99),)]).map(Chars),
        st.just(Chars(((97, 97),), is_negated=True)),
        st.sampled_from(["root", "x", "y"]).map(Ref),
    )

    def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        several = st.lists(inner, min_size=1, max_size=3).map(tuple)
        times = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3)])
        repeated = st.builds(lambda one, count: Repeat(one, *count), inner, times)
        return st.one_of(several.map(Sequence), several.map(Either), repeated)

    return st.recursive(leaf, larger, max_leaves=8)


def _told(node: Node) -> str:
    """A node in GBNF."""
    match node:
        case Text(text):
            return f'"{text}"'
        case Chars(ranges, is_negated):
            return f"[{'^' if is_negated else ''}{''.join(f'{chr(low)}-{chr(high)}' for low, high in ranges)}]"
        case Ref(name):
            return name
        case Sequence(items):
            return f"({' '.join(map(_told, items))})"
        case Either(items):
            return f"({' | '.join(map(_told, items))})"
        case Repeat(item, least, most):
            return f"({_told(item)}){{{least},{'' if most is None else most}}}"
        case Token():
            raise AssertionError


def _ends(rules: Mapping[str, Node], text: str) -> set[int]:
    """Where what `root` takes from the beginning of a text may end: all ways, until nothing new is found."""
    known: dict[tuple[int, int], set[int]] = {}

    def ends(node: Node, at: int) -> set[int]:
        match node:
            case Text(letters):
                return {at + len(letters)} if text.startswith(letters, at) else set()
            case Chars(ranges, is_negated):
                if at == len(text):
                    return set()
                is_in = any(low <= ord(text[at]) <= high for low, high in ranges)
                return {at + 1} if is_in != is_negated else set()
            case Ref(name):
                return known.setdefault((id(rules[name]), at), set())
            case Sequence(items):
                places = {at}
                for item in items:
                    places = {end for place in places for end in ends(item, place)}
                return places
            case Either(items):
                return {end for item in items for end in ends(item, at)}
            case Repeat(item, least, most):
                found, places = set[int](), {at}
                for number in range((least + len(text) + 2) if most is None else most + 1):
                    found |= places if number >= least else set()
                    places = {end for place in places for end in ends(item, place)}
                return found
            case Token():
                raise AssertionError

    is_changed = True
    while is_changed:
        is_changed = False
        for name, at in itertools.product(rules, range(len(text) + 1)):
            found, before = ends(rules[name], at), known.setdefault((id(rules[name]), at), set())
            is_changed |= not found <= before
            before |= found
    return known[id(rules["root"]), 0]


TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product("abc", repeat=length)]


@settings(max_examples=30, deadline=None)
@given(_nodes(), _nodes(), _nodes())
def test_any_grammar_takes_the_texts_that_its_characters_say(root: Node, x: Node, y: Node) -> None:
    """Of random grammars, recursive and ambiguous ones too, llguidance takes what a search through all ways takes."""
    rules = {"root": root, "x": x, "y": y}
    lark = lark_of_gbnf("\n".join(f"{name} ::= {_told(node)}" for name, node in rules.items()))
    start = matcher(lark)
    texts = TEXTS[::5]
    right = {text for text in texts if len(text) in _ends(rules, text)}
    assert {text for text in texts if takes(start, text)} == right, lark


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a\n', "line 1, column 10: this text is not closed"),
        ('root ::= "a"\nb ::= ("x" | [a-', "line 2, column 14: this [ is not closed"),
        ('root ::= ("a"', "line 1, column 10: this ( is not closed"),
        ('root ::= "a")', "line 1, column 13: there is no ( for this )"),
        ("root ::= foo", "line 1, column 10: there is no rule foo"),
        ('x ::= "a"', "no rule `root`"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule root is there twice"),
        ("root ::= [z-a]", "column 14: the range goes backwards"),
        ("root ::= []", "this class has no characters"),
        ('root ::= "\\q"', "column 11: there is no escape \\q"),
        ('root ::= "\\ud800"', "expected a character by 4"),
        ('root ::= "a"{3,1}', "fewer than the least"),
        ('root ::= "a"{99999}', "at most 10000 repetitions"),
        ('root ::= "a"{x}', "expected {3}, {3,}"),
        ('root ::= "a"***', "more than 2 repetitions of one thing"),
        ('root ::= (= "a") "b"', "look-ahead is not supported"),
        ('root ::= "a" ; "b"', "column 14: ';' begins nothing"),
        ("hello", "line 1, column 1: expected a rule"),
        ("root ::= !<think>", "needs the token's id"),
        ("root ::= " + "(" * 100, "nested more than 40 deep"),
        ("root ::= " + '"a" ' * 40_000, "as GBNF 131072 are taken"),
        ("".join(f'r{n} ::= "a"\n' for n in range(3000)), "at most 2000 rules"),
    ],
)
def test_wrong_grammar_is_refused_with_its_place(grammar: str, words: str) -> None:
    """An error of a grammar says line, column and what is wrong."""
    with pytest.raises(RequestError) as caught:
        lark_of_gbnf(grammar)
    assert words in str(caught.value)
    assert "response_format.grammar" in str(caught.value)


HOSTILE = {
    "doubling": "root ::= r0 r0\n" + "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(60)) + 'r60 ::= "a"',
    "chain": "root ::= r0\n" + "".join(f'r{n} ::= "a" r{n + 1} "b"\n' for n in range(1900)) + "r1900 ::= root | [a]",
    "many lexemes": 'root ::= "(" root ")" | ' + " | ".join(f'[a-z] root "{n}"' for n in range(3000)),
    "unicode": 'root ::= "' + "".join(map(chr, range(0x4E00, 0x4E00 + 30_000))) + '" root | "x"',
    "classes": "root ::= root root | " + " | ".join(f"[a{chr(200 + n)}]+" for n in range(2000)),
    "deep": "root ::= " + "(" * 39 + '"a" root?' + ")*" * 39,
    "words": "a-" * 60_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammar_takes_bounded_time(name: str) -> None:
    """Doubling rules, long chains and thousands of parts are written in seconds, or refused by name."""
    began = time.process_time()
    try:
        lark = lark_of_gbnf(HOSTILE[name])
    except RequestError as error:
        assert "response_format.grammar" in str(error)  # noqa: PT017 - either will do
    else:
        assert len(lark) < 10 * len(HOSTILE[name]) + 10_000
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "lark",
    [
        "start: r0\n" + "\n".join(f'r{n}: "a" r{n + 1}' for n in range(8000)) + '\nr8000: "x"',
        "start: T0\n" + "\n".join(f'T{n}: "a" T{n + 1}' for n in range(8000)) + '\nT8000: "x"',
        "start: r0\n" + "\n".join(f"r{n}: {'(' * 20}r{n + 1}{')?' * 20}" for n in range(500)) + '\nr500: "x"',
    ],
    ids=["rules", "terminals", "parentheses"],
)
def test_rules_that_lead_too_deep_are_refused(lark: str) -> None:
    """A chain of rules that would use up the compiler's stack, and end the process, is refused."""
    with pytest.raises(RequestError, match="more than 1000 deep"):
        lark_of(ResponseFormat("grammar", grammar=GrammarFormat(lark)))


def test_wide_grammar_is_not_too_deep() -> None:
    """Thousands of rules beside one another are taken, whatever stands in their texts."""
    rules = "\n".join(f'r{n}: "r{n + 1} ((((" /r{n + 1}/ # r{n + 1}' for n in range(3000))
    lark = "start: " + " | ".join(f"r{n}" for n in range(3000)) + "\n" + rules
    assert lark_of(ResponseFormat("grammar", grammar=GrammarFormat(lark))) == lark


def test_rules_are_read_over_lines() -> None:
    """A rule goes on until the next one begins, with and without parentheses."""
    rules = read_gbnf('root ::= "a"\n  | "b" # one\n  "c"\nnext ::= root')
    assert [*rules] == ["root", "next"]
    assert takes(matcher(lark_of_gbnf('root ::= "a"\n  | "b" # one\n  "c"\nnext ::= root')), "bc")

"""Compiling grammars: in several threads, by the first backend that can, remembered for each tenant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.gated_grammars import Gated, choice
from support.waiting import wait_until

from pyagent.core.errors import ConfigError, PluginError, RequestError
from pyagent.core.grammars import GrammarMatcher, GrammarSource
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import JsonObject
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.grammar.choice import pick_grammar_backends
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.grammar.xgrammar import check
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.tokens import ModelTokenizer


def test_slow_grammar_delays_only_those_who_want_it(tokenizer: ModelTokenizer) -> None:
    """While one grammar compiles, another is compiled and given; equal ones of a tenant are compiled once."""
    backend = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend])
    slow = [compiler.begin(choice("slow"), "anna") for _ in range(2)]
    assert not compiler.begin(choice("quick"), "anna").result().is_finished
    assert not any(one.done() for one in slow)
    backend.gate.set()
    first, second = (one.result(60) for one in slow)
    first.accept(tokenizer.encode_text("s")[0])
    assert second.mask() != first.mask()
    assert sorted(backend.compiled) == ['["quick"]', '["slow"]']


def test_tenant_with_many_slow_grammars_leaves_a_turn_to_others(tokenizer: ModelTokenizer) -> None:
    """Two of a tenant's compile at once, and another tenant's beside them; those that wait come later."""
    backend = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend])
    slow = [compiler.begin(choice(f"slow {number}"), "anna") for number in range(4)]
    assert not compiler.begin(choice("quick"), "ben").result().is_finished
    wait_until(lambda: len(backend.compiled) == 3)
    assert set(backend.compiled) == {'["slow 0"]', '["slow 1"]', '["quick"]'}
    backend.gate.set()
    assert all(one.result(60) for one in slow)
    assert set(backend.compiled[3:]) == {'["slow 2"]', '["slow 3"]'}  # two at once: either may be written first


def test_request_that_leaves_takes_its_grammar_from_nobody(tokenizer: ModelTokenizer) -> None:
    """Where one of two requests for a grammar is cancelled, the other has it, and so has a later one."""
    backend = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend])
    first, second = (compiler.begin(choice("slow"), "anna") for _ in range(2))
    assert first.cancel()
    backend.gate.set()
    assert not second.result(60).is_finished
    assert not compiler.begin(choice("slow"), "anna").result().is_finished
    assert len(backend.compiled) == 1


def test_grammar_that_ends_late_is_of_use(tokenizer: ModelTokenizer) -> None:
    """What was given up and ends all the same is there for the next request."""
    backend = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend], compile_seconds=0.1)
    for _ in range(2):  # the second is told at once
        with pytest.raises(RequestError, match="did not compile within"):
            compiler.begin(choice("slow")).result()
    backend.gate.set()
    wait_until(lambda: compiler.begin(choice("slow")).exception() is None)
    assert len(backend.compiled) == 1


def test_tenants_do_not_share_what_is_compiled(tokenizer: ModelTokenizer) -> None:
    """What one tenant has compiled is compiled again for another, so that no time tells of it."""
    backend = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[backend])
    for tenant in ("anna", "bert", "anna"):
        compiler.begin(choice("a"), tenant).result()
    assert backend.compiled == ['["a"]'] * 2


class Refusing(Gated):
    """A backend that can enforce nothing, or breaks."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error
        self.name = f"refusing-{id(self)}"

    def compile(self, source: GrammarSource) -> GrammarMatcher:
        raise self._error


@pytest.mark.parametrize("error", [RequestError("not by me"), RuntimeError("secret"), SystemExit(2)], ids=repr)
def test_next_backend_is_asked_for_what_one_cannot(
    tokenizer: ModelTokenizer, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """What a backend refuses or breaks at, the next one enforces; the grammar says which, the log quotes nothing."""
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[Refusing(error), Gated()])
    assert compiler.begin(choice("a")).result().backend_name == "gated"
    assert "secret" not in caplog.text


def test_first_refusal_is_told_where_no_backend_can(tokenizer: ModelTokenizer) -> None:
    """The reason is that of the first backend that refused, not of one that broke."""
    broken, first, second = (Refusing(one) for one in (RuntimeError(), RequestError("first"), RequestError("second")))
    with pytest.raises(RequestError, match="first"):
        GrammarCompiler(ModelVocabulary(tokenizer), factories=[broken, first, second]).begin(choice("a")).result()
    with pytest.raises(PluginError, match="failed to compile: RuntimeError"):
        GrammarCompiler(ModelVocabulary(tokenizer), factories=[broken]).begin(choice("a")).result()


class Absent(Gated):
    name = "absent"

    def unavailable_reason(self) -> str:  # type: ignore[override]
        return "no such library"


def test_settings_choose_backends_and_their_order() -> None:
    """`auto` is llguidance and then what else can be used; names are taken at their word."""
    gated, absent = Gated(), Absent()
    brought = {"gated": gated, "absent": absent}
    assert [one.name for one in pick_grammar_backends(["auto"], brought)] == ["guidance", "gated"]
    assert pick_grammar_backends(["gated", "guidance"], brought) == (gated, GUIDANCE)
    for names, says in ((["absent"], "no such library"), (["gatd"], "did you mean 'gated'"), ([], "is empty")):
        with pytest.raises(ConfigError, match=says):
            pick_grammar_backends(names, brought)


class Plugin:
    """A plugin whose backend is what it is given."""

    def __init__(self, opened: object) -> None:
        self._opened = opened

    @hookimpl
    def pyagent_register_grammar_backends(self) -> list[Any]:
        return [SimpleNamespace(name="mine", unavailable_reason=self._fail, open=lambda vocabulary: self._opened)]

    def _fail(self) -> str:
        raise OSError("broken")


def test_bad_plugin_is_named(tokenizer: ModelTokenizer) -> None:
    """A backend that is none, or fails to say whether it can be used, is an error that names its plugin."""
    host = PluginHost()
    host.register(Plugin(object()), name="broken")
    (factory,) = [one for name, one in host.grammar_backends().items() if name == "mine"]
    assert "plugin 'broken' failed to say" in str(factory.unavailable_reason())
    with pytest.raises(PluginError, match="plugin 'broken': its grammar backend 'mine' has no `compile`"):
        GrammarCompiler(ModelVocabulary(tokenizer), factories=[factory]).begin(choice("a")).result()


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}, "required"),
        ({"type": "object", "required": ["b"]}, "required"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "array", "items": {"type": "array", "minItems": True}}, "items/minItems"),
    ],
)
def test_what_xgrammar_would_leave_out_goes_to_the_next_backend(schema: JsonObject, keyword: str) -> None:
    """Names that are required beyond the properties, and bounds with nothing between, xgrammar does not enforce."""
    with pytest.raises(RequestError, match=rf"xgrammar does not enforce \w+ there \(#/{keyword}\)"):
        check(schema)


def test_request_may_name_the_backend_that_is_asked_first(tokenizer: ModelTokenizer) -> None:
    """Of the backends that plugins bring, one is asked first, or alone; what it compiled is not given as another's."""
    gated = Gated()
    compiler = GrammarCompiler(ModelVocabulary(tokenizer), factories=[GUIDANCE, gated])
    asked = {
        name: compiler.begin(choice("a"), backend=name).result().backend_name for name in ("", "gated", "guidance")
    }
    assert asked == {"": "guidance", "gated": "gated", "guidance": "guidance"}
    assert compiler.begin(choice("b"), backend="gated:no-fallback").result().backend_name == "gated"
    with pytest.raises(RequestError, match=r"is one of auto, guidance, gated .*, got 'outlines'") as caught:
        compiler.check_backend("outlines")
    assert caught.value.param == "guided_decoding_backend"

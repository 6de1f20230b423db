"""What backends say of themselves: checked when they are made, passed on by wrappers, read in one way."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import msgspec
import pytest
from support.chains import HI, Played, ask, says

from pyagent.core import capabilities
from pyagent.core.abilities import ABILITIES, Abilities
from pyagent.core.backends import BackendFactory, LinkSpec, abilities_of
from pyagent.core.capabilities import PLAIN, Capabilities, capabilities_problem
from pyagent.core.chain import Chain, LinkSettings
from pyagent.core.config import Settings
from pyagent.core.errors import BackendError, ModelError, PluginError, RequestError
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import BeamSearch, ChatRequest, Hint, ModelInfo
from pyagent.core.plugins import PluginHost
from pyagent.infrastructure.backends.found import FoundLink
from pyagent.plugin import CacheQuery, CacheQueryResult, ViewCache
from pyagent.testing import EchoBackend

SOURCE = Path(capabilities.__file__).parents[1]


class Saying(EchoBackend):
    """A backend that says this of itself."""

    def __init__(self, said: object) -> None:
        super().__init__(name="mine:x")
        self.capabilities = said  # type: ignore[assignment]


async def _take_late(_hint: Hint) -> None:
    raise AssertionError


class Silent:
    """A backend as short as can be."""

    name = "mine:silent"
    models = chat = embed = health = close = EchoBackend.health


def made(backend: object) -> Capabilities:
    """The capabilities of a backend that a plugin called `mine` brings, as the chain reads them."""

    class Plugin:
        @hookimpl
        def pyagent_register_backends(self) -> dict[str, BackendFactory]:
            return {"mine": lambda _, __: backend}  # type: ignore[dict-item,return-value]

    host = PluginHost()
    host.register(Plugin(), "mine")
    return host.backends()["mine"](LinkSpec("mine", "x"), Settings()).capabilities


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"abilities": ["tools"]}, "whose `capabilities` is {'abilities': ['tools']}, expected pyagent.plugin.Cap"),
        (Capabilities, "expected pyagent.plugin.Capabilities(...)"),
        (None, "whose `capabilities` is None"),
        (
            Capabilities(abilities=frozenset({"tool"})),
            "`capabilities.abilities` names 'tool', which no request asks for",
        ),
        (Capabilities(abilities=frozenset({"tool"})), "did you mean 'tools'?"),
        (Capabilities(abilities=frozenset({"zzz"})), "there are add_special_tokens, "),
        (Capabilities(abilities={"tools"}), "`capabilities.abilities` is {'tools'}, expected a frozenset of names"),  # type: ignore[arg-type]
        (Capabilities(abilities=frozenset({3})), "expected a frozenset of names"),  # type: ignore[arg-type]
        (Capabilities(gives_several="yes"), "`capabilities.gives_several` is 'yes', expected True or False"),  # type: ignore[arg-type]
        (Capabilities(sends_headers=1), "`capabilities.sends_headers` is 1"),  # type: ignore[arg-type]
        (Capabilities(assistant_prefix=True), "is True, expected one of ignored, forwarded, continued"),  # type: ignore[arg-type]
        (Capabilities(assistant_prefix=[]), "`capabilities.assistant_prefix` is []"),  # type: ignore[arg-type]
        (Capabilities(url=None), "`capabilities.url` is None, expected a text"),  # type: ignore[arg-type]
        (Capabilities(load=True), "`capabilities.load` is True, expected an `async def` function, or None"),  # type: ignore[arg-type]
        (Capabilities(load=lambda: None), "expected an `async def` function, or None"),  # type: ignore[arg-type,return-value]
        (Capabilities(hint=_take_late), "expected a plain function, or None"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused_with_plugin_and_field(said: object, fault: str) -> None:
    """A backend with wrong capabilities is not made: the error names plugin, hook, field and what is right."""
    with pytest.raises(PluginError) as caught:
        made(Saying(said))
    assert str(caught.value).startswith("plugin 'mine' made a Saying for mine:x, whose `capabilities")
    assert fault in str(caught.value)
    assert (caught.value.plugin, caught.value.hook) == ("mine", "pyagent_register_backends")


def test_every_field_is_checked() -> None:
    """There is no field of the value that a plugin can fill with anything."""
    for field in Capabilities.__struct_fields__:
        problem = capabilities_problem(msgspec.structs.replace(PLAIN, **{field: 0.5}))
        assert problem is not None, field
        assert f"`capabilities.{field}` is 0.5, expected" in problem
    assert capabilities_problem(Capabilities(abilities=ABILITIES)) is None


def test_unknown_field_is_an_error_of_the_plugin() -> None:
    """A misspelt field fails where the plugin writes it, by name."""
    with pytest.raises(TypeError, match="abilites"):
        Capabilities(abilites=frozenset())  # type: ignore[call-arg]


def test_backend_that_says_nothing_is_plain() -> None:
    """A plugin's backend without `capabilities` is asked for text alone; one without a method is no backend."""
    assert made(Silent()) == PLAIN
    chain = Chain([Played("a", says("no")), Played("b", says("no"))])
    for asked in (ChatRequest(messages=HI, n=2), ChatRequest(messages=HI, beam=BeamSearch(width=2))):
        with pytest.raises(RequestError, match="gives several answers"):
            asyncio.run(anext(chain.chat(asked)))
    with pytest.raises(PluginError, match=r"which is not a Backend: it has no `models\(\)`"):
        made(object())


@pytest.mark.parametrize("name", ["native:x", "minex", "", None, 3])
def test_backend_is_named_after_its_scheme(name: object) -> None:
    """A backend under another scheme's name, which `rules.private` may trust, is refused."""
    backend = EchoBackend()
    backend.name = name  # type: ignore[assignment]
    with pytest.raises(PluginError, match="expected the scheme 'mine', or a name that begins with 'mine:'"):
        made(backend)


class Able:
    """A backend of a plugin that does all there is, and raises `SystemExit` once it is told to."""

    def __init__(self) -> None:
        self.name = "mine:x"
        self.hints: list[Hint] = []
        self.num_loads = 0
        self.fails = False
        self.error: BaseException = SystemExit(3)
        self.capabilities = Capabilities(
            abilities=frozenset({"tools", "images"}),
            gives_several=True,
            assistant_prefix="forwarded",
            sends_headers=True,
            url="http://there:1",
            abilities_of=self.abilities_of,
            load=self.load,
            hint=self.hint,
            query_cache=self.query_cache,
        )

    models = chat = embed = health = close = EchoBackend.health

    def _try(self) -> None:
        if self.fails:
            raise self.error

    async def abilities_of(self, _model: str) -> Abilities:
        self._try()
        return frozenset({"images"})

    async def load(self) -> None:
        self._try()
        self.num_loads += 1

    def hint(self, hint: Hint) -> None:
        self._try()
        self.hints.append(hint)

    async def query_cache(self, question: CacheQuery) -> CacheQueryResult:
        self._try()
        return CacheQueryResult(num_tokens=len(str(question)) and 7)


def test_wrappers_pass_on_what_a_plugins_backend_can() -> None:
    """Behind the guard and behind `auto`, hints, questions, loading and facts are those of the plugin's backend."""
    able = Able()
    guarded = Saying(made(able))
    found = FoundLink("mine:x", lambda: "", lambda: guarded)
    said = found.capabilities
    assert (said.abilities, said.url, said.sends_headers) == (able.capabilities.abilities, "http://there:1", True)
    chain = Chain([found], settings=[LinkSettings(use="mine:x", continues=True)])
    outer = Chain([chain])
    ask(outer)
    outer.hint(Hint(kind="release", session="s"))
    assert [hint.session for hint in able.hints] == ["s"]
    assert asyncio.run(outer.query_cache(ViewCache())).num_tokens == 7
    asyncio.run(outer.load())
    assert able.num_loads == 1
    assert (outer.capabilities.gives_several, outer.capabilities.assistant_prefix) == (True, "continued")
    assert asyncio.run(abilities_of(found, ModelInfo(id="m", reads_images=False))) == frozenset()


def test_functions_of_a_plugins_backend_are_contained(caplog: pytest.LogCaptureFixture) -> None:
    """`SystemExit` in one of them is an error of the backend, and a hint's failure keeps no other link from hints."""
    able, other = Able(), EchoBackend()
    guarded = Saying(made(able))
    able.fails = True
    chain = Chain([guarded, other])
    for name in ("mine:x", "echo"):
        ask(chain, model=name)
    chain.hint(Hint(kind="release", session="s"))
    assert [hint.session for hint in other.hints] == ["s"]
    assert "mine:x failed to take a hint" in caplog.text
    asyncio.run(chain.load())  # its first request tells what is wrong
    with pytest.raises(BackendError, match="the backend mine:x raised SystemExit"):
        asyncio.run(chain.query_cache(ViewCache()))
    able.error = KeyError("a bug")
    asyncio.run(chain.load())
    assert "cannot answer" not in caplog.text
    able.error = ModelError("its file is gone", model="x")
    asyncio.run(chain.load())
    assert "mine:x cannot answer: its file is gone" in caplog.text


def test_link_that_cannot_be_made_is_plain() -> None:
    """A link of `auto` whose plugin breaks takes no hints and keeps no prompts; the others do."""

    def breaks() -> EchoBackend:
        raise PluginError("broken", plugin="mine")

    other = EchoBackend()
    chain = Chain([FoundLink("mine", lambda: "", breaks), other])
    assert ask(chain).deltas[0].attempts[0].reason == "broken"
    chain.hint(Hint(kind="release", session="s"))
    assert len(other.hints) == 1
    assert chain.capabilities.abilities == frozenset()


def test_link_that_was_not_asked_is_not_made_for_a_hint() -> None:
    """A hint is about what a link computed: one of `auto` that never was asked is not even imported for it."""
    num_made = 0

    def make() -> EchoBackend:
        nonlocal num_made
        num_made += 1
        return EchoBackend()

    first = EchoBackend()
    chain = Chain([first, FoundLink("later", lambda: "", make)])
    ask(chain)
    chain.hint(Hint(kind="release", session="s"))
    assert (len(first.hints), num_made) == (1, 0)


@pytest.mark.parametrize("fields", [{}, {"assistant_prefix": "a"}], ids=str)
def test_link_of_auto_is_made_beside_the_event_loop(fields: dict[str, str]) -> None:
    """Making one may import its plugin, which takes as long as it takes; other requests go on meanwhile."""
    makers: list[str] = []

    def make() -> Played:
        makers.append(threading.current_thread().name)
        return Played("mine", says("hi"), continues=True)

    chain = Chain([FoundLink("mine", lambda: "", make)])
    assert [ask(chain, **fields).text for _ in range(2)] == ["hi", "hi"]
    assert len(makers) == 1
    assert makers[0] != threading.main_thread().name


def test_backends_are_not_searched_for_attributes() -> None:
    """What a backend can is read from its value: nowhere is an attribute looked for that it may have or not."""
    looks = re.compile(r"\b(?:hasattr|getattr)\(\s*[\w.]*_?backend\b")
    found = [
        f"{file.relative_to(SOURCE)}: {match[0]}"
        for file in SOURCE.rglob("*.py")
        for match in looks.finditer(file.read_text(encoding="utf-8"))
    ]
    assert sorted(found) == ["core/capabilities.py: getattr(backend"] + ["core/plugin_checks.py: getattr(backend"] * 2
    rooms = [*(SOURCE / "core/chain").rglob("*.py"), *(SOURCE / "infrastructure/server").rglob("*.py")]
    assert not [file for file in rooms if "hasattr(" in file.read_text(encoding="utf-8")]

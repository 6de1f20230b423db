"""Forms of answers on links whose servers have no grammars, or other ones than ours."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from support.chains import HI, Played, says
from support.server import serving
from support.waiting import until

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, DeadlineError
from pyagent.core.messages import ChatRequest, FunctionCall, Message, ResponseFormat, SamplingParams, ToolCall
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_cache.cache import ResponseCache
from pyagent.core.response_cache.store import ResponseStore
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output import work
from pyagent.core.structured_output.matching import fault_of_text
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.testing import openai_server

AMBIGUOUS = 'start: s\ns: s s | "a" | "ab" | "b"'
LONG = "ab" * 50_000
DEEP: Any = {"anyOf": [{"type": "integer"}] * 3000}


@asynccontextmanager
async def asking(*chain: Any) -> AsyncGenerator[Callable[..., Any]]:
    """A server over a chain, as a function that posts a chat with some fields."""
    settings = load_settings(overrides={"chain": list(chain), "engine.threads": 1}).settings
    backend = make_chain(settings, make_host(settings))
    async with serving(backend) as url, httpx.AsyncClient(base_url=url, timeout=60, verify=False) as http:

        async def ask(**fields: Any) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": "go"}], **fields}
            return await (http.post("/v1/chat/completions", json=body) if fields else http.get("/health"))

        yield ask
        await backend.close()


def said(answer: httpx.Response) -> str:
    """The text of a whole answer."""
    return answer.json()["choices"][0]["message"]["content"]


async def num_turns(task: asyncio.Task[Any], others: Callable[[], Any]) -> int:
    """How often others had their turn until the task was done."""
    count = 0
    while not task.done():
        await others()
        count += 1
    return count


def test_check_of_an_ambiguous_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 kB of an ambiguous grammar: the check ends at its bound with an error that says so; others are answered."""
    monkeypatch.setattr(work, "WORK_SECONDS", 0.3)

    async def main(url: str) -> tuple[httpx.Response, int]:
        async with asking(f"openai:{url}") as ask:
            form = {"type": "grammar", "grammar": AMBIGUOUS}
            task = asyncio.create_task(ask(response_format=form))
            turns = await num_turns(task, ask)
            return task.result(), turns

    with openai_server(answer=LONG) as server:
        answer, turns = asyncio.run(main(server.url))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "response_format")
    assert "takes over 0.3 s" in error["message"]
    assert (len(server.requests), turns > 3) == (1, True)


@pytest.mark.parametrize("has_cache", [False, True])
def test_check_of_a_chain_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, *, has_cache: bool) -> None:
    """An answer that takes too long to check is given, as one that cannot be checked; the event loop goes on."""
    monkeypatch.setattr(work, "WORK_SECONDS", 0.15)
    cache = ResponseCache(ResponseStore(1 << 20, 60.0)) if has_cache else None

    async def main() -> tuple[list[str], int]:
        chain = Chain([Played("a", says(LONG))], response_cache=cache)
        form = ResponseFormat("grammar", grammar=GrammarFormat(AMBIGUOUS))
        sampling = SamplingParams(temperature=0.0)
        asked = ChatRequest(messages=HI, response_format=form, whole=not has_cache, sampling=sampling)
        turns, texts = 0, list[str]()
        for _ in range(2):
            task = asyncio.create_task(collect(chain.chat(asked)))
            turns += await num_turns(task, lambda: asyncio.sleep(0.001))
            texts.append(task.result().text)
        return texts, turns

    texts, turns = asyncio.run(main())
    assert texts == [LONG, LONG]
    assert turns > 4  # a held loop has one turn or two a time
    assert cache is None or (cache.stats().num_hits, cache.stats().num_misses) == (1, 1)


def test_checks_wait_for_their_own_tenant_alone() -> None:
    """A check that does not end holds up its tenant's next ones, until their deadline; these are never begun."""
    go, begun = threading.Event(), list[str]()

    def check(name: str) -> str:
        begun.append(name)
        return name if name != "stuck" else str(go.wait(20))

    async def main() -> None:
        stuck = asyncio.create_task(work.checked_aside(lambda: check("stuck"), Deadline(), "one"))
        await until(lambda: bool(begun))
        assert await work.checked_aside(lambda: check("other"), Deadline(), "two") == "other"
        with pytest.raises(DeadlineError):
            await work.checked_aside(lambda: check("late"), Deadline.after(0.01), "one")
        go.set()
        assert await stuck == "True"
        assert await work.checked_aside(lambda: check("next"), Deadline(), "one") == "next"

    asyncio.run(main())
    assert begun == ["stuck", "other", "next"]


def test_check_that_no_request_waits_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that leaves ends its check, though that had an hour: the tenant's next one has its turn."""
    monkeypatch.setattr(work, "WORK_SECONDS", 3600.0)
    form, begun = ResponseFormat("grammar", grammar=GrammarFormat(AMBIGUOUS)), list[str]()

    def check() -> str | None:
        begun.append("long")
        return fault_of_text(LONG, form)

    async def main() -> str | None:
        task = asyncio.create_task(work.checked_aside(check, Deadline(), "one"))
        await until(lambda: bool(begun))
        task.cancel()
        return await work.checked_aside(lambda: fault_of_text("ab" * 10, form), Deadline(), "one")

    assert asyncio.run(main()) is None


WRONG: list[tuple[Any, str]] = [
    ({"type": "regex", "pattern": "(a"}, "unclosed group"),
    ({"type": "regex", "pattern": "((a{100}){100}){100}"}, "repetitions within repetitions"),
    ({"type": "grammar", "grammar": 'start: "a'}, "lexer error"),
    ({"type": "grammar", "grammar": 'root ::= "a" b'}, "no rule b"),
    ({"type": "any_of", "any_of": [{"type": "text"}, {"type": "regex", "pattern": "(?=a)"}]}, "look-around"),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strnig"}}}, "strnig"),
    (
        {"type": "any_of", "any_of": [{"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}]},
        "2000 alternatives",
    ),
]


def test_form_that_is_none_is_refused_before_the_model_is_asked() -> None:
    """A regex, grammar or schema that is wrong or too large is the caller's fault: 400, and no link is asked."""

    async def main(*chain: str) -> list[httpx.Response]:
        async with asking(*chain) as ask:
            return [await ask(response_format=form) for form, _ in WRONG]

    with openai_server() as server, openai_server() as other:
        answers = asyncio.run(main(f"openai:{server.url}", f"openai:{other.url}"))
    for answer, (_, why) in zip(answers, WRONG, strict=True):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"].partition(".")[0]) == (400, "response_format")
        assert why in error["message"]
    assert server.requests == other.requests == []


def test_grammar_of_tokens_is_left_to_links_that_know_them(tiny_model_path: Path) -> None:
    """A grammar that names tokens cannot be told in words: the chain goes on to the embedded engine."""

    async def main(*chain: str) -> httpx.Response:
        async with asking(*chain) as ask:
            form = {"type": "grammar", "grammar": "start: <[5]> <[6]>"}
            return await ask(response_format=form, max_tokens=4, return_token_ids=True)

    with openai_server() as server:
        answer = asyncio.run(main(f"openai:{server.url}", f"native:{tiny_model_path}")).json()
    assert answer["choices"][0]["token_ids"][:2] == [5, 6]
    assert server.requests == []


DATE = {"type": "regex", "pattern": "[0-9]{4}"}
CHOICE = {"type": "choice", "choice": ['a "b"', "c\n"]}
GBNF = {"type": "grammar", "grammar": "root ::= [0-9]+"}
LARK = {"type": "grammar", "grammar": "start: /[0-9]+/"}
TAGS: Any = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
}


@pytest.mark.parametrize(
    ("owner", "form", "answer", "fields"),
    [
        ("vllm", DATE, "2030", {"structured_outputs": {"regex": "[0-9]{4}"}}),
        ("vllm", CHOICE, "c\n", {"structured_outputs": {"choice": CHOICE["choice"]}}),
        ("vllm", GBNF, "12", {"structured_outputs": {"grammar": "root ::= [0-9]+"}}),
        ("vllm", LARK, "12", {"structured_outputs": {"grammar": "start: /[0-9]+/"}}),
        ("vllm", TAGS, "<a>x</a>", {"structured_outputs": {"structural_tag": json.dumps(TAGS)}}),
        ("sglang", DATE, "2030", {"regex": "[0-9]{4}"}),
        ("sglang", GBNF, "12", {"ebnf": "root ::= [0-9]+"}),
        ("sglang", TAGS, "<a>x</a>", {"response_format": TAGS}),
        ("llamacpp", GBNF, "12", {"grammar": "root ::= [0-9]+"}),
        ("llamacpp", DATE, "2030", {"grammar": "root ::= [0-9]{4}"}),
        ("llamacpp", CHOICE, 'a "b"', {"grammar": 'root ::= "a \\"b\\"" | "c\\n"'}),
    ],
)
def test_form_is_passed_on_to_a_server_that_has_it(owner: str, form: Any, answer: str, fields: Any) -> None:
    """vLLM, SGLang and llama.cpp are told from their lists of models, and asked in their own fields, not in words."""

    async def main(url: str) -> list[httpx.Response]:
        async with asking(f"openai:{url}") as ask:
            return [await ask(response_format=form), await ask(response_format=form, stream=True)]

    with openai_server(owned_by=owner, constrained=answer) as server:
        whole, streamed = asyncio.run(main(server.url))
    assert said(whole) == answer
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == answer
    own = [{name: value for name, value in body.items() if name in fields} for body in server.requests]
    assert own == [fields, fields]
    assert [len(cast("Any", body["messages"])) for body in server.requests] == [1, 1]


@pytest.mark.parametrize(
    ("owner", "form", "more"),
    [
        ("fake", DATE, {}),  # what it does with the fields of others is not known
        ("sglang", LARK, {}),
        ("llamacpp", {"type": "regex", "pattern": r"\p{Nd}{4}"}, {}),
        ("llamacpp", GBNF, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
)
def test_form_that_a_server_does_not_have_is_asked_in_words(owner: str, form: Any, more: Any) -> None:
    """Of a form that the server lacks, or a server that is none of these, the model is told in words, as ever."""

    async def main(url: str) -> httpx.Response:
        async with asking(f"openai:{url}") as ask:
            return await ask(response_format=form, **more)

    with openai_server(owned_by=owner, answer="2030") as server:
        assert said(asyncio.run(main(server.url))) == "2030"
    (body,) = server.requests
    assert not {"structured_outputs", "regex", "ebnf", "grammar", "response_format"} & body.keys()
    assert len(cast("Any", body["messages"])) == 2


def test_link_says_which_server_it_is() -> None:
    """`server` in the link's table is taken at its word, over what the list of models says."""

    async def main(url: str) -> list[str]:
        async with asking({"use": f"openai:{url}", "server": "vllm"}) as ask:
            first = said(await ask(response_format=DATE))
        async with asking({"use": f"openai:{url}", "server": "openai"}) as ask:
            return [first, said(await ask(response_format=DATE))]

    with openai_server(owned_by="vllm", constrained="2030", answer="1999") as server:
        assert asyncio.run(main(server.url)) == ["2030", "1999"]
    for table in ({"use": "openai:http://a/v1", "server": "vlm"}, {"use": "native", "server": "vllm"}):
        with pytest.raises(ConfigError, match="server"):
            asyncio.run(closed(table))


async def closed(*chain: Any) -> None:
    """Make a server over a chain, and end it."""
    async with asking(*chain):
        pass


def test_server_that_leaves_a_form_out_is_asked_in_words() -> None:
    """An answer that a server did not hold to the form is not shown; the same model is asked in words from then on."""

    async def main(url: str) -> list[str]:
        async with asking(f"openai:{url}") as ask:
            return [(await ask(response_format=DATE, stream=True)).text, said(await ask(response_format=DATE))]

    def answer(body: Any) -> str:
        return "no date" if "structured_outputs" in body else "2030"

    with openai_server(owned_by="vllm", answer=answer) as server:
        streamed, whole = asyncio.run(main(server.url))
    assert ("2030" in streamed, "no date" in streamed, whole) == (True, False, "2030")
    assert ["structured_outputs" in body for body in server.requests] == [True, False, False]


@pytest.mark.parametrize("is_late", [False, True])
def test_form_that_a_server_refuses_is_asked_in_words(*, is_late: bool) -> None:
    """A server that says 400 to a form, vLLM within the stream, is asked in words then."""

    async def main(url: str) -> httpx.Response:
        async with asking(f"openai:{url}") as ask:
            return await ask(response_format=DATE)

    with openai_server(owned_by="vllm", refused=("structured_outputs",), refuses_late=is_late, answer="2030") as server:
        assert said(asyncio.run(main(server.url))) == "2030"
    assert ["structured_outputs" in body for body in server.requests] == [True, False]


@pytest.mark.parametrize(
    ("results", "ids"),
    [
        ([Message("tool", "1", "g"), Message("tool", "2", "f")], ["c1", "c0"]),
        ([Message("tool", "1"), Message("tool", "2")], ["c0", "c1"]),
        ([Message("tool", "1"), Message("tool", "2", tool_call_id="c0")], ["c1", "c0"]),
    ],
)
def test_result_of_a_tool_has_the_id_of_its_call(results: list[Message], ids: list[str]) -> None:
    """A result without an id, as a program may write it, answers the call of its name, or the first that has none."""
    calls = [ToolCall(id=f"c{number}", function=FunctionCall(name, "{}")) for number, name in enumerate("fg")]
    request = ChatRequest(messages=[*HI, Message("assistant", "", tool_calls=calls), *results])

    async def main(url: str) -> None:
        backend = OpenAIBackend(url)
        await collect(backend.chat(request))
        await backend.close()

    with openai_server() as server:
        asyncio.run(main(server.url))
    told = cast("list[Any]", server.requests[0]["messages"])
    assert [message["tool_call_id"] for message in told if message["role"] == "tool"] == ids


def test_result_of_a_tool_without_a_call_is_refused_by_name() -> None:
    """litellm sends results alone to Ollama's API: OpenAI's knows no such, and the message is named."""

    async def main(url: str) -> httpx.Response:
        settings = load_settings(overrides={"chain": [f"openai:{url}"]}).settings
        backend = make_chain(settings, make_host(settings))
        async with serving(backend) as own, httpx.AsyncClient(base_url=own, timeout=60, verify=False) as http:
            messages = [{"role": "user", "content": "go"}, {"role": "tool", "content": "1", "tool_name": "f"}]
            answer = await http.post("/api/chat", json={"model": "fake-1", "messages": messages, "stream": False})
            await backend.close()
            return answer

    with openai_server() as server:
        answer = asyncio.run(main(server.url))
    assert (answer.status_code, "messages[1]" in answer.text, server.requests) == (400, True, [])

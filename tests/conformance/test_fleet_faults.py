"""The suites of what a fleet is made of notice what each rule is for: a table of faults, one and more for a rule."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import typer
from support.suites import check_rule_is_kept, rules_of

from pyagent.core.errors import AgentError, BackendError
from pyagent.core.fleet.executor import InProcess
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.web_search import SearchHit
from pyagent.infrastructure.engine.runners.torch.parallel.processes import ChildRanks
from pyagent.testing import (
    AgentConformance,
    CommandConformance,
    ExecutorConformance,
    GuardrailConformance,
    RankExecutorConformance,
    SearchProviderConformance,
    ToolConformance,
    ToolProviderConformance,
)

Fault = tuple[type, str, Callable[..., object], str]


class Number(msgspec.Struct):
    number: int


class GoodAgent:
    name = "good"
    description = "Repeats."
    is_pure = True

    async def run(self, context: Any, task: Any) -> str:
        return str(await context.generate(task.text))

    def score(self, task: Any) -> float:
        return 0.5

    async def close(self) -> None: ...


class Mute(GoodAgent):
    description = ""


class Silent(GoodAgent):
    async def run(self, context: Any, task: Any) -> str:
        return ""


class Strange(GoodAgent):
    async def run(self, context: Any, task: Any) -> object:
        return {1: {2: object()}, "shown": type}


class Forgetful(GoodAgent):
    async def run(self, context: Any, task: Any) -> str:
        self.text = task.text
        await asyncio.sleep(0.01)
        return str(self.text)


class Counting(GoodAgent):
    def __init__(self) -> None:
        self.count = itertools.count()

    async def run(self, context: Any, task: Any) -> str:
        return str(next(self.count))


class Stubborn(GoodAgent):
    async def run(self, context: Any, task: Any) -> str:
        try:
            return str(await context.generate(task.text))
        except asyncio.CancelledError:
            await asyncio.sleep(3)
            raise


class Hiding(GoodAgent):
    async def run(self, context: Any, task: Any) -> str:
        try:
            return str(await context.generate(task.text))
        except BackendError:
            raise AgentError("something is wrong", agent="good") from None


class Trusting(GoodAgent):
    async def run(self, context: Any, task: Any) -> str:
        return str(float(task.text) if task.text not in {"one", "two"} else 1)


class Proud(GoodAgent):
    def score(self, task: Any) -> float:
        return 2.0


class ClosedOnce(GoodAgent):
    is_closed = False

    async def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


async def double(arguments: Number) -> int:
    await asyncio.sleep(0)
    return 2 * arguments.number


def good_tool(function: Any = double, description: str = "Doubles.", kind: type[FleetTool] = FleetTool) -> FleetTool:
    return kind("double", description, Number, function, effect="none")


class Misreading(FleetTool):
    async def checked(self, arguments: Any) -> object:
        return Number(0) if isinstance(arguments, str) else await FleetTool.checked(self, arguments)


class Lenient(FleetTool):
    async def checked(self, arguments: Any) -> object:
        return Number(7)


def mixing() -> FleetTool:
    last: list[int] = []

    async def call(arguments: Number) -> int:
        last[:] = [arguments.number]
        await asyncio.sleep(0.01)
        return last[0]

    return good_tool(call)


def counting() -> FleetTool:
    count = itertools.count()

    async def call(arguments: Number) -> int:
        return next(count)

    return good_tool(call)


async def strange(arguments: Number) -> object:
    return object()


class GoodProvider:
    name = "good"

    async def open(self) -> list[Any]:
        return [good_tool()]

    async def close(self) -> None: ...


class Unclosed(GoodProvider):
    close = None  # type: ignore[assignment]


class Empty(GoodProvider):
    async def open(self) -> list[Any]:
        return []


class Twins(GoodProvider):
    async def open(self) -> list[Any]:
        return [good_tool(), good_tool()]


class ProviderClosedOnce(ClosedOnce, GoodProvider):  # type: ignore[misc]
    pass


class Leaving(GoodProvider):
    async def open(self) -> list[Any]:
        self.task = asyncio.create_task(asyncio.sleep(60), name="left")
        return [good_tool()]


class Hasty(GoodProvider):
    began = False

    async def open(self) -> list[Any]:
        self.began = True
        await asyncio.sleep(0.1)
        self.connection = "open"
        return [good_tool()]

    async def close(self) -> None:
        if self.began:
            assert self.connection


class GoodGuardrail:
    name = "good"

    async def check_task(self, context: Any, task: Any) -> str | None:
        return self.reason(task.text)

    async def check_call(self, context: Any, tool: str, arguments: Any) -> str | None:
        return self.reason(str(arguments))

    def reason(self, text: str) -> str | None:
        return "it is bad" if "bad" in text else None


class Checkless:
    name = "checkless"


class RefusesAll(GoodGuardrail):
    def reason(self, text: str) -> str | None:
        return "no"


class PassesAll(GoodGuardrail):
    def reason(self, text: str) -> str | None:
        return None


class Talkative(GoodGuardrail):
    def reason(self, text: str) -> str | None:
        return "it is\nbad" if "bad" in text else None


class Fragile(GoodGuardrail):
    def reason(self, text: str) -> str | None:
        assert "\x00" not in text
        return super().reason(text)


class Meddling(GoodGuardrail):
    async def check_call(self, context: Any, tool: str, arguments: Any) -> str | None:
        arguments["text"] = "another"
        return None


class Mixing(GoodGuardrail):
    async def check_task(self, context: Any, task: Any) -> str | None:
        self.text = task.text
        await asyncio.sleep(0.01)
        return self.reason(self.text)


class Shown(InProcess):
    async def run(self, agent: Any, context: Any, task: Any) -> object:
        return str(await agent.run(context, task))


class Wrapping(InProcess):
    async def run(self, agent: Any, context: Any, task: Any) -> object:
        try:
            return await agent.run(context, task)
        except Exception as error:
            raise AgentError(str(error), agent="worker") from error


class Alone(InProcess):
    async def run(self, agent: Any, context: Any, task: Any) -> object:
        return await agent.run(None, task) if task.text.startswith("ask") else await agent.run(context, task)


class Confusing(InProcess):
    async def run(self, agent: Any, context: Any, task: Any) -> object:
        self.task = task
        await asyncio.sleep(0.01)
        return await agent.run(context, self.task)


class Spoilt(InProcess):
    is_spoilt = False

    async def run(self, agent: Any, context: Any, task: Any) -> object:
        if self.is_spoilt:
            raise AgentError("it was cancelled before", agent="worker")
        try:
            return await agent.run(context, task)
        except asyncio.CancelledError:
            self.is_spoilt = True
            raise


class ExecutorClosedOnce(ClosedOnce, InProcess):  # type: ignore[misc]
    run = InProcess.run  # type: ignore[assignment]


class Rank:
    def __init__(self, number: int = 1) -> None:
        self.process_id = number
        self.num_kills = 0

    def wait(self, seconds: float | None = None) -> Any:
        return "it ended"

    def kill(self) -> None:
        self.num_kills += 1


class CodedRank(Rank):
    def wait(self, seconds: float | None = None) -> Any:
        return 1


class SlowRank(Rank):
    def wait(self, seconds: float | None = None) -> Any:
        time.sleep(0.6)
        return "it ended"


class KilledOnce(Rank):
    def kill(self) -> None:
        super().kill()
        assert self.num_kills == 1, "killed twice"


def ranks(kind: type[Rank], gives_devices: object = False) -> Any:
    class Ranks:
        def start(self, told: Any) -> list[Rank]:
            numbers = itertools.repeat(1) if kind is Rank else itertools.count()
            return [kind(number) for _, number in zip(told, numbers, strict=False)]

    Ranks.gives_devices = gives_devices  # type: ignore[attr-defined]
    return Ranks()


def greet(name: str = "you") -> None:
    """Greet somebody."""
    print(f"hello {name}")


def undescribed() -> None: ...


def lenient_command() -> Any:
    app = typer.Typer()
    app.command("greet", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(greet)
    return {"greet": app}


def failing_command(name: str = "you") -> None:
    """Fail."""
    raise RuntimeError("no")


class GoodSearch:
    """Finds a page for each word of a query."""

    broken: Any = None

    async def search(self, query: str, limit: int) -> list[Any]:
        return [SearchHit(f"https://{word}.example/") for word in query.split() if word.isalpha()][:limit]


class BrokenSearch(GoodSearch):
    told = "no answer"

    async def search(self, query: str, limit: int) -> list[Any]:
        raise BackendError(self.told.format(query), backend="search")


class PlainSearch(GoodSearch):
    def search(self, query: str, limit: int) -> Any:
        return super().search(query, limit)


GoodSearch.broken = BrokenSearch


class Mailing(GoodSearch):
    async def search(self, query: str, limit: int) -> list[Any]:
        return [SearchHit("mailto:me")]


class Untyped(GoodSearch):
    async def search(self, query: str, limit: int) -> list[Any]:
        return [{"url": "https://a.example"}]


class Boundless(GoodSearch):
    async def search(self, query: str, limit: int) -> list[Any]:
        return await super().search(query, 100)


class Quoting(GoodSearch):
    async def search(self, query: str, limit: int) -> list[Any]:
        if query.count('"') % 2:
            raise ValueError("unbalanced")
        return await super().search(query, limit)


class Shared(GoodSearch):
    query = ""

    async def search(self, query: str, limit: int) -> list[Any]:
        self.query = query
        await asyncio.sleep(0)
        return await super().search(self.query, limit)


class Unending(GoodSearch):
    async def search(self, query: str, limit: int) -> list[Any]:
        found = await super().search(query, limit)
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            await asyncio.sleep(6)
        return found


class Telling(BrokenSearch):
    told = "no answer to {}"


class TellingSearch(GoodSearch):
    broken = Telling


SHARED = Shared()
INPUTS: dict[type, dict[str, Any]] = {
    AgentConformance: {"tasks": ("one", "two")},
    ToolConformance: {"examples": ({"number": 3}, {"number": 4})},
    GuardrailConformance: {"passes": ("good one",), "refuses": ("bad one",)},
    CommandConformance: {"calls": ([], ["--name", "me"])},
    SearchProviderConformance: {
        "queries": ("tides power", "bread"),
        "make_broken": lambda self: self.make().broken(),
    },
}
GOOD: dict[type, Callable[[], object]] = {
    AgentConformance: GoodAgent,
    ToolConformance: good_tool,
    ToolProviderConformance: GoodProvider,
    GuardrailConformance: GoodGuardrail,
    ExecutorConformance: InProcess,
    RankExecutorConformance: ChildRanks,
    CommandConformance: lambda: {"greet": greet},
    SearchProviderConformance: GoodSearch,
}
FAULTS: list[Fault] = [
    (AgentConformance, "host_takes_the_agent", Mute, "`description` is ''"),
    (AgentConformance, "task_ends_with_a_result_of_its_type", Silent, "empty answer"),
    (AgentConformance, "task_ends_with_a_result_of_its_type", Strange, "JSON"),
    (AgentConformance, "tasks_at_once_do_not_mix", Forgetful, "it gives 'two' and 'one'"),
    (AgentConformance, "pure_agent_repeats_itself", Counting, "it gives '0' and '1'"),
    (AgentConformance, "cancelled_run_ends_at_once", Stubborn, "went on after it was cancelled"),
    (AgentConformance, "model_that_fails_is_told_as_such", Hiding, "the reason is lost"),
    (AgentConformance, "odd_text_ends_with_a_result_or_an_own_error", Trusting, "ends with a fault"),
    (AgentConformance, "score_is_a_quick_share", Proud, "2.0"),
    (AgentConformance, "close_is_safe_twice", ClosedOnce, ""),
    (ToolConformance, "host_takes_the_tool", lambda: good_tool(description=" "), "no description"),
    (ToolConformance, "examples_are_answered_with_json", lambda: good_tool(strange), "JSON"),
    (ToolConformance, "json_text_is_taken_like_a_dict", lambda: good_tool(kind=Misreading), "read differently"),
    (ToolConformance, "arguments_of_another_type_are_refused", lambda: good_tool(kind=Lenient), "does not follow"),
    (ToolConformance, "calls_at_once_do_not_mix", mixing, "it gives 4 and 3"),
    (ToolConformance, "call_without_effect_can_be_repeated", counting, "it gives 0 and 1"),
    (ToolProviderConformance, "host_takes_the_provider", Unclosed, "`close` is not"),
    (ToolProviderConformance, "open_brings_tools", Empty, "no tool"),
    (ToolProviderConformance, "open_brings_tools", Twins, "twice"),
    (ToolProviderConformance, "close_is_safe_twice_and_unopened", ProviderClosedOnce, ""),
    (ToolProviderConformance, "close_leaves_nothing_running", Leaving, "left"),
    (ToolProviderConformance, "open_that_is_cancelled_can_be_closed", Hasty, "connection"),
    (GuardrailConformance, "host_takes_the_guardrail", Checkless, "has none of"),
    (GuardrailConformance, "right_texts_pass", RefusesAll, "refuses 'good one'"),
    (GuardrailConformance, "wrong_texts_are_refused_in_a_sentence", PassesAll, "'bad one' passes"),
    (GuardrailConformance, "wrong_texts_are_refused_in_a_sentence", Talkative, "several lines"),
    (GuardrailConformance, "odd_texts_are_looked_at", Fragile, "it failed"),
    (GuardrailConformance, "what_it_looks_at_is_left_as_it_is", Meddling, "in place of"),
    (GuardrailConformance, "tasks_at_once_are_told_apart", Mixing, ""),
    (ExecutorConformance, "result_comes_back", Shown, ""),
    (ExecutorConformance, "error_comes_out_as_it_is", Wrapping, "no such words"),
    (ExecutorConformance, "context_asks_the_run", Alone, "NoneType"),
    (ExecutorConformance, "agents_at_once_do_not_mix", Confusing, ""),
    (ExecutorConformance, "cancelling_ends_the_agent", Spoilt, "it was cancelled before"),
    (ExecutorConformance, "close_is_safe_twice", ExecutorClosedOnce, ""),
    (RankExecutorConformance, "devices_are_given_or_not", lambda: ranks(CodedRank, "yes"), "`gives_devices` is 'yes'"),
    (RankExecutorConformance, "each_rank_is_a_process_of_its_own", lambda: ranks(Rank), ""),
    (RankExecutorConformance, "rank_that_fails_ends_in_words", lambda: ranks(CodedRank), "has not ended in words"),
    (RankExecutorConformance, "wait_gives_up_in_time", lambda: ranks(SlowRank), "waits"),
    (RankExecutorConformance, "kill_is_safe_twice", lambda: ranks(KilledOnce), "killed twice"),
    (SearchProviderConformance, "host_takes_the_provider", PlainSearch, "not `async def`"),
    (SearchProviderConformance, "queries_find_pages_of_the_web", Mailing, "leads to no web page"),
    (SearchProviderConformance, "queries_find_pages_of_the_web", Untyped, "expected a SearchHit"),
    (SearchProviderConformance, "limit_is_kept", Boundless, "2 results where 1"),
    (SearchProviderConformance, "odd_queries_are_answered", Quoting, "unbalanced"),
    (SearchProviderConformance, "searches_at_once_do_not_mix", lambda: SHARED, "beside other searches"),
    (SearchProviderConformance, "cancelling_ends_a_search", Unending, "went on after it was cancelled"),
    (SearchProviderConformance, "no_answer_is_a_backend_error", TellingSearch, "tells the query"),
    (CommandConformance, "host_takes_the_commands", lambda: {"run": greet}, "the built-in command"),
    (CommandConformance, "help_says_what_it_does", lambda: {"greet": undescribed}, "no docstring"),
    (CommandConformance, "unknown_option_ends_with_two", lenient_command, "ends with 0"),
    (CommandConformance, "calls_end_well", lambda: {"greet": failing_command}, "RuntimeError: no"),
]
RULES = [(suite, rule) for suite in GOOD for rule in rules_of(suite)]


@pytest.mark.parametrize(
    ("suite", "rule", "make", "told"), FAULTS, ids=lambda part: getattr(part, "__name__", None) or str(part)[:40]
)
def test_fault_is_noticed(suite: type, rule: str, make: Callable[..., object], told: str) -> None:
    """The rule fails with what is wrong, where it passes without the fault."""
    with pytest.raises((Exception, pytest.fail.Exception)) as noticed:
        check_rule_is_kept(suite, f"test_{rule}", make, INPUTS.get(suite, {}))
    assert not isinstance(noticed.value, RuntimeError), noticed.value
    assert told in str(noticed.value)


@pytest.mark.parametrize(("suite", "rule"), RULES, ids=lambda part: getattr(part, "__name__", part))
def test_rule_is_kept_without_a_fault(suite: type, rule: str) -> None:
    """What has no fault passes each rule, and each rule has a fault that it is for."""
    check_rule_is_kept(suite, rule, GOOD[suite], INPUTS.get(suite, {}))
    assert any((suite, rule) == (each, f"test_{fault}") for each, fault, _, _ in FAULTS), "no fault for this rule"

"""The voting agent: settles ballots, or the answers of earlier steps, by a named method, exactly. Asks no model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast, get_args

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.one_line import printable
from pyagent.logic.agents.documents import read_documents
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.chain_of_thought import read_thought
from pyagent.logic.voting.ballots import MAX_NAME_CHARACTERS, Ballot, Paper
from pyagent.logic.voting.election import How, hold
from pyagent.logic.voting.numbers import exact
from pyagent.logic.voting.outcome import Method, Outcome
from pyagent.logic.voting.reading import MAX_FILE_CHARACTERS, read_file, read_items, read_lines
from pyagent.logic.voting.ties import TieRule

_RANKS = re.compile(r"\s*(?:\d{1,12}\s*[:x×]\s+)?[^\W\d][^>=;\n?]*(?:[>=][^>=;\n?]+)+")
_MAX_SCORED = 4_000


class Election(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ballots, and how they are counted. A ballot is an object, or a line: `3: A > B = C`, `A, B`, `A=3, B=-1`.

    `quota` is the share that majority and weighted ask for (2/3), `credits` what a ballot of quadratic may spend (100).
    Ties stay (`all`), or are broken by the order of the options, or by lot with a seed (`random`).
    """

    method: Method | None = None
    ballots: list[Ballot | str] = []
    options: list[str] = []
    ties: TieRule = "all"
    seed: int | None = None
    quota: int | float | str | None = None
    credits: int | float | str | None = None

    def how(self) -> How:
        """Return the rules of counting; raises `RequestError` for a number that is none, or a seed of nothing."""
        if self.seed is not None and self.ties != "random":
            raise RequestError("seed is for ties=random", param="seed")
        return How(
            method=self.method or "plurality",
            options=tuple(self.options),
            ties=self.ties,
            seed=self.seed or 0,
            quota=None if self.quota is None else exact(self.quota, "quota"),
            credits=None if self.credits is None else exact(self.credits, "credits"),
        )


class VotingAgent:
    """Counts votes."""

    name = "voting"
    description = (
        "Counts ballots or settles several answers by majority, plurality, runoff, ranked choice, Borda, Schulze, "
        "approval, quadratic or weighted voting."
    )
    typical_tasks = typical_tasks_of("voting")
    is_pure = True
    arguments = Election

    def score(self, task: Task) -> float | None:
        """Is nothing but ballots that rank: `3: A > B > C`."""
        parts = [part for part in re.split(r"[;\n]", task.text[:_MAX_SCORED]) if part.strip()]
        if len(parts) > 1 and not task.files and all(_RANKS.fullmatch(part) and ">" in part for part in parts):
            return Score(0.9, f"it is {len(parts)} ballots")
        return None

    async def run(self, context: Context, task: Task) -> Outcome:
        """Return what the ballots of the text, the files, the arguments or earlier steps come to."""
        election = task.arguments_as(Election)
        how = election.how()
        how.check()
        papers = await _papers(task, election, how)
        context.progress(f"{len(papers):,} ballots, {how.method}")
        return await asyncio.to_thread(_hold, papers, how, is_named=election.method is not None)


async def _papers(task: Task, election: Election, how: How) -> list[Paper]:
    """Return all ballots there are: one source, or several together."""
    if len(task.text) > MAX_FILE_CHARACTERS:
        raise RequestError(f"the text has more than {MAX_FILE_CHARACTERS:,} characters", param="text")
    papers = read_items(election.ballots, how.kind)
    for document in await read_documents(task.files):
        papers += await asyncio.to_thread(read_file, document.path, document.text, how.kind)
    if task.results:
        return papers + _answers(task.results, how)
    return papers + read_lines(task.text, how.kind)


def _answers(results: Mapping[str, object], how: How) -> list[Paper]:
    """Return the answers of earlier steps as ballots: lines of ballots, else a vote for what each answer says."""
    papers: list[Paper] = []
    written: dict[str, str] = {}
    for step, result in results.items():
        text = text_of(result).strip()
        if how.kind != "ranking" or ">" in text:
            papers += [msgspec.structs.replace(paper, place=f"step {step}") for paper in read_lines(text, how.kind)]
            continue
        answer = " ".join(printable(_answer_in(result, text)).split())[:MAX_NAME_CHARACTERS]
        name = written.setdefault(normal_form(answer), answer)
        papers.append(Paper(f"step {step}", text, Ballot(ranking=[name], voter=step)))
    return papers


def _answer_in(result: object, text: str) -> str:
    """Return what a step answers: its result's `answer`, its line `Answer: ...`, else all it says."""
    told = (
        cast("dict[str, object]", result).get("answer") if isinstance(result, dict) else getattr(result, "answer", None)
    )
    return told if isinstance(told, str) else read_thought(text).answer or text


def _hold(papers: Sequence[Paper], how: How, *, is_named: bool) -> Outcome:
    """Hold the election; plurality goes without saying only where no ballot says more than one name."""
    says_more = next((paper for paper in papers if paper.ballot and len(paper.ballot.ranking or ()) > 1), None)
    if not is_named and says_more:
        methods = ", ".join(get_args(Method))
        raise RequestError(f"say how rankings are counted, by `method`: one of {methods}", param="method")
    return hold(papers, how)


async def _tool(arguments: Election) -> Outcome:
    how = arguments.how()
    papers = read_items(arguments.ballots, how.kind)
    return await asyncio.to_thread(_hold, papers, how, is_named=arguments.method is not None)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The voting agent."""
    return [VotingAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The count of votes as a tool."""
    function: Callable[[Election], Awaitable[object]] = _tool
    description = "Counts ballots such as '3: A > B > C' by a voting method and says who wins."
    return [FleetTool("count_votes", description, Election, function, effect="none")]

"""The web-search-essay agent: searches, reads pages, checks their statements against each other, and writes an essay.

What it says are sentences of the pages, worded by a model only as far as exact rules find nothing new in them. Each has
its sources; what sources contradict each other on stands apart, with quotes. Pages are other people's: passages that
read like instructions to a model are left out, and no page's text is more than a note in a prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from pyagent.core.errors import AgentError, BackendError, PyAgentError, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import JsonObject, SamplingParams
from pyagent.core.one_line import printable
from pyagent.core.web_search import SearchHit, WebPage
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.web_essay.checking import Check, Checked, check_statements
from pyagent.logic.web_essay.notes import Note, choose, paragraphs
from pyagent.logic.web_essay.queries import is_wish, kept_queries, rule_queries, topic_of
from pyagent.logic.web_essay.sources import Source, Text, canonical_url, fingerprint, ranked, read_source
from pyagent.logic.web_essay.statements import Statement, content_stems, statements_of
from pyagent.logic.web_essay.styles import STYLES, Paragraph, StyleName, laid_out
from pyagent.logic.web_essay.wording import as_they_stand, worded

_NO_PROVIDER = (
    "no search provider is set, and none is asked unless you choose it: set web.provider to searxng (with web.url), "
    "mediawiki (with web.url) or brave (with web.key)"
)
_QUERIES_SYSTEM = "Write {count} short web search queries about the topic, one a line, and nothing else."
_QUERIES_SAMPLING = SamplingParams(temperature=0.0, max_tokens=80, repetition_penalty=1.1)
_HITS_PER_QUERY = 10
_MAX_CONCURRENT_PAGES = 6
T = TypeVar("T")


class EssayArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What kind of essay: its `style`, from how many `sources` and `queries`.

    `wording` says whether a model words the paragraphs, or they stand as the sources have them and no model is asked.
    """

    style: StyleName = "report"
    sources: Annotated[int, msgspec.Meta(ge=1, le=20)] = 6
    queries: Annotated[int, msgspec.Meta(ge=1, le=8)] = 5
    wording: Literal["model", "sources"] = "model"


class Skipped(msgspec.Struct, frozen=True):
    """A page that was found and is no source, and why."""

    url: str
    reason: str


class Essay(msgspec.Struct, frozen=True, kw_only=True):
    """The essay in Markdown, what it rests on, and how it came about.

    `num_dropped` sentences of the model were supported by no source, and left out.
    """

    topic: str
    style: StyleName
    text: str
    paragraphs: list[Paragraph]
    checks: list[Check]
    sources: list[Source]
    queries: list[str]
    skipped: list[Skipped]
    num_dropped: int

    def __str__(self) -> str:
        return self.text


class WebSearchEssayAgent:
    """Writes essays from the web."""

    name = "web-search-essay"
    description = (
        "Searches the web with several queries, checks facts across sources, and writes an essay with citations in one "
        "of six styles."
    )
    typical_tasks = typical_tasks_of("web-search-essay")
    is_pure = True
    arguments = EssayArguments

    def score(self, task: Task) -> float | None:
        """Asks for a text about something, and for sources or the web."""
        if not task.files and is_wish(task.text):
            return Score(0.85, "it asks for a text about something with sources from the web")
        return None

    async def run(self, context: Context, task: Task) -> Essay:
        """Return the essay. Raises `RequestError` without a search provider, `AgentError` where no page can be read."""
        asked = task.arguments_as(EssayArguments)
        topic = topic_of(task.text)
        if not topic:
            raise RequestError("there is nothing to write about: name a topic", param="text")
        if not {"web_search", "read_web_page"} <= set(context.tools):
            raise RequestError(_NO_PROVIDER, param="web.provider", code="no_search_provider")
        queries = await _queries(context, topic, asked)
        hits = await _search(context, queries)
        texts, skipped = await _read(context, hits, asked.sources)
        statements, checked, notes = await asyncio.to_thread(_compared, topic, texts, STYLES[asked.style].num_notes)
        num_disputes = sum(check.verdict == "disagree" for check in checked.checks)
        context.progress(
            f"{len(statements)} statements of {len(texts)} sources: {len(checked.checks) - num_disputes} agree, "
            f"{num_disputes} disagree"
        )
        if not notes and not checked.checks:
            raise AgentError(f"the pages that were found say nothing of {topic!r}", agent=self.name)
        written, num_dropped = await _written(context, notes, asked)
        sources = [text.source for text in texts]
        return Essay(
            topic=topic,
            style=asked.style,
            text=laid_out(topic[:1].upper() + topic[1:], asked.style, written, checked.checks, sources),
            paragraphs=written,
            checks=checked.checks,
            sources=sources,
            queries=queries,
            skipped=skipped,
            num_dropped=num_dropped,
        )


async def _queries(context: Context, topic: str, asked: EssayArguments) -> list[str]:
    """Return the queries: those of rules, and what a model adds that is about the topic."""
    queries = rule_queries(topic)[: asked.queries]
    missing = asked.queries - len(queries)
    if missing and asked.wording == "model":
        system = _QUERIES_SYSTEM.format(count=missing)
        answer = await context.complete(f"Topic: {topic}", system=system, sampling=_QUERIES_SAMPLING)
        queries += kept_queries(answer.text.splitlines(), topic, queries)[:missing]
    context.progress(f"searching: {'; '.join(queries)}")
    return queries


async def _search(context: Context, queries: Sequence[str]) -> list[SearchHit]:
    """Return what the queries find, without doubles. A query that fails is told; raises the last error when all do."""
    failures: list[PyAgentError] = []

    async def one(query: str) -> list[SearchHit]:
        try:
            found = await _called(context, "web_search", {"query": query, "limit": _HITS_PER_QUERY}, list[SearchHit])
        except BackendError as error:
            failures.append(error)
            context.progress(f"a search failed: {error}")
            return []
        return found

    with context.phase("search"):
        found = await context.map(one, queries)
    if len(failures) == len(queries):
        raise failures[-1]
    hits = ranked(found)
    if not hits:
        raise AgentError("the search provider found no page", agent=context.agent)
    context.progress(f"{sum(map(len, found))} results, {len(hits)} pages")
    return hits


async def _read(context: Context, hits: Sequence[SearchHit], wanted: int) -> tuple[list[Text], list[Skipped]]:
    """Return the sources, as many as wanted where enough pages can be read, and the pages that are none."""
    texts: list[Text] = []
    skipped: list[Skipped] = []
    seen: set[bytes] = set()
    left = list(hits)[: 3 * wanted]
    with context.phase("read pages"):
        while left and len(texts) < wanted:
            batch, left = left[: wanted - len(texts)], left[wanted - len(texts) :]
            pages = await context.map(lambda hit: _page(context, hit), batch, max_concurrency=_MAX_CONCURRENT_PAGES)
            for hit, page in zip(batch, pages, strict=True):
                reason = page if isinstance(page, str) else _copy_of(page, texts, seen)
                if reason or isinstance(page, str):
                    skipped.append(Skipped(hit.url, reason))
                    continue
                text = await asyncio.to_thread(read_source, len(texts) + 1, page, hit)
                texts.append(text)
                if text.source.num_withheld:
                    kinds = ", ".join(text.kinds)
                    told = f"withheld of {printable(page.url)} what reads like instructions to a model ({kinds})"
                    context.progress(told)
    for each in skipped:
        context.progress(f"skipped {printable(each.url)}: {each.reason}")
    if not texts:
        reasons = "; ".join(dict.fromkeys(each.reason for each in skipped))
        raise AgentError(f"no page that was found can be read: {reasons[:500]}", agent=context.agent)
    return texts, skipped


async def _called(context: Context, tool: str, arguments: JsonObject, kind: type[T]) -> T:
    """Return what a tool returns, or returned when the run was kept, in its type. Raises `AgentError` for another."""
    try:
        return msgspec.convert(msgspec.to_builtins(await context.call_tool(tool, arguments)), kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise AgentError(f"the tool {tool} returned what is none of its kind: {error}", agent=context.agent) from error


async def _page(context: Context, hit: SearchHit) -> WebPage | str:
    """Return a page, or why there is none."""
    try:
        return await _called(context, "read_web_page", {"url": hit.url}, WebPage)
    except (RequestError, BackendError, AgentError) as error:
        return printable(str(error))[:300]


def _copy_of(page: WebPage, texts: Sequence[Text], seen: set[bytes]) -> str:
    """Return which source a page is a copy of, in words; none where it is new, and remember it."""
    url = canonical_url(page.url)
    same = next((text.source.number for text in texts if canonical_url(text.source.url) == url), None)
    if same is not None:
        return f"it leads to source {same}"
    mark = fingerprint(page.text)
    if mark in seen:
        return "its text is that of another source"
    seen.add(mark)
    return ""


def _compared(topic: str, texts: Sequence[Text], num_notes: int) -> tuple[list[Statement], Checked, list[Note]]:
    statements = [statement for text in texts for statement in statements_of(text)]
    checked = check_statements(statements, content_stems(topic))
    return statements, checked, choose(topic, statements, checked, num_notes)


async def _written(context: Context, notes: Sequence[Note], asked: EssayArguments) -> tuple[list[Paragraph], int]:
    """Return the paragraphs below their headings, and how many sentences of the model were left out."""
    style = STYLES[asked.style]
    groups = [list(notes)] if style.is_list and notes else paragraphs(notes, style.paragraph_size)
    if asked.wording == "sources" or style.is_list:
        parts = [(as_they_stand(group), 0) for group in groups]
    else:
        with context.phase("write"):
            parts = await context.map(lambda group: worded(context, group, style.tone), groups)
    written = [
        Paragraph(sentences, style.headings[place] if place < len(style.headings) else "")
        for place, (sentences, _) in enumerate(parts)
    ]
    return written, sum(num_dropped for _, num_dropped in parts)


class WriteEssay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an essay is about, its style and the number of its sources."""

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    style: StyleName = "report"
    sources: Annotated[int, msgspec.Meta(ge=1, le=20)] = 6


async def _tool(arguments: WriteEssay, context: Context) -> Essay:
    options: JsonObject = {"style": arguments.style, "sources": arguments.sources}
    return await WebSearchEssayAgent().run(context, Task(text=arguments.topic, arguments=options))


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The web-search-essay agent."""
    return [WebSearchEssayAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """Essays from the web as a tool."""
    function: Callable[[WriteEssay, Context], Awaitable[object]] = _tool
    description = "Searches the web about a topic, checks facts across pages, and writes an essay with citations."
    return [FleetTool("web_search_essay", description, WriteEssay, function, effect="none", takes_context=True)]

"""The GUI agent: writes interfaces for nine frameworks, reads them back, finds their elements, audits accessibility.

Layouts are exact trees or descriptions in words, which rules read; a model drafts only what the words leave open. Code
of others is read in a process of its own, with bounded time and memory, and never run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from pyagent.core.errors import AgentError, Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task, text_of
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access, find_path, readable_path, short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.core.one_line import printable
from pyagent.logic.agents.new_files import checked_target, save_code
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.interfaces.audit import Rules, audit
from pyagent.logic.interfaces.axe import axe_findings, check_installed
from pyagent.logic.interfaces.drafts import DRAFT, DRAFT_TOKENS, page_from_draft, prompt_for
from pyagent.logic.interfaces.elements import Element, as_element
from pyagent.logic.interfaces.found import ElementCache, find, num_elements, stamp_of
from pyagent.logic.interfaces.frameworks import FRAMEWORKS, FrameworkName, framework_in, framework_of
from pyagent.logic.interfaces.layouts import read_layout
from pyagent.logic.interfaces.mending import mend
from pyagent.logic.interfaces.results import Action, Audited, GuiResult, Interface
from pyagent.logic.interfaces.words import page_from_words
from pyagent.logic.interfaces.worker import Code
from pyagent.logic.sandbox.pool import Work, WorkerPool

MAX_CODE_BYTES = 1_000_000
_MAX_FILES = 50
_SECONDS = 20.0
_MEMORY_BYTES = 2 << 30
_CODE_FILES = (".html", ".htm", ".jsx", ".tsx", ".vue", ".svelte", ".dart", ".swift")
_AUDITS = re.compile(r"\b(?:audit|accessib\w+|wcag|a11y|contrast|screen readers?)\b", re.IGNORECASE)
_FINDS = re.compile(r"^\s*(?:where(?:'s| is| are)|find|locate|which line)\b", re.IGNORECASE)
_READS = re.compile(r"\b(?:read|structure|outline|elements?|widgets?|what is (?:in|on))\b", re.IGNORECASE)
_MAKES = re.compile(
    r"\b(?:make|create|build|generate|write|design|code|draw)\b.{0,60}"
    r"\b(?:form|web ?page|gui|ui|(?:user )?interface|window|screen|dialog|dashboard|component|widget)\b"
    r"|\b(?:login|sign-?up|registration|contact|booking|checkout|settings) (?:form|page|screen|window|dialog)\b",
    re.IGNORECASE | re.DOTALL,
)


class GuiArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done, and of what. Without `action` files and words say it, else an interface is generated.

    `framework` is html for what is generated, else told by the files. `layout` is a tree of elements: a file, JSON or
    TOML; programs may give it as it is. `code` is read in place of files. With `browser` axe-core audits HTML as well.
    What is generated is written to the new file `output`.
    """

    action: Action | None = None
    framework: FrameworkName | None = None
    layout: str | dict[str, Any] = ""  # Any: elements within elements
    by: Literal["auto", "words", "model"] = "auto"
    language: str = ""
    code: str = ""
    browser: bool = False
    output: str | None = None

    def check(self) -> None:
        """Raise `RequestError` for what does not go together."""
        if self.layout and self.by == "model":
            raise RequestError("a layout is written as it is, by no model", param="by")
        if self.layout and self.action not in {None, "generate"}:
            raise RequestError(f"a layout is generated from; {self.action} takes files or code", param="layout")
        if self.browser and self.action not in {None, "audit"}:
            raise RequestError("a browser is for --action audit", param="browser")
        if len(self.code) > MAX_CODE_BYTES:
            raise RequestError(f"code has {len(self.code):,} characters; the most is {MAX_CODE_BYTES:,}", param="code")


class GuiAgent:
    """Writes, reads and audits interfaces."""

    name = "gui"
    description = (
        "Writes user interfaces from a description or a layout for HTML, React, Vue, Svelte, Tkinter, PySide6, "
        "Textual, Flutter and SwiftUI, reads their elements, and audits their accessibility by WCAG 2.2."
    )
    typical_tasks = typical_tasks_of("gui")
    arguments = GuiArguments

    def __init__(self, workers: WorkerPool[Element], cache: ElementCache) -> None:
        self._workers = workers
        self._cache = cache

    def score(self, task: Task) -> float | None:
        """Asks for an interface, or comes with the code of one and asks for its accessibility or elements."""
        text = task.text[:500]
        has_code = bool(task.files) and all(name.lower().endswith(_CODE_FILES) for name in task.files)
        if has_code and (_AUDITS.search(text) or _FINDS.search(text) or _READS.search(text)):
            return Score(0.9, "it comes with an interface's code")
        if not task.files and _MAKES.search(text):
            return Score(0.8, "it asks for an interface")
        return None

    async def run(self, context: Context, task: Task) -> GuiResult:
        """Return what is generated, read, found or audited. Raises `RequestError` naming what cannot be read."""
        arguments = task.arguments_as(GuiArguments)
        arguments.check()
        action = arguments.action or _action_in(task, arguments)
        if arguments.browser and action != "audit":
            raise RequestError("a browser is for --action audit", param="browser")
        if arguments.output and action != "generate":
            raise RequestError("an output is for --action generate", param="output")
        if action == "generate":
            target = checked_target(arguments.output)
            interface = await _generated(context, task, arguments)
            path = await save_code(context, target, interface.code)
            return GuiResult(action=action, interfaces=[msgspec.structs.replace(interface, path=path)])
        if action == "audit" and arguments.browser:
            check_installed()
        reader = _Reader(self._workers, self._cache)
        sources = await reader.sources(context, task, arguments, may_be_cached=action == "find")
        match action:
            case "read":
                read = [Interface(framework=each.framework, page=each.page, path=each.path) for each in sources]
                return GuiResult(action=action, interfaces=read)
            case "find":
                found = find([(each.path, each.page) for each in sources], task.text)
                if not found:
                    raise RequestError(
                        f"no element of {len(sources)} pages is like {printable(task.text[:100])!r}", param="text"
                    )
                return GuiResult(action=action, found=found, num_cached=sum(each.is_cached for each in sources))
            case _:
                audits = [await _audited(each, with_axe=arguments.browser) for each in sources]
                return GuiResult(action=action, audits=audits)

    async def close(self) -> None:
        """End the worker processes."""
        await self._workers.close()


def _action_in(task: Task, arguments: GuiArguments) -> Action:
    """Return what a task's words and files ask for."""
    if arguments.layout:
        return "generate"
    has_code = bool(arguments.code or task.files)
    if arguments.browser or (has_code and _AUDITS.search(task.text)):
        return "audit"
    if _FINDS.search(task.text):
        return "find"
    return "read" if has_code else "generate"


async def _generated(context: Context, task: Task, arguments: GuiArguments) -> Interface:
    """Return a layout or a description as code."""
    if arguments.code or task.files:
        raise RequestError(
            "what is generated comes from words or --layout; code is read, found in or audited", param="files"
        )
    description = "\n".join([task.text, *(text_of(result) for result in task.results.values())]).strip()
    framework = arguments.framework or framework_in(description) or "html"
    if arguments.layout:
        page = await asyncio.to_thread(_layout, arguments.layout)
    elif description:
        page = await _described(context, description, arguments.by)
    else:
        raise RequestError("say what the interface is, in words or by --layout", param="text")
    if arguments.language:
        page = msgspec.structs.replace(
            page if page.kind == "page" else Element(kind="page", children=(page,)), language=arguments.language
        )
    mended, notes = mend(page)
    for note in notes[:20]:
        context.progress(note)
    code = await asyncio.to_thread(FRAMEWORKS[framework].write, mended)
    return Interface(framework=framework, page=mended, code=code, notes=notes)


async def _described(context: Context, description: str, by: str) -> Element:
    described = page_from_words(description)
    if by == "words" or (by == "auto" and described.is_named):
        return described.page
    sampling = SamplingParams(temperature=0.0, max_tokens=DRAFT_TOKENS)
    try:
        draft = await context.generate(prompt_for(description), regex=DRAFT, sampling=sampling)
    except AgentError as error:
        context.progress(f"the model's draft is left out: {printable(str(error)[:200])}")
        return described.page
    return page_from_draft(draft, described.page, is_named=described.is_named)


def _layout(layout: str | dict[str, Any]) -> Element:
    if not isinstance(layout, str):
        return as_element(layout)
    if layout.lstrip().startswith("{") or "\n" in layout:
        return read_layout(layout)
    return read_layout(_text_of(readable_path(layout), layout), layout)


def _text_of(path: Path, name: str) -> str:
    try:
        if path.is_dir():
            raise RequestError(f"{name} is a folder; name files", param="files")
        if not path.is_file():  # a device may have no end, a pipe no writer
            raise RequestError(f"{name} is no plain file", param="files")
        if (size := path.stat().st_size) > MAX_CODE_BYTES:
            raise RequestError(f"{name} has {size:,} bytes; the most is {MAX_CODE_BYTES:,}", param="files")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{name} cannot be read: {error.strerror or error}", param="files") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not text in UTF-8", param="files") from error


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """Code that was read: its page, and its text where the page was not cached."""

    path: str
    framework: FrameworkName
    page: Element
    text: str = ""
    is_cached: bool = False


class _Reader:
    """Reads code once: what was read before is taken from the cache."""

    def __init__(self, workers: WorkerPool[Element], cache: ElementCache) -> None:
        self._workers = workers
        self._cache = cache

    async def sources(
        self, context: Context, task: Task, arguments: GuiArguments, *, may_be_cached: bool
    ) -> list[_Source]:
        """Return the code of arguments, files or earlier steps; for `find`, without any, all pages that are kept."""
        named = list(task.files) or _named(task.text)
        if len(named) > _MAX_FILES:
            raise RequestError(f"expected at most {_MAX_FILES} files, got {len(named)}", param="files")
        given = [("code", arguments.code)] if arguments.code else []
        given += [(step, text_of(result)) for step, result in task.results.items()]
        sources = [await self._code(name, text, arguments.framework) for name, text in given]
        for name in named:
            context.progress(f"reading {printable(name)}")
            sources.append(await self._file(name, arguments.framework, may_be_cached=may_be_cached))
        if not sources and may_be_cached:
            sources = self._kept()
        if not sources:
            if may_be_cached and not task.arguments:
                raise Decline("no interface was read that an element could be found in")
            raise RequestError("there is no code of an interface: name a file, or give --code", param="files")
        return sources

    async def _file(self, name: str, framework: FrameworkName | None, *, may_be_cached: bool) -> _Source:
        path = readable_path(name).resolve()
        stamp = stamp_of(path)
        if may_be_cached and (page := self._cache.page_of_file(path)) is not None:
            return _Source(path=short_path(name), framework=framework or "html", page=page, is_cached=True)
        text = await asyncio.to_thread(_text_of, path, name)
        kind = framework or framework_of(name, text)
        page = await self._page(short_path(name), text, kind)
        self._cache.keep(kind, text, page, path, stamp)
        return _Source(path=short_path(name), framework=kind, page=page, text=text)

    async def _code(self, name: str, text: str, framework: FrameworkName | None) -> _Source:
        if len(text) > MAX_CODE_BYTES:
            raise RequestError(f"{name} has {len(text):,} characters; the most is {MAX_CODE_BYTES:,}", param="code")
        kind = framework or framework_of("", text)
        page = await self._page(name, text, kind)
        self._cache.keep(kind, text, page, None, None)
        return _Source(path=name, framework=kind, page=page, text=text)

    async def _page(self, name: str, text: str, framework: FrameworkName) -> Element:
        if (page := self._cache.page_of_code(framework, text)) is not None:
            return page
        try:
            return await self._workers.ask(Code(text, framework))
        except RequestError as error:
            raise RequestError(f"{printable(name)}: {error}", param="files") from error

    def _kept(self) -> list[_Source]:
        """Return the pages of files that were read before, are as they were, and may be read in this run."""
        access = current_access()
        sources: list[_Source] = []
        for path in self._cache.paths:
            if access.is_limited and (access.root is None or not path.is_relative_to(access.root)):
                continue
            name = str(path) if access.root is None else str(path.relative_to(access.root))
            if find_path(name) is not None and (page := self._cache.page_of_file(path)) is not None:
                sources.append(_Source(path=short_path(name), framework="html", page=page, is_cached=True))
        return sources


def _named(text: str) -> list[str]:
    """Return the file of an interface that stands in a task's words."""
    words = [word.strip("\"'`,;?!") for word in text.split()]
    return [word for word in words if word.lower().endswith(_CODE_FILES)][:1]


async def _audited(source: _Source, *, with_axe: bool) -> Audited:
    framework = FRAMEWORKS[source.framework]
    if with_axe and source.framework != "html":
        raise RequestError(
            f"axe looks at HTML, and {source.path} is {source.framework}: leave --browser out", param="browser"
        )
    is_web = source.framework in {"html", "react", "vue", "svelte"}
    rules = Rules(framework.loses, "#000000" if is_web else "", "#ffffff" if is_web else "")
    findings = audit(source.page, rules)
    if with_axe:
        findings += await axe_findings(source.text)
    return Audited(
        path=source.path,
        framework=source.framework,
        num_elements=num_elements(source.page),
        findings=findings,
        by_axe=with_axe,
    )


class WriteInterface(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the tool takes: a description such as `a login form with email and password`, and a framework."""

    description: str
    framework: FrameworkName = "html"


class AuditInterface(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the tool takes: code of an interface, and its framework where the code does not show it."""

    code: str
    framework: FrameworkName | None = None


def make_tools(workers: WorkerPool[Element]) -> list[FleetTool]:
    """Return the writing and the audit of interfaces, for agents and models."""

    async def write(arguments: WriteInterface) -> str:
        page, _ = mend(page_from_words(arguments.description).page)
        return await asyncio.to_thread(FRAMEWORKS[arguments.framework].write, page)

    async def look(arguments: AuditInterface) -> Audited:
        if len(arguments.code) > MAX_CODE_BYTES:
            raise RequestError(f"code has more than {MAX_CODE_BYTES:,} characters", param="code")
        framework = arguments.framework or framework_of("", arguments.code)
        page = await workers.ask(Code(arguments.code, framework))
        return await _audited(_Source(path="code", framework=framework, page=page, text=arguments.code), with_axe=False)

    writes: Callable[[WriteInterface], Awaitable[object]] = write
    looks: Callable[[AuditInterface], Awaitable[object]] = look
    written = "Writes the code of a user interface by its description: what it names, such as fields and buttons."
    audited = "Audits the code of a user interface by rules of WCAG 2.2: labels, contrast, alternative texts, headings."
    return [
        FleetTool("write_interface", written, WriteInterface, writes, effect="none"),
        FleetTool("audit_interface", audited, AuditInterface, looks, effect="none"),
    ]


@cache
def _shared_workers() -> WorkerPool[Element]:
    """Return the workers that agent and tools share, so that closing the agent ends all."""
    work: Work[Element] = Work(
        agent="gui",
        module="pyagent.logic.interfaces.worker",
        result=Element,
        smaller="a smaller file",
        needs="PyAgent",
        seconds=_SECONDS,
        memory_bytes=_MEMORY_BYTES,
    )
    return WorkerPool(work, max_workers=2)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The GUI agent."""
    return [GuiAgent(_shared_workers(), ElementCache())]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The writing and the audit of interfaces as tools."""
    return make_tools(_shared_workers())

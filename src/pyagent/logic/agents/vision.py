"""The vision agent: text, code, tables, bar charts and diagrams in images and PDF pages, by OCR and exact geometry.

Images are other people's: they are decoded in a process of its own, with bounded time and memory. No model is asked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.util import find_spec

import msgspec

from pyagent.core.errors import Decline, RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.core.one_line import printable
from pyagent.logic.agents.documents import bytes_of
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.sandbox.pool import Work, WorkerPool
from pyagent.logic.vision.seen import MAX_PAGES, Chart, Diagram, Kind, Look, PageSeen, Table

_IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_MAX_IMAGES = 20
_SECONDS = 120.0
"""Of the processor, for a file."""
_MEMORY_BYTES = 8 << 30
"""Of addresses: the libraries reserve far more than they use."""
_NAMED_KINDS: tuple[tuple[Kind, str], ...] = (
    ("code", r"\b(?:code|program|script|source|snippet|function)\b"),
    ("table", r"\b(?:tables?|spreadsheet|rows and columns|csv)\b"),
    ("chart", r"\b(?:charts?|bar graph|plot|bars)\b"),
    ("diagram", r"\b(?:diagram|flow ?chart|boxes and arrows|mermaid)\b"),
)


class VisionArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is wanted: without `read` the task's words say it, else it is text. `images` are data URLs."""

    read: Kind | None = None
    max_pages: int = MAX_PAGES
    images: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise `RequestError` for a number of pages that makes no sense."""
        if not 1 <= self.max_pages <= MAX_PAGES:
            raise RequestError(f"expected max_pages from 1 to {MAX_PAGES}, got {self.max_pages}", param="max_pages")
        if len(self.images) > _MAX_IMAGES:
            raise RequestError(f"expected at most {_MAX_IMAGES} images, got {len(self.images)}", param="images")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What an image or the pages of a PDF show."""

    path: str
    pages: list[PageSeen]


class Vision(msgspec.Struct, frozen=True, kw_only=True):
    """What all files show."""

    files: list[Seen]

    def __str__(self) -> str:
        is_one = len(self.files) == 1 and len(self.files[0].pages) == 1
        parts = [_shown(page) if is_one else f"{_title(seen, page)}\n{_shown(page)}"
                 for seen in self.files for page in seen.pages]  # fmt: skip
        return "\n\n".join(parts)


class VisionAgent:
    """Reads images."""

    name = "vision"
    description = "Reads text, code, tables, bar charts and diagrams from images, screenshots and scanned PDF pages."
    typical_tasks = typical_tasks_of("vision")
    is_pure = True
    arguments = VisionArguments

    def __init__(self, workers: WorkerPool[list[PageSeen]]) -> None:
        self._workers = workers

    def score(self, task: Task) -> float | None:
        """Comes with images; a PDF only where it is said to be scanned. Other files are not for it."""
        images = [name for name in task.files if name.lower().endswith(_IMAGES)]
        if task.files and len(images) == len(task.files):
            return Score(0.95, "it comes with images")
        if "images" in task.arguments:
            return Score(0.95, "it comes with images")
        if task.files and re.search(r"\bscan(?:ned|s)?\b|\bocr\b", task.text, re.IGNORECASE):
            return Score(0.9, "it is about scanned pages")
        return 0.0 if task.files else None

    async def run(self, context: Context, task: Task) -> Vision:
        """Return what the files show. Raises `RequestError` naming a file that cannot be read, or has no such thing."""
        arguments = task.arguments_as(VisionArguments)
        arguments.check()
        kind = arguments.read or kind_in(task.text)
        named = [(short_path(name), await asyncio.to_thread(bytes_of, name)) for name in task.files or _named(task)]
        named += [(f"image {number}", _decoded(url)) for number, url in enumerate(arguments.images, 1)]
        if not named:
            raise Decline("there is nothing to look at: name an image or a PDF")
        seen: list[Seen] = []
        for name, data in named:
            context.progress(f"looking at {printable(name)}")
            seen.append(await _seen(self._workers, name, data, kind, arguments.max_pages))
        return Vision(files=seen)

    async def close(self) -> None:
        """End the worker processes."""
        await self._workers.close()


def kind_in(text: str) -> Kind:
    """Return what a task's words ask for: text, unless they name something else."""
    for kind, words in _NAMED_KINDS:
        if re.search(words, text, re.IGNORECASE):
            return kind
    return "text"


async def _seen(workers: WorkerPool[list[PageSeen]], name: str, data: bytes, kind: Kind, max_pages: int) -> Seen:
    _check_installed()
    try:
        return Seen(path=name, pages=await workers.ask(Look(data, kind, max_pages)))
    except RequestError as error:
        raise RequestError(f"{printable(name)}: {error}", param="files") from error


def _check_installed() -> None:
    if any(find_spec(name) is None for name in ("rapidocr", "onnxruntime", "pypdfium2")):
        raise RequestError(
            "reading images needs packages that are not installed: pip install rapidocr onnxruntime pypdfium2"
        )


def _named(task: Task) -> Sequence[str]:
    """Return the file that a task is nothing but, or that stands in it as a word; none where there is none."""
    words = [task.text.strip(), *task.text.split()]
    found = [word.strip("\"'`,;?!") for word in words if word.lower().strip("\"'`,;?!.").endswith((*_IMAGES, ".pdf"))]
    return found[:1]


def _decoded(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise RequestError("an image is a data URL in base64: data:image/png;base64,...", param="images")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise RequestError(f"an image's data URL is not base64: {error}", param="images") from error


def _title(seen: Seen, page: PageSeen) -> str:
    return f"{printable(seen.path)}, page {page.page}" if len(seen.pages) > 1 else printable(seen.path)


def _shown(page: PageSeen) -> str:
    if page.code is not None:
        return page.code
    if page.table is not None:
        return markdown_table(page.table)
    if page.chart is not None:
        return _shown_chart(page.chart)
    return page.text if page.diagram is None else mermaid(page.diagram)


def markdown_table(table: Table) -> str:
    """Return a table in Markdown; the first row is its head."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _shown_chart(chart: Chart) -> str:
    unit = "" if chart.is_scaled else " pixels (no axis with numbers is seen)"
    return "\n".join(f"{bar.label or '(no label)'}: {bar.value:g}{unit}" for bar in chart.bars)


def mermaid(diagram: Diagram) -> str:
    """Return a diagram as Mermaid has it."""
    nodes = [f'    n{number}["{_quoted(text)}"]' for number, text in enumerate(diagram.nodes)]
    edges = [f"    n{edge.source} {'-->' if edge.is_directed else '---'} n{edge.target}" for edge in diagram.edges]
    return "\n".join(["flowchart TD", *nodes, *edges])


def _quoted(text: str) -> str:
    plain = printable(" ".join(text.split()))
    for sign, name in ("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"):
        plain = plain.replace(sign, name)
    return plain


class ReadImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the tool takes: an image or a PDF, and what is wanted of it."""

    path: str
    read: Kind = "text"


def make_tool(workers: WorkerPool[list[PageSeen]]) -> FleetTool:
    """Return the reading of an image, for agents and models."""

    async def read_image(arguments: ReadImage) -> Vision:
        data = await asyncio.to_thread(bytes_of, arguments.path)
        name = short_path(arguments.path)
        return Vision(files=[await _seen(workers, name, data, arguments.read, MAX_PAGES)])

    function: Callable[[ReadImage], Awaitable[object]] = read_image
    description = "Reads text, code, a table, a bar chart or a diagram from an image or a scanned PDF."
    return FleetTool("read_image", description, ReadImage, function, effect="none")


@cache
def _shared_workers() -> WorkerPool[list[PageSeen]]:
    """Return the workers that agent and tool share, so that closing the agent ends both's."""
    work: Work[list[PageSeen]] = Work(
        agent="vision",
        module="pyagent.logic.vision.worker",
        result=list[PageSeen],
        smaller="fewer pages or a smaller image",
        needs="the extra `vision`",
        seconds=_SECONDS,
        memory_bytes=_MEMORY_BYTES,
    )
    return WorkerPool(work, max_workers=1)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The vision agent."""
    return [VisionAgent(_shared_workers())]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The reading of an image as a tool."""
    return [make_tool(_shared_workers())]

"""The code-health agent: complexity, maintainability, copies, dead code hints and the trend of code under a folder.

Python's cyclomatic complexity is counted as C901 does and its maintainability as radon defines it, in Rust; other
languages are read by tree-sitter (`pyagent.logic.code`). Nothing is executed, and no model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import find_path
from pyagent.core.fleet.scores import Score
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.hooks import hookimpl
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.code.audit import MIN_DUPLICATE_LINES, audit
from pyagent.logic.code.health import CodeHealth
from pyagent.logic.code.outline import language_of
from pyagent.logic.code.report import markdown, sarif

_DEFAULT_TOP = 3
_ASKS_FOR_HEALTH = re.compile(
    r"(?<!time )(?<!space )\bcomplexity\b(?! theory)|\b(?:most|least|more|less|too|so|how|overly|cyclomatic) complex\w*"
    r"|\bmaintainab\w+|\bcode[- ](?:health|quality)\b",
    re.IGNORECASE,
)
_REVIEWS = re.compile(
    r"\b(?:review|audit|check|lint|inspect|measure|refactor\w*|quality|health|smells?|clean)\b|\bcomplex|\bmaintainab",
    re.IGNORECASE,
)
_ABOUT_CODE = re.compile(
    r"\b(functions?|methods?|code|codebase|repo(sitory)?|modules?|python|source files?)\b", re.IGNORECASE
)


class HealthArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to look at, and how it is shown.

    `path` is the working folder unless named; `top` (3) functions, copies and others are named. With
    `history` the trend over that many of its commits is told. `duplicate_lines` (10) are the fewest lines of a copy.
    """

    path: str | None = None
    top: int | None = None
    history: int = 0
    format: Literal["text", "markdown", "sarif"] = "text"
    duplicate_lines: int = MIN_DUPLICATE_LINES


class CodeHealthAgent:
    """Audits code."""

    name = "code-health"
    description = (
        "Measures code: complexity, maintainability, copies and unused functions of a file, folder or repository."
    )
    typical_tasks = typical_tasks_of("code-health")
    is_pure = True
    arguments = HealthArguments

    def score(self, task: Task) -> float | None:
        """Asks about the complexity or maintainability of code, to review files of code, or is just a path to it."""
        text = task.text.strip()
        has_code = bool(task.files) and all(_is_code(name) for name in task.files)
        if has_code and (not text or _REVIEWS.search(text)):
            return Score(0.9, "it is code to be reviewed")
        is_about_code = bool(has_code or (not task.files and (_ABOUT_CODE.search(text) or _named_path(text))))
        if is_about_code and (found := _ASKS_FOR_HEALTH.search(text)):
            return Score(0.9, f"it asks about {found[0].lower()}, of code")
        path = _named_path(text) or (text if text.isidentifier() and _is_folder(text) else None)
        is_code = path is not None and (_is_code(path) or _is_folder(path))
        if is_code and not task.files and (_REVIEWS.search(text) or text == path):
            return Score(0.8, f"it names {path}")
        return 0.0 if task.files and not has_code else None

    async def run(self, context: Context, task: Task) -> CodeHealth:
        """Return the health of the files and folders named, or a report on it in the format asked for."""
        arguments = task.arguments_as(HealthArguments)
        paths: Sequence[str] = task.files or [_path_asked(task, arguments.path)]
        top = arguments.top if arguments.top is not None else _top_in(task.text)
        return await _report(paths, arguments, top, context.progress)


async def _report(
    paths: Sequence[str], arguments: HealthArguments, top: int | None, progress: Callable[[str], object] = str
) -> CodeHealth:
    health = await audit(
        paths,
        top=_DEFAULT_TOP if top is None else top,
        min_lines=arguments.duplicate_lines,
        history=arguments.history,
        progress=progress,
    )
    match arguments.format:
        case "markdown":
            return msgspec.structs.replace(health, report=markdown(health))
        case "sarif":
            return msgspec.structs.replace(health, report=sarif(health))
        case "text":
            return health


def _path_asked(task: Task, path: str | None) -> str:
    """Return the path named as an option or in the text; raises `RequestError` for two of them."""
    if path is None:
        return _path_in(task.text)
    if task.text.strip():
        raise RequestError(f"name one path: {task.text.strip()[:80]!r} or path={path!r}", param="path")
    return path


def _path_in(text: str) -> str:
    """Return the path a sentence names: all of it, or the word that is one; the working folder when it names none."""
    if text.strip() and find_path(text.strip()) is not None:
        return text.strip()
    named = _named_path(text)
    if named is not None:
        return named
    words = text.split()
    missing = words[:1] if len(words) == 1 else [word for word in words if "/" in word]
    if missing:
        raise RequestError(f"there is no file or folder {missing[0]!r}", param="path")
    return "."


def _is_code(name: str) -> bool:
    return language_of(name) not in {"", "Markdown"}


def _is_folder(name: str) -> bool:
    path = find_path(name)
    return path is not None and path.is_dir()


def _named_path(text: str) -> str | None:
    for word in text.split():
        bare = word.strip("\"'`,;:?!()")
        for candidate in (bare, bare.rstrip(".")):
            if ("/" in candidate or _is_code(candidate) or candidate == ".") and find_path(candidate):
                return candidate
    return None


def _top_in(text: str) -> int | None:
    found = re.search(r"\b(\d{1,4}) (?:\w+ ){0,2}?(?:most|functions|worst)", text)
    return int(found[1]) if found else None


async def _tool(arguments: HealthArguments) -> CodeHealth:
    return await _report([arguments.path or "."], arguments, arguments.top)


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The code-health agent."""
    return [CodeHealthAgent()]


@hookimpl
def pyagent_register_tools() -> Sequence[FleetTool]:
    """The audit as a tool."""
    function: Callable[[HealthArguments], Awaitable[object]] = _tool
    description = "Measures complexity and maintainability of the code under a path; finds copies and unused functions."
    return [FleetTool("code_health", description, HealthArguments, function, effect="none")]

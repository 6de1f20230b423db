"""The obsidian-describer agent: reads a folder, and keeps a vault of notes in step with it.

Another run writes the notes of what changed, removes those of what is gone, and leaves alone what a person changed. A
model is asked where `describe` says so.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent, Task
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.file_access import current_access, find_path, readable_path, short_path
from pyagent.core.fleet.scores import Score
from pyagent.core.hooks import hookimpl
from pyagent.core.messages import SamplingParams
from pyagent.logic.agents.obsidian.files import SourceFile, read_folder
from pyagent.logic.agents.obsidian.imports import Resolver, used_by
from pyagent.logic.agents.obsidian.notes import Described, LinkStyle, Writer, own_words
from pyagent.logic.agents.obsidian.vault import Changes, Vault, note_names, said_before, sources
from pyagent.logic.agents.parts import sentences
from pyagent.logic.agents.typical_tasks import typical_tasks_of
from pyagent.logic.code.outline import Outline, outline_of

ALLOW, DENY = "allow", "deny"
_SYSTEM = "Say in one short sentence what this file is for. Begin with a verb."
_SAMPLING = SamplingParams(temperature=0.0, max_tokens=48, repetition_penalty=1.1)
_ASKED_CHARACTERS = 2_400
_SHOWN_NAMES = 10
_ASKS = re.compile(
    r"\bobsidian\b|\b(?:linked notes|map of content|knowledge (?:base|graph|vault)|zettelkasten)\b"
    r"|\b(?:notes?|vault)\b.{0,40}\b(?:code|repo(?:sitory)?|folder|directory|project)\b",
    re.IGNORECASE,
)


class VaultArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The folder to describe, and the `vault` to write (`<folder>-notes` beside the working folder).

    `describe` asks the model about files that have no words of their own; `links` are Obsidian's `wiki` ones or plain
    `markdown`; `preview` writes nothing.
    """

    path: str | None = None
    vault: str | None = None
    describe: bool = False
    links: LinkStyle = "wiki"
    preview: bool = False


class VaultReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the notes, or would with `preview`. Names are those below the vault."""

    vault: str
    num_files: int
    written: list[str]
    removed: list[str]
    left_alone: list[str]
    num_unchanged: int
    num_described: int = 0
    without_outline: list[str] = []
    is_preview: bool = False
    seconds: float

    def __str__(self) -> str:
        verb = "would be written" if self.is_preview else "written"
        lines = [
            f"{self.num_files:,} files, {self.seconds:.2g} s; notes in {self.vault}: {len(self.written):,} {verb}, "
            f"{self.num_unchanged:,} as they were, {len(self.removed):,} removed"
        ]
        lines += [f"the model described {self.num_described:,} of the files"] if self.num_described else []
        lines += _some("changed by hand above the line, or gone and with words below it; left alone", self.left_alone)
        lines += _some("no outline, as the extra `code` is not installed", self.without_outline)
        return "\n".join([*lines, *([] if self.is_preview else ["Open the folder in Obsidian: Map of content"])])


class ObsidianDescriberAgent:
    """Describes a folder as linked notes."""

    name = "obsidian-describer"
    description = "Documents a folder of code or texts as an Obsidian vault: linked notes and a map of content."
    typical_tasks = typical_tasks_of("obsidian-describer")
    arguments = VaultArguments

    def score(self, task: Task) -> float | None:
        """Asks for notes, a vault or a map of content of a folder that is there."""
        if not task.files and _ASKS.search(task.text[:1000]) and _folder_in(task.text):
            return Score(0.9, "it asks for notes on a folder")
        return 0.0 if task.files else None

    async def run(self, context: Context, task: Task) -> VaultReport:
        """Bring the vault up to date, and return what was changed."""
        arguments = task.arguments_as(VaultArguments)
        started = time.perf_counter()
        if current_access().is_limited:
            raise RequestError("notes are written by a run on this machine only, not over the network", param="vault")
        root = _root(task, arguments.path)
        vault = await asyncio.to_thread(Vault, _vault_folder(root, arguments.vault))
        files = await asyncio.to_thread(read_folder, root, vault.folder)
        if not files:
            raise RequestError(f"there are no texts in {root}", param="path")
        context.progress(f"{len(files):,} files")
        outlines = await asyncio.to_thread(_outlines, files)
        names = note_names(file.path for file in files)
        own = {file.path: own_words(file, outlines[file.path]) for file in files}
        said = said_before(vault.manifest, names, [(file.path, file.digest) for file in files if not own[file.path]])
        asked = [file for file in files if arguments.describe and not own[file.path] and file.path not in said]
        said |= await self._ask(context, asked, outlines)
        described = await asyncio.to_thread(_described, root, files, outlines, {**said, **_present(own)})
        texts = Writer(root.name or str(root), described, names, arguments.links).notes()
        words = sources(names, {file.path: file.digest for file in files}, said)
        if arguments.preview:
            changes = await asyncio.to_thread(vault.compare, texts)
        else:
            await self._allowed(context, task, vault, len(texts))
            changes = await asyncio.to_thread(vault.write, texts, words)
        return _report(vault, changes, outlines, len(asked), arguments, time.perf_counter() - started)

    async def _ask(self, context: Context, files: Sequence[SourceFile], outlines: dict[str, Outline]) -> dict[str, str]:
        """Return the model's words on files, asked side by side; what it says nothing of is left out."""

        async def ask(file: SourceFile) -> str:
            symbols = "\n".join(symbol.signature for symbol in outlines[file.path].symbols[:30])
            prompt = f"{file.path}\n\n{symbols or file.text}"[:_ASKED_CHARACTERS]
            found = sentences((await context.complete(prompt, system=_SYSTEM, sampling=_SAMPLING)).text)
            return found[0] if found else ""

        if not files:
            return {}
        context.progress(f"{len(files):,} files to describe")
        with context.phase("descriptions"):
            answers = await context.map(ask, files)
        return {file.path: said for file, said in zip(files, answers, strict=True) if said}

    async def _allowed(self, context: Context, task: Task, vault: Vault, num_notes: int) -> None:
        """Ask a person, unless one named the arguments: a sentence that was routed here, or an agent, may not write."""
        if task.arguments and not context.depth:
            return
        text = f"write up to {num_notes:,} notes in {vault.folder}?"
        if await context.ask(text, options=(ALLOW, DENY), kind="approval") != ALLOW:
            raise RequestError(f"notes in {vault.folder} were not allowed", param="vault")


def _outlines(files: Sequence[SourceFile]) -> dict[str, Outline]:
    return {file.path: outline_of(file.path, file.text) for file in files}


def _present(words: dict[str, str]) -> dict[str, str]:
    return {path: said for path, said in words.items() if said}


def _described(
    root: Path, files: Sequence[SourceFile], outlines: dict[str, Outline], words: dict[str, str]
) -> list[Described]:
    resolver = Resolver(root, files)
    links = {file.path: resolver.links(file, outlines[file.path]) for file in files}
    users = used_by(links)
    return [
        Described(file, outlines[file.path], links[file.path], users.get(file.path, []), words.get(file.path, ""))
        for file in files
    ]


def _report(  # noqa: PLR0913, PLR0917 - what there is to tell
    vault: Vault,
    changes: Changes,
    outlines: dict[str, Outline],
    num_asked: int,
    arguments: VaultArguments,
    seconds: float,
) -> VaultReport:
    from pyagent.logic.code.trees import MISSING

    return VaultReport(
        vault=short_path(str(vault.folder)),
        num_files=len(outlines),
        written=changes.written,
        removed=changes.removed,
        left_alone=changes.left_alone,
        num_unchanged=changes.num_unchanged,
        num_described=num_asked,
        without_outline=[path for path, outline in outlines.items() if outline.fault == MISSING],
        is_preview=arguments.preview,
        seconds=seconds,
    )


def _root(task: Task, path: str | None) -> Path:
    named = path or (task.text.strip() if find_path(task.text.strip()) else None) or _folder_in(task.text)
    if path is not None and task.text.strip():
        raise RequestError(f"name one folder: {task.text.strip()[:80]!r} or path={path!r}", param="path")
    if named is None:
        raise RequestError(
            f"no folder is named by {task.text.strip()[:80]!r}: path is the folder to describe", param="path"
        )
    root = readable_path(named).resolve()
    if not root.is_dir():
        raise RequestError(f"{named} is no folder", param="path")
    return root


def _folder_in(text: str) -> str | None:
    """Return the first word that is a folder; a bare word counts with a slash only, or as `.`."""
    for word in text.split()[:200]:
        bare = word.strip("\"'`,;:?!()")
        found = find_path(bare) if "/" in bare or bare == "." else None
        if found is not None and found.is_dir():
            return bare
    return None


def _vault_folder(root: Path, vault: str | None) -> Path:
    folder = Path(os.path.abspath(Path(vault).expanduser())) if vault else Path.cwd() / f"{root.name}-notes"
    folder = folder.parent.resolve() / folder.name
    if folder == root:
        raise RequestError(
            "the vault has a folder of its own: notes do not go between what they describe", param="vault"
        )
    return folder


def _some(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return [f"{what}: {', '.join(names[:_SHOWN_NAMES])}{more}"]


@hookimpl
def pyagent_register_agents() -> Sequence[Agent]:
    """The obsidian-describer agent."""
    return [ObsidianDescriberAgent()]

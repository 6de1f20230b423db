"""A change that is proposed to a program: what a patch makes of the files below a folder, and how it is kept.

Reads each file once. What is kept is what was read from the patch, never what a program that ran beside it left; and a
file that changed meanwhile is somebody's work, so that nothing is written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import msgspec

from pyagent.core.errors import RequestError
from pyagent.infrastructure.tools.changes import ChangeStore
from pyagent.infrastructure.tools.difference import difference
from pyagent.infrastructure.tools.encodings import NotTextError, decoded
from pyagent.infrastructure.tools.folder import MAX_FILE_BYTES, Folder, fits
from pyagent.infrastructure.tools.patches import FilePatch, read_patch

ALWAYS_PROTECTED = ("pyagent.toml", ".git")
"""What no proposal changes, whatever the settings say: it would allow itself more, or run when git does."""


_CHECKING = (
    *(
        "test",
        "tests",
        "test_*",
        "*_test.*",
        "*.test.*",
        "*.spec.*",
        "conftest.py",
        "pytest.ini",
        "tox.ini",
        "noxfile.py",
    ),
    *("setup.cfg", "pyproject.toml", "Makefile", "package.json"),
)
"""Names of files and folders that decide what a test says."""


class ProposedFile(msgspec.Struct, frozen=True):
    """A file below the folder. `old` is None when it is not there, `new` when it is to go."""

    name: str
    old: bytes | None
    new: bytes | None

    def shown(self) -> str:
        """Return what changes, as a diff."""
        return difference(self.name, _text(self.old), _text(self.new))


class Proposal(msgspec.Struct, frozen=True):
    """What a patch makes of the files below a folder."""

    root: Path
    files: list[ProposedFile]

    def shown(self) -> str:
        """Return what changes, as a diff."""
        return "\n".join(file.shown() for file in self.files)

    def judges_itself(self) -> list[str]:
        """Return the files that are changed and may decide what the test of the change says, by their names."""
        return [
            file.name for file in self.files if any(_is_below(PurePosixPath(file.name), glob) for glob in _CHECKING)
        ]

    def keep(self, store: ChangeStore) -> str:
        """Make the change, all of it or nothing; return the id to undo it by."""
        with store.record(f"checked change of {self.files[0].name:.60}") as draft:
            for file in self.files:
                draft.add(self.root, file.name, file.old, file.new)
        try:
            store.apply(draft.id)
        except RequestError as error:
            if error.code != "changed":
                raise
            store.discard(draft.id)
            names = ", ".join(file.name for file in self.files if _old(Folder(self.root), file.name) != file.old)
            text = f"{names:.500} changed while the patch was checked; nothing is written, check the patch again"
            raise RequestError(text, param="patch", code="changed") from error
        return draft.id


def read_proposal(root: Path, patch: str, protected: Sequence[str] = ()) -> Proposal:
    """Return what a patch makes of the files; raises `RequestError` for one that does not fit or is not allowed."""
    files: dict[str, ProposedFile] = {}
    for file_patch in read_patch(patch):
        name = _checked_name(file_patch.name, protected)
        if name in files:
            raise RequestError(f"the patch has {name!r} twice", param="patch")
        files[name] = _proposed(Folder(root), name, file_patch)
    changed = [file for file in files.values() if file.old != file.new]
    if not changed:
        raise RequestError("the patch changes nothing", param="patch")
    return Proposal(root, changed)


def _checked_name(name: str, protected: Sequence[str]) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
        raise RequestError(f"{name!r:.200} is outside the folder; name files below it, as src/main.py", param="patch")
    for glob in (*ALWAYS_PROTECTED, *protected):
        if _is_below(path, glob):
            text = f"{str(path)!r:.200} is protected ({glob}); a proposal may not change it"
            raise RequestError(text, param="patch", code="protected")
    return str(path)


def _is_below(path: PurePosixPath, glob: str) -> bool:
    """Return whether a pattern names a file, or a folder above it; letters' case tells nothing, as on some disks."""
    wanted = glob.removeprefix("./").rstrip("/").casefold()
    above = [str(part).casefold() for part in (path, *path.parents) if str(part) != "."]
    return any(fits(each, wanted) or fnmatch(each, wanted) for each in above)


def _proposed(folder: Folder, name: str, patch: FilePatch) -> ProposedFile:
    old = _old(folder, name)
    if patch.is_new != (old is None):
        told = "is there already" if patch.is_new else "is not there"
        raise RequestError(f"{name!r} {told}", param="patch")
    try:
        before = decoded(old or b"")
        after = patch.applied(before.text)
        new = None if patch.is_removed else before.encoded(after)
    except (NotTextError, UnicodeEncodeError) as error:
        raise RequestError(f"{name!r} cannot be changed as text: {error}", param="patch") from error
    if new is not None and len(new) > MAX_FILE_BYTES:
        raise RequestError(f"{name!r} would be over {MAX_FILE_BYTES:,} bytes", param="patch")
    return ProposedFile(name, old, new)


def _old(folder: Folder, name: str) -> bytes | None:
    try:
        return folder.read_bytes(name)
    except RequestError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _text(data: bytes | None) -> str:
    return "" if data is None else decoded(data).text

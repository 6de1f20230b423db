"""Which files of a folder a file asks for: its imports, found among the files that are there. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath
from urllib.parse import unquote

from pyagent.logic.agents.obsidian.files import SourceFile
from pyagent.logic.code.outline import Import, Outline

_SCRIPT_ENDINGS = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", "/index.ts", "/index.tsx", "/index.js")
_MARKDOWN_LINK = re.compile(r"\]\(<?([^)\s>#?]{1,500})")
_GO_MODULE = re.compile(r"^module\s+(\S{1,300})", re.MULTILINE)
_RUST_ROOTS = ("lib.rs", "main.rs")


class Resolver:
    """Finds the files that imports name, by the rules of each language."""

    def __init__(self, root: Path, files: Sequence[SourceFile]) -> None:
        self._paths = {file.path for file in files}
        self._packages = {str(PurePosixPath(path).parent) for path in self._paths if path.endswith("/__init__.py")}
        self._modules = dict(self._python_modules(root))
        self._names = {path: name for name, path in self._modules.items()}
        self._go_modules = [
            (found[1], str(PurePosixPath(file.path).parent))
            for file in files
            if PurePosixPath(file.path).name == "go.mod" and (found := _GO_MODULE.search(file.text))
        ]
        self._go_folders: dict[str, str] = {}
        for path in sorted(self._paths):
            if path.endswith(".go") and not path.endswith("_test.go"):
                self._go_folders.setdefault(str(PurePosixPath(path).parent), path)

    def links(self, file: SourceFile, outline: Outline) -> list[str]:
        """Return the paths that a file asks for, each once, in the order of their names."""
        found = {path for path in self._found(file, outline) if path is not None}
        return sorted(found - {file.path})

    def _found(self, file: SourceFile, outline: Outline) -> Iterator[str | None]:
        folder = PurePosixPath(file.path).parent
        match outline.language:
            case "Python":
                for asked in outline.imports:
                    yield from self._python(file.path, asked)
            case "JavaScript" | "TypeScript" | "TSX":
                for asked in outline.imports:
                    yield self._script(folder, asked.target)
            case "Rust":
                for asked in outline.imports:
                    yield self._rust(PurePosixPath(file.path), asked.target)
            case "Go":
                yield from (self._go(asked.target) for asked in outline.imports)
            case "Markdown":
                for link in _MARKDOWN_LINK.findall(file.text):
                    yield self._there(folder / unquote(link))
            case _:
                return

    def _python_modules(self, root: Path) -> Iterator[tuple[str, str]]:
        """Yield the dotted name and path of each module: from the folder outside all of its packages."""
        outside = _package_above(root)
        for path in self._paths:
            if not path.endswith(".py"):
                continue
            pure = PurePosixPath(path)
            parts = pure.parent.parts if pure.name == "__init__.py" else (*pure.parent.parts, pure.stem)
            start = pure.parent
            while str(start) in self._packages:
                start = start.parent
            above = outside if str(start) == "." else ()
            yield ".".join((*above, *parts[len(start.parts) :])), path

    def _python(self, path: str, asked: Import) -> Iterator[str | None]:
        base = asked.target
        if asked.level:
            own = self._names.get(path, "").split(".")
            own = own if path.endswith("__init__.py") else own[:-1]
            kept = own[: len(own) - asked.level + 1]
            base = ".".join([*kept, base] if base else kept)
        inner = [self._modules.get(f"{base}.{name}") for name in asked.names]
        yield from inner
        if not inner or None in inner:
            yield self._modules.get(base)

    def _script(self, folder: PurePosixPath, target: str) -> str | None:
        if not target.startswith("."):
            return None
        bare = target.removesuffix(".js")  # TypeScript names what its file becomes
        names = [f"{one}{ending}" for one in dict.fromkeys((target, bare)) for ending in _SCRIPT_ENDINGS]
        return next((found for name in names if (found := self._there(folder / name))), None)

    def _rust(self, path: PurePosixPath, target: str) -> str | None:
        if target.startswith("mod "):
            is_root = path.name in (*_RUST_ROOTS, "mod.rs")
            return self._rust_module(path.parent if is_root else path.parent / path.stem, [target[4:]])
        names = target.partition("{")[0].strip(": ").split("::")
        if names[0] != "crate":
            return None
        roots = [folder for folder in path.parents if any(str(folder / name) in self._paths for name in _RUST_ROOTS)]
        return self._rust_module(roots[0], names[1:]) if roots else None

    def _rust_module(self, folder: PurePosixPath, names: Sequence[str]) -> str | None:
        """Return the file of the longest beginning of a path of modules: its end may be a name in one."""
        for length in range(len(names), 0, -1):
            base = folder.joinpath(*names[:length])
            if found := self._there(base.with_name(f"{base.name}.rs")) or self._there(base / "mod.rs"):
                return found
        return None

    def _go(self, target: str) -> str | None:
        """Return the first file of a package of Go, by the name of the module that it is in."""
        for module, folder in self._go_modules:
            if target == module or target.startswith(f"{module}/"):
                return self._go_folders.get(normpath(f"{folder}/{target[len(module) + 1 :]}"))
        return None

    def _there(self, path: PurePosixPath) -> str | None:
        name = normpath(str(path))
        return name if name in self._paths else None


def used_by(links: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return for each path those that ask for it."""
    found: dict[str, list[str]] = {}
    for path in sorted(links):
        for asked in links[path]:
            found.setdefault(asked, []).append(path)
    return found


def _package_above(root: Path) -> tuple[str, ...]:
    """Return the names of the packages that a folder lies in, its own last; none when it is no package."""
    names: list[str] = []
    while (root / "__init__.py").is_file() and root.parent != root:
        names.insert(0, root.name)
        root = root.parent
    return tuple(names)

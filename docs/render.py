"""Writes what pages show of the code into them, so that they read the same on a code host and on the site.

.venv/bin/python docs/render.py

Between `<!-- include PATH -->` and `<!-- end -->` stands that file as a code block; between `<!-- api NAME [members]
-->` and `<!-- end -->` the public names of that module or class with their docstrings, read without importing them.
`tests/unit/test_docs.py` fails where a page is behind.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
_INCLUDE = re.compile(r"(<!-- include (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_API = re.compile(r"(<!-- api (\S+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
_LANGUAGES = {".py": "python", ".rs": "rust", ".toml": "toml"}
_Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rendered(text: str) -> str:
    """The page with all that it includes as it is now."""
    text = _INCLUDE.sub(lambda match: f"{match[1]}{_code_of(match[2])}{match[3]}", text)
    return _API.sub(lambda match: f"{match[1]}\n{_api_of(match[2], match[3].split())}{match[4]}", text)


def _code_of(path: str) -> str:
    code = (ROOT / path).read_text().rstrip()
    return f"```{_LANGUAGES[Path(path).suffix]}\n{code}\n```\n"


def _api_of(name: str, members: list[str]) -> str:
    module, _, inside = name, "", ""
    while not (path := _source_of(module)):
        module, _, last = module.rpartition(".")
        inside = f"{last}.{inside}" if inside else last
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    if inside:
        found = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == inside)
        return "\n".join(_described(found, 3, members)) + "\n"
    lines: list[str] = []
    for place, node in enumerate(body):
        if isinstance(node, _Documented) and _is_shown(node.name, members):
            lines += _described(node, 3, [])
        elif (value := _assigned(node)) and _is_shown(value, members):
            after = body[place + 1] if place + 1 < len(body) else None
            if text := _string(after):
                lines += [f"### `{value}`", "", "```python", ast.unparse(node), "```", "", _flowed(text), ""]
    return "\n".join(lines) + "\n"


def _source_of(module: str) -> Path | None:
    base = ROOT / "src" / Path(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _is_shown(name: str, members: list[str]) -> bool:
    return name in members if members else not name.startswith("_")


def _described(node: _Documented, level: int, members: list[str]) -> list[str]:
    lines = [f"{'#' * level} `{node.name}`", "", "```python", _signature(node), "```", ""]
    if text := ast.get_docstring(node):
        lines += [_flowed(text), ""]
    if isinstance(node, ast.ClassDef):
        lines += _fields(node)
        for child in node.body:
            is_documented = isinstance(child, _Documented) and ast.get_docstring(child)
            if is_documented and _is_shown(child.name, members):
                lines += _described(child, level + 1, [])
    return lines


def _fields(node: ast.ClassDef) -> list[str]:
    """A list of the fields, with the docstrings that follow them."""
    lines: list[str] = []
    for place, child in enumerate(node.body):
        name = _assigned(child)
        if name is None or name.startswith("_"):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        text = f": {' '.join(_string(after).split())}" if _string(after) else ""
        lines.append(f"- `{ast.unparse(child)}`{text}")
    return [*lines, ""] if lines else []


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _string(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return node.value.value if is_text else ""


def _signature(node: _Documented) -> str:
    if isinstance(node, ast.ClassDef):
        said = [*map(ast.unparse, node.bases), *(ast.unparse(keyword) for keyword in node.keywords)]
        return f"class {node.name}({', '.join(said)})" if said else f"class {node.name}"
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    marks = "".join(
        f"@{mark}\n" for mark in map(ast.unparse, node.decorator_list) if mark in {"property", "classmethod"}
    )
    return f"{marks}{word} {node.name}({ast.unparse(node.args)}){returned}"


def _flowed(text: str) -> str:
    """A docstring's paragraphs, each on one line; lists and blocks stay."""
    paragraphs = text.split("\n\n")
    is_block = re.compile(r"^(\s|- |\d+\. |>>>)", re.MULTILINE)
    return "\n\n".join(part if is_block.search(part) else " ".join(part.split()) for part in paragraphs)


def pages() -> Iterator[Path]:
    """All pages of the documentation."""
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main() -> None:
    """Write the pages that are behind, and name them."""
    for page in pages():
        text = page.read_text()
        if (new := rendered(text)) != text:
            page.write_text(new)
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()

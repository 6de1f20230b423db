"""Code metrics against radon (maintainability), ruff and mccabe (complexity) over the standard library."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from pyagent._rust import analyse_code

pytestmark = pytest.mark.oracle

# Radon tokenizes a statement again for each of its lines: files with long tables take it minutes. Mccabe is slow too.
MAX_BYTES = 12_000
MIN_FILES = 500


def standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    # Ruff leaves folders called venv out.
    return sorted(path for path in files if "venv" not in path.relative_to(root).parts)


def short_files() -> list[str]:
    """Files of the standard library that all can read quickly: three quarters of them."""
    return [str(path) for path in standard_library() if path.stat().st_size < MAX_BYTES]


def radon_index(path: str) -> float | None:
    """Radon's index, or None for what radon, or the Python that runs it, cannot read."""
    from radon.metrics import mi_visit

    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mi_visit(file.read(), multi=True)
    except (SyntaxError, UnicodeError, ValueError, RecursionError):
        return None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="radon's line counts are those of Python 3.11's tokenizer")
def test_maintainability_equals_radon() -> None:
    """Every file that radon can read has radon's maintainability index, to 1e-9."""
    paths = short_files()
    ours = {path: maintainability for path, maintainability, _, _ in analyse_code(paths, 2)}
    with ProcessPoolExecutor(2) as pool:
        radons = dict(zip(paths, pool.map(radon_index, paths, chunksize=16), strict=True))
    known = {path: index for path, index in radons.items() if index is not None}
    assert len(known) > MIN_FILES
    assert {path: ours[path] for path in known} == pytest.approx(known, abs=1e-9)


def is_utf8(path: Path) -> bool:
    """Ruff reads nothing else, whatever a file declares."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def ruff_complexities(paths: list[Path]) -> dict[str, list[tuple[int, str, int]]]:
    """Line, name and complexity of every function by file, as `ruff check --select C901` reports them."""
    ruff = Path(sys.executable).with_name("ruff")
    options = ["--isolated", "--no-cache", "--exit-zero", "--ignore-noqa", "--output-format=json"]
    rule = ["--select=C901", "--config=lint.mccabe.max-complexity=0", "--target-version=py311"]
    output = subprocess.run([ruff, "check", *options, *rule, *paths], capture_output=True, check=True, text=True).stdout
    found: dict[str, list[tuple[int, str, int]]] = {str(path): [] for path in paths}
    for report in json.loads(output):
        if report["code"] == "C901" and (match := re.match(r"`(.*)` is too complex \((\d+) > 0\)", report["message"])):
            found[report["filename"]].append((report["location"]["row"], match[1], int(match[2])))
    return found


def test_complexity_equals_c901_of_ruff() -> None:
    """Every function has the complexity that ruff's C901 reports, on the same line and under the same name."""
    if not Path(sys.executable).with_name("ruff").exists():
        pytest.skip("ruff is not installed beside this Python")
    paths = standard_library()
    reports = analyse_code([str(path) for path in paths if is_utf8(path)], 2)
    ours = {
        path: sorted((line, name.rpartition(".")[2], complexity) for name, line, complexity in functions)
        for path, _, functions, error in reports
        if error is None
    }
    assert len(ours) > MIN_FILES
    ruffs = ruff_complexities(paths)
    assert ours == {path: sorted(ruffs[path]) for path in ours}


def mccabe_graphs(path: str) -> Iterator[tuple[int, int]]:
    """Line and complexity of the functions that the mccabe package counts as ruff does."""
    from mccabe import PathGraphingAstVisitor

    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read())
        visitor = PathGraphingAstVisitor()
        visitor.preorder(tree, visitor)
    except (SyntaxError, UnicodeError, ValueError, RecursionError):
        return
    nodes = ast.walk(tree)
    functions = {node.lineno: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for graph in visitor.graphs.values():
        function = functions.get(graph.lineno)
        is_own = function is not None and graph.entity.rpartition(".")[2] == function.name
        # Of these mccabe charges try one too many and does not look into the others.
        if is_own and not any(isinstance(node, ast.Try | ast.TryStar | ast.Match) for node in ast.walk(function)):
            yield graph.lineno, graph.complexity()


@pytest.mark.skipif(find_spec("mccabe") is None, reason="mccabe is not installed: make oracle")
def test_complexity_equals_mccabe_without_try_and_match() -> None:
    """Where neither try nor match is involved, ruff's C901 and the mccabe package are one definition, and ours."""
    num_functions = 0
    for path, _, rows, _ in analyse_code(short_files(), 2):
        ours = {line: complexity for _, line, complexity in rows}
        for line, complexity in mccabe_graphs(path) if rows else ():
            assert ours[line] == complexity, f"{path}:{line}"
            num_functions += 1
    assert num_functions > 3_000

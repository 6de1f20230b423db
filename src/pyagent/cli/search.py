"""`pyagent search`: passages of past runs, or of files, by words and by meaning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import coloured, for_terminal, write_json
from pyagent.cli.startup import read_settings
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.search import SearchResult

app = typer.Typer(add_completion=False)
_WIDTH = 240


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="What to look for.")],
    runs: Annotated[bool, typer.Option("--runs", help="Search past runs; so it does without --files.")] = False,
    files: Annotated[
        Path | None, typer.Option("--files", metavar="DIR", help="Search the files below a folder instead.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's runs; else those of all.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Passages to show, best first.")] = 10,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Find passages of past runs, or of files: by words, and by meaning where search.embedder names a backend."""
    from pyagent.cli.event_loop import run_to_end

    if files is not None and (runs or tenant is not None):
        raise typer.BadParameter("takes no --runs and no --tenant beside it", param_hint="--files")
    query = " ".join(words)
    result = run_to_end(_result(query, files, tenant, limit, config))
    if as_json:
        write_json(result)
    else:
        _write(result, query)


async def _result(query: str, files: Path | None, tenant: str | None, limit: int, config: Path | None) -> SearchResult:
    from pyagent.assembly import make_embedder, make_host, make_journal
    from pyagent.infrastructure.storage.search.service import Search

    settings = read_settings(config)
    journal = make_journal(settings)
    embedder = make_embedder(settings, make_host(settings))
    try:
        search = Search(journal.search_folder, journal, embedder)
        if files is not None:
            return await search.files(query, files, limit=limit)
        return await search.runs(query, tenant=tenant, limit=limit)
    finally:
        journal.close()
        if embedder is not None:
            await embedder.close()


def _write(result: SearchResult, query: str) -> None:
    from pyagent.core.search import excerpt

    for hit in result.hits:
        of = f"  ({hit.tenant})" if hit.tenant else ""
        sys.stdout.write(coloured(f"{for_terminal(hit.source)}:{hit.place}", "cyan") + for_terminal(of) + "\n")
        sys.stdout.write(f"  {for_terminal(excerpt(hit.text, query, _WIDTH))}\n")
    if not result.hits:
        sys.stdout.write(f"nothing found in {result.num_passages} passages\n")
    if result.note:
        sys.stderr.write(f"note: {printable(result.note)}\n")

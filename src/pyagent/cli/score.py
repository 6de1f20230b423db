"""`pyagent score`: how likely a model finds a text: its perplexity, bits per byte, and least expected tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.input import readable_files
from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.output import write_json
from pyagent.cli.startup import fetch_first_model, read_settings
from pyagent.core.errors import RequestError
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.settings import Settings
    from pyagent.core.text_score import ScoredToken, TextScore

app = typer.Typer(add_completion=False)

_SHOWN_CHARS = 60


@app.command()
def score(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text, in UTF-8; - is standard input.")],
    lines: Annotated[bool, typer.Option("--lines", help="Score each line by itself.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, max=1000, help="How many of the least expected tokens.")] = 5,
    window: Annotated[
        int, typer.Option("--window", min=16, max=1_000_000, help="About how many tokens are scored together.")
    ] = 1024,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Score a text by the first backend that can: the lower the perplexity, the likelier the model finds it."""
    import asyncio

    with readable_files([file]) as (path,):
        text = _text(path)
    settings = read_settings(config, chain, model)
    fetch_first_model(settings)
    asyncio.run(_write_scores(settings, text, is_by_line=lines, top=top, window=window, as_json=as_json))


def _text(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text: {error.reason}", param="file") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", param="file") from error
    if not text.strip():
        raise RequestError("there is no text to score", param="file")
    return text


async def _write_scores(
    settings: Settings, text: str, *, is_by_line: bool, top: int, window: int, as_json: bool
) -> None:
    """Score and write; a line's score goes out as soon as it is there."""
    from pyagent.assembly import make_chain, make_host
    from pyagent.core.text_score import score_text

    texts = [*enumerate(text.splitlines(), 1)] if is_by_line else [(0, text)]
    made = make_chain(settings, make_host(settings))
    try:
        for number, part in texts:
            if not part.strip():
                continue
            scored = await score_text(made, part, window_tokens=window, num_least_expected=top)
            if as_json:
                fields = msgspec.structs.asdict(scored)
                write_json({"line": number, "text": part, **fields} if is_by_line else fields)
            elif is_by_line:
                sys.stdout.write(f"{number:>6}  {_number(scored.perplexity)}  {printable(part[:_SHOWN_CHARS])}\n")
            else:
                _write_score(scored)
    finally:
        await made.close()


def _write_score(scored: TextScore) -> None:
    sys.stdout.write(f"{scored.backend}, {scored.num_tokens:,} tokens, {scored.num_bytes:,} bytes\n")
    sys.stdout.write(f"perplexity     {_number(scored.perplexity)}\n")
    sys.stdout.write(f"bits per byte  {_number(scored.bits_per_byte)}\n")
    if scored.least_expected:
        sys.stdout.write("least expected\n")
    for token in scored.least_expected:
        sys.stdout.write(f"  {_described(token)}\n")


def _described(token: ScoredToken) -> str:
    rank = "" if token.rank is None else f"  rank {token.rank:>7,}"
    where = f"line {token.line:>5}{rank}  logprob {token.logprob:8.2f}"
    return f"{where}  {printable(token.before)} [{printable(token.token)}]  expected [{printable(token.expected)}]"


def _number(value: float | None) -> str:
    return f"{'-':>10}" if value is None else f"{value:>10,.3f}"

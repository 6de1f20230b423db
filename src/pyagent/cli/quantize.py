"""`pyagent models quantize`: writes a model with weights of fewer bits, and says what that costs."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from pyagent.cli.one_model import ask_alone, local_path, sample_text
from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import write_json
from pyagent.core.errors import ModelError, PyAgentError, RequestError
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.text_score import PositionScores
    from pyagent.infrastructure.models.quantize.quantizing import Progress, Quantized

_MOST_TEXTS = 64
"""Lines of it that are embedded."""


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """What a text costs under both models. `same_best` is the share of positions with the same likeliest token."""

    num_tokens: int
    perplexity_before: float
    perplexity_after: float
    ratio: float
    same_best: float

    def rows(self) -> list[tuple[str, str]]:
        """Return what is shown."""
        change = f"{self.perplexity_before:,.3f} before, {self.perplexity_after:,.3f} after"
        return [
            ("perplexity", f"{change}, {self.ratio:.4f} times, of {self.num_tokens:,} tokens"),
            ("same best", f"{self.same_best:.2%} of the positions have the same likeliest token"),
        ]


class Nearness(msgspec.Struct, frozen=True, kw_only=True):
    """How near the vectors of texts by both models are: 1 is the same direction."""

    num_texts: int
    mean_cosine: float
    least_cosine: float

    def rows(self) -> list[tuple[str, str]]:
        """Return what is shown."""
        found = f"{self.mean_cosine:.5f} on average, {self.least_cosine:.5f} at least"
        return [("cosine", f"{found}, between the vectors of {self.num_texts} texts")]


def quantize(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A safetensors folder, a GGUF file, or a name.")],
    type_name: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Q4_K_M, Q5_K_M, Q6_K, Q8_0, Q4_0, F16, ...")
    ] = "Q4_K_M",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to; NAME-TYPE.gguf here unless given.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="The text, in UTF-8, that both models are scored by.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write the file only; score nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write a model as a GGUF file with weights of fewer bits; compare the perplexity of both, or their vectors."""
    from pyagent.infrastructure.models.split_files import stem_of

    chosen = _known_type(type_name)
    sample = "" if no_report else sample_text(text)
    path = local_path(source, config)
    target = output or Path(f"{stem_of(path.resolve().name)}-{chosen}.gguf")
    made = _write(path, target, chosen, overwrites=force)
    quality = _compare(path, target, sample, config) if sample else None
    if as_json:
        write_json(msgspec.structs.asdict(made) | {"quality": quality and msgspec.structs.asdict(quality)})
        return
    for key, value in _card(made, quality):
        typer.echo(f"{key:<11} {printable(value)}")


def _known_type(name: str) -> str:
    from pyagent.infrastructure.models.quantize.mixture import TYPE_TO_BASE

    chosen = name.upper()
    if chosen not in TYPE_TO_BASE:
        known = f"there are {', '.join(TYPE_TO_BASE)}"
        raise RequestError(f"--type: {name[:40]!r} cannot be written; {known}", param="type")
    return chosen


def _write(path: Path, target: Path, chosen: str, *, overwrites: bool) -> Quantized:
    from pyagent import _rust
    from pyagent.infrastructure.models.quantize.quantizing import quantize_model

    with ends_by_signal(), shown_progress(target.name) as progress:
        threads = _rust.available_cores()
        return quantize_model(path, target, chosen, overwrites=overwrites, threads=threads, progress=progress)


@contextlib.contextmanager
def ends_by_signal() -> Generator[None]:
    """Let signals that end the program end the block as Ctrl+C does: what is being written is removed."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def shown_progress(name: str) -> Generator[Progress]:
    """A bar on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as bar:
        task = bar.add_task(escape(name), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _compare(before: Path, after: Path, text: str, config: Path | None) -> Quality | Nearness | None:
    """Compare both models by a text; the file stays where that fails. None for models that rank or classify."""
    from pyagent.infrastructure.models.describe import task_of

    task = task_of(after)
    does = {"generate": "a text is scored", "embed": "a text is embedded"}.get(task)
    what = f"{does} by both models now" if does else f"models that {task} are not compared"
    typer.echo(f"{after} is written; {what}", err=True)
    try:
        if task == "embed":
            return _nearness(before, after, text, config)
        return _quality(before, after, text, config) if does else None
    except PyAgentError as error:
        raise ModelError(f"{after} is written, but not compared: {error}", model=str(after)) from error


def _quality(before: Path, after: Path, text: str, config: Path | None) -> Quality:
    old, new = _scores(before, text, config), _scores(after, text, config)
    return Quality(
        num_tokens=len(new.logprobs),
        perplexity_before=old.perplexity,
        perplexity_after=new.perplexity,
        ratio=new.perplexity / old.perplexity,
        same_best=new.same_best(old),
    )


def _nearness(before: Path, after: Path, text: str, config: Path | None) -> Nearness:
    texts = [line for line in text.splitlines() if line.strip()][:_MOST_TEXTS]
    pairs = zip(_vectors(before, texts, config), _vectors(after, texts, config), strict=True)
    cosines = [sum(a * b for a, b in zip(one, other, strict=True)) for one, other in pairs]
    return Nearness(num_texts=len(texts), mean_cosine=sum(cosines) / len(cosines), least_cosine=min(cosines))


def _vectors(path: Path, texts: Sequence[str], config: Path | None) -> list[list[float]]:
    from pyagent.core.messages import EmbedRequest

    asked = EmbedRequest(model="", input=list(texts), truncate=True)
    return ask_alone(path, config, lambda chain: chain.embed(asked)).vectors


def _scores(path: Path, text: str, config: Path | None) -> PositionScores:
    from pyagent.core.text_score import score_positions

    return ask_alone(path, config, lambda chain: score_positions(chain, text))


def _card(made: Quantized, quality: Quality | Nearness | None) -> list[tuple[str, str]]:
    sizes = f"{format_bytes(made.bytes_before)} before, {format_bytes(made.bytes_after)} after"
    rows = [
        ("file", made.path),
        ("size", f"{sizes}, {made.bytes_after / max(1, made.bytes_before):.1%}"),
        ("weights", f"{made.bits_per_weight:.2f} bits each, {made.num_weights / 1e6:,.1f} million"),
        ("tensors", ", ".join(f"{number} {name}" for name, number in made.types.items())),
        ("seconds", f"{made.seconds:.1f}"),
    ]
    return rows + (quality.rows() if quality else [])

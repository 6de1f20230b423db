"""`pyagent cache`: a running server's prefix cache and response cache, why a prompt missed, and pins. Speaks HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.server_calls import call_server
from pyagent.core.errors import RequestError
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.messages import CacheReport, JsonObject
    from pyagent.core.prompt_cache import CachePages, ModelCache

app = typer.Typer(
    add_completion=False, help="Look into a running server's prefix cache and response cache.", no_args_is_help=True
)
Url = Annotated[str | None, typer.Option("--url", help="The server's URL; without it the one that runs here.")]
Shared = Annotated[bool, typer.Option("--shared", help="Pin for all API keys; needs an administrator's key.")]
PromptFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A chat request or its messages as JSON, else a system text; - reads it.")
]


@app.command()
def show(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Prompts of each model.")] = 20,
    url: Url = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the cached prompts, last used first."""
    import msgspec

    from pyagent.core.prompt_cache import ModelCache

    body = call_server("GET", f"/pyagent/cache?limit={limit}", url, config)
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    models = msgspec.json.decode(body, type=list[ModelCache])
    if not models:
        sys.stdout.write("no model is loaded yet; the first request loads it\n")
    for model in models:
        _show_model(model)


def _show_model(model: ModelCache) -> None:
    kept = ", ".join(f"{name} ({num_tokens} tokens)" for name, num_tokens in model.pins.items())
    counts = _counts(model.pages) if model.pages is not None else f"{len(model.prompts)} prompts of this key"
    sys.stdout.write(f"{model.model}: {counts}\n" + (f"  pinned: {kept}\n" if kept else ""))
    for prompt in model.prompts:
        whose = f"  [{', '.join(prompt.sessions)}]" if prompt.sessions else ""
        sys.stdout.write(
            f"  {prompt.key}  {prompt.num_tokens:>7} tokens  {prompt.state:<9} {prompt.idle_seconds:>7.0f} s ago  "
            f"{prompt.num_hits:>4} hits  {_line(prompt.begins)} ... {_line(prompt.ends)}{whose}\n"
        )


def _counts(pages: CachePages) -> str:
    share = f"{pages.hit_tokens / pages.queried_tokens:.0%}" if pages.queried_tokens else "none"
    num_bytes = pages.num_pages * pages.page_bytes
    return (
        f"{format_bytes(num_bytes)} of KV memory; {pages.used_pages} of {pages.num_pages} pages "
        f"used, {pages.cached_pages} cached, {pages.pinned_pages} pinned, {pages.retained_pages} retained, "
        f"{pages.demoted_pages} demoted\n  hit rate: {share} of {pages.queried_tokens:,} prompt tokens; evicted: "
        f"{sum(pages.evictions.values()):,}; token logs: {format_bytes(pages.session_bytes)}"
    )


@app.command()
def explain(file: PromptFile, url: Url = None, as_json: AsJson = False, config: Config = None) -> None:
    """Show how many of a request's prompt tokens are cached, and the first token that is not."""
    import msgspec

    from pyagent.core.messages import CacheReport

    body = call_server("POST", "/pyagent/cache/explain", url, config, _request(file))
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    sys.stdout.write(_explained(msgspec.json.decode(body, type=CacheReport)))


def _explained(report: CacheReport) -> str:
    lines = [f"{report.cached_tokens} of {report.prompt_tokens} prompt tokens are cached"]
    if report.log_tokens:
        lines.append(f"{report.log_tokens} of them are taken over from the conversation's log")
    if report.note:
        lines.append(report.note)
    if report.normalized:
        lines.append(f"set aside in the system prompt: {', '.join(report.normalized)}")
    miss = report.miss
    if miss is not None:
        where = f", in {miss.source}" if miss.source else ""
        lines.append(f"token {miss.position}{where}: {_WHY[miss.reason]}")
        lines.append(f"  found     {_line(miss.found)!r}")
        lines += [f"  expected  {_line(miss.expected)!r}"] if miss.expected else []
    return "\n".join(lines) + "\n"


_WHY = {
    "changed": "the text differs from the cached one",
    "evicted": "it was cached, and evicted",
    "cold": "nothing that begins like it was computed",
}


@app.command()
def pin(
    name: Annotated[str, typer.Argument(help="A name to unpin it by.")],
    file: PromptFile,
    model: Annotated[str, typer.Option("--model", help="A model of the server.")] = "",
    shared: Shared = False,
    url: Url = None,
    config: Config = None,
) -> None:
    """Compute the prompt that conversations begin with, and pin it in the prefix cache."""
    import msgspec

    messages = _request(file)["messages"]
    asked: JsonObject = {"name": name, "messages": messages, "model": model, "shared": shared}
    body = call_server("POST", "/pyagent/cache/pin", url, config, asked)
    num_tokens = msgspec.json.decode(body, type=dict[str, object])["num_tokens"]
    sys.stdout.write(f"{name}: {num_tokens} tokens are pinned until: pyagent cache unpin {name}\n")


@app.command()
def unpin(
    name: Annotated[str, typer.Argument(help="Its name.")],
    shared: Shared = False,
    url: Url = None,
    config: Config = None,
) -> None:
    """End a pin."""
    call_server("POST", "/pyagent/cache/unpin", url, config, {"name": name, "shared": shared})
    sys.stdout.write(f"{name} is unpinned\n")


@app.command()
def answers(
    clear: Annotated[bool, typer.Option("--clear", help="Clear the response cache.")] = False,
    url: Url = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the response cache: its size, hits and misses."""
    import msgspec

    from pyagent.core.response_cache.cache import ResponseCacheStats

    if clear:
        call_server("POST", "/pyagent/response_cache/clear", url, config, {})
    body = call_server("GET", "/pyagent/response_cache", url, config)
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    stats = msgspec.json.decode(body, type=ResponseCacheStats)
    sys.stdout.write(
        f"response cache: {stats.num_entries:,} answers, {stats.num_pinned:,} of them pinned, in "
        f"{format_bytes(stats.num_bytes)} of {format_bytes(stats.max_bytes)}; {stats.num_evicted:,} evicted, "
        f"{stats.num_expired:,} expired\n"
        f"hit rate {stats.hit_ratio:.0%}: {stats.num_hits:,} hits, "
        f"{stats.num_shared:,} shared with an equal request under way, {stats.num_misses:,} misses; "
        f"{stats.num_bypassed:,} requests were not cacheable\n"
    )


def _request(file: str) -> JsonObject:
    """Return the request in a file: JSON of it or of its messages, else a system text."""
    import msgspec

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read: {error}", param="file") from error
    try:
        said: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict) and "messages" in said:
        return cast("JsonObject", said)
    return {"messages": said if isinstance(said, list) else [{"role": "system", "content": text}]}


def _line(text: str) -> str:
    return " ".join(text.split())

"""`pyagent chain`: which links a request would try and why not the others; and each link tried with a question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.output import write_json
from pyagent.cli.startup import read_settings
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    DeadlineError,
    ModelError,
    PluginError,
    PyAgentError,
    RequestError,
)
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.backends import Backend
    from pyagent.core.settings import Settings

app = typer.Typer(add_completion=False, help="Explain and test the backends that are tried.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Explain and test the backends that are tried."""


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="The request.")] = "",
    private: Annotated[bool, typer.Option("--private", help="As a request that must stay on this machine.")] = False,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say what would be tried for a request, and why the rest would not; asks each backend how it is, sends nothing."""
    import asyncio

    from pyagent.assembly import make_chain, make_host
    from pyagent.core.chain import LinkView
    from pyagent.core.messages import ChatRequest, Message

    settings = read_settings(config, chain, model)

    async def work() -> list[LinkView]:
        made = make_chain(settings, make_host(settings))
        try:
            return await made.explain(ChatRequest(messages=[Message("user", text)], private=private))
        finally:
            await made.close()

    rows = asyncio.run(work())
    if as_json:
        write_json(rows)
        return
    width = max(len(row.backend) for row in rows)
    number = 0
    for row in rows:
        number += row.is_eligible
        mark = f"{number}." if row.is_eligible else "– "
        detail = f" ({row.detail})" if row.detail else ""
        sys.stdout.write(f"{mark} {row.backend:<{width}}  {printable(f'{row.reason}{detail}')}\n")
        if row.limits:
            sys.stdout.write(f"{'':<{width + 5}}{row.limits}\n")


class LinkTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a link did with one small question."""

    backend: str
    is_well: bool
    first_token_seconds: float | None = None
    model: str = ""
    found: str = ""
    advice: str = ""


@app.command("test")
def try_links(
    chain: Chain = None,
    model: Model = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Longest wait for each link.")] = 60.0,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Ask each link one small question; say how long its first token took, or what is wrong and what to do.

    Ends with status 1 when a link does not answer.
    """
    import asyncio

    settings = read_settings(config, chain, model)
    trials = asyncio.run(_trials(settings, seconds))
    if as_json:
        write_json(trials)
    else:
        _write(trials)
    if not all(trial.is_well for trial in trials):
        raise typer.Exit(1)


def _write(trials: list[LinkTrial]) -> None:
    width = max(len(trial.backend) for trial in trials)
    for trial in trials:
        took = f"first token after {trial.first_token_seconds:.3f} s  " if trial.first_token_seconds is not None else ""
        mark = "✓" if trial.is_well else "✗"
        what = printable(trial.model or trial.found.removeprefix(f"{trial.backend}: "))
        sys.stdout.write(f"{mark} {trial.backend:<{width}}  {took}{what}\n")
        if trial.advice:
            sys.stdout.write(f"  {'':<{width}}  → {trial.advice}\n")


async def _trials(settings: Settings, seconds: float) -> list[LinkTrial]:
    """Try one link after another: two that share a machine would slow each other down."""
    from pyagent.assembly import make_host, make_link, present_links

    host = make_host(settings)
    trials: list[LinkTrial] = []
    for link in present_links(settings, host):
        try:
            backend = make_link(link, settings, host)
        except PyAgentError as error:
            trials.append(LinkTrial(backend=link.use, is_well=False, found=str(error), advice=_advice(error)))
            continue
        try:
            trials.append(await _trial(backend, seconds))
        finally:
            await backend.close()
    return trials


async def _trial(backend: Backend, seconds: float) -> LinkTrial:
    import time

    from pyagent.core.messages import ChatRequest, EmbedRequest, Message, SamplingParams
    from pyagent.core.resilience.deadline import Deadline

    asked = ChatRequest(
        messages=[Message("user", "Say hello.")], sampling=SamplingParams(max_tokens=8), timeout_seconds=seconds
    )
    started = time.perf_counter()

    async def first() -> tuple[float | None, str]:
        models = await backend.models() if backend.name.startswith("native:") else []
        if models and all(model.task == "embed" for model in models):
            await backend.embed(EmbedRequest(model="", input=["Say hello."]))
            return None, f"{models[0].id} embeds"
        took, name = None, ""
        async for delta in backend.chat(asked):
            if took is None and (delta.content or delta.reasoning or delta.tool_calls or delta.finish_reason):
                took = time.perf_counter() - started
            name = delta.model or name
        if took is None:
            raise BackendError(f"{backend.name} ended its answer before it began", backend=backend.name)
        return took, name

    try:
        took, name = await Deadline.after(seconds).bound(first(), backend.name)
    except Exception as error:  # noqa: BLE001 - a plugin's bug is what this command is there to show
        found = str(error) or type(error).__name__
        return LinkTrial(backend=backend.name, is_well=False, found=found, advice=_advice(error))
    return LinkTrial(backend=backend.name, is_well=True, first_token_seconds=took, model=name or "answers")


def _advice(error: Exception) -> str:  # noqa: PLR0911 - a table of cases
    """Return what to do about a link that does not answer."""
    match error:
        case DeadlineError():
            return "it is slow or hangs: give it more with --seconds, or a timeout_seconds of its own in the chain"
        case CapacityError():
            when = f"in {error.retry_after_seconds:.0f} s" if error.retry_after_seconds else "later"
            return f"it is busy: try again {when}, or bound it with `rate` or `concurrency` in its table"
        case BackendError() if error.status in {401, 403}:
            return "name its key: backends.api_keys, or `key` in its table"
        case BackendError() if _is_tls(error):
            return "trust its certificate (SSL_CERT_FILE=FILE), or correct its address: https:// or http://"
        case BackendError():
            return "start it or correct its address; until then the chain goes on to its next link"
        case ModelError():
            return "the model cannot be had or is damaged: pyagent models pull NAME, or correct its path"
        case RequestError():
            return "name a model it has: SCHEME:MODEL, or #MODEL after a URL"
        case ConfigError() | PluginError():
            return "correct `chain` in pyagent.toml, or install what is missing"
        case _:
            return "this is a fault of its plugin: pyagent plugins list"


def _is_tls(error: BaseException | None) -> bool:
    """Whether a connection failed for its certificate, or for who speaks no TLS."""
    import ssl

    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False

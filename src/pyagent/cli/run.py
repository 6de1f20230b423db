"""`pyagent run`: a task for the fleet, watched while it works."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pyagent.cli.graph import GraphForm, read_graph_file, write_graph
from pyagent.cli.options import AsJson, Chain, Config, Files, Model, Private, Seconds
from pyagent.cli.output import for_terminal
from pyagent.cli.startup import read_settings

if TYPE_CHECKING:
    from pyagent.cli.progress import RunProgress
    from pyagent.core.fleet.agent import Task
    from pyagent.core.fleet.events import Event
    from pyagent.core.fleet.limits import RunBudget
    from pyagent.core.fleet.planner import Planning
    from pyagent.core.fleet.steps import Step
    from pyagent.core.fleet.urgency import Urgency
    from pyagent.fleet import Fleet

app = typer.Typer(add_completion=False)


@app.command()
def run(
    task: Annotated[str | None, typer.Argument(help="What is to be done; - reads it from standard input.")] = None,
    file: Files = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="The agent that is to do it; else the router chooses.")
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option("--graph", metavar="FILE", help="Run the steps of a TOML file; TASK fills their {task}."),
    ] = None,
    plan: Annotated[
        bool | None,
        typer.Option("--plan/--no-plan", help="A model first makes a graph of agents for the task; see fleet.plan."),
    ] = None,
    confirm: Annotated[
        bool | None,
        typer.Option(
            "--confirm/--no-confirm",
            help="Plan, and show the plan: accept, edit or refuse it before it runs; or run what is planned unseen.",
        ),
    ] = None,
    show: Annotated[
        GraphForm | None,
        typer.Option("--show", help="Write the graph instead of running it: as a tree, or for Mermaid."),
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", help="Lower goes first where more want to go on than may; also in the engine.")
    ] = 0,
    request_class: Annotated[
        str, typer.Option("--request-class", metavar="NAME", help="The queue of the engine that its requests wait in.")
    ] = "",
    tokens: Annotated[
        int | None, typer.Option("--tokens", metavar="N", min=1, help="Most prompt and output tokens it may use.")
    ] = None,
    usd: Annotated[
        float | None, typer.Option("--usd", metavar="X", min=0, help="Most US dollars that its model calls may cost.")
    ] = None,
    activations: Annotated[
        int | None,
        typer.Option(
            "--activations",
            metavar="N",
            min=1,
            max=32,
            help="Record the N neurons behind each token of the model's answers that wrote most, and what each layer "
            "would have said; `pyagent runs show --activations` shows them. The embedded engine alone tells them.",
        ),
    ] = None,
    chain: Chain = None,
    model: Model = None,
    private: Private = False,
    seconds: Seconds = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Give a task to the fleet and watch it work. Without a task it is read from a pipe."""

    import msgspec

    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.input import readable_files, text_or_input
    from pyagent.core.fleet import limits
    from pyagent.core.fleet.urgency import Urgency
    from pyagent.fleet import Fleet

    settings = read_settings(config, chain, model)
    if activations is not None:
        fleet = msgspec.structs.replace(settings.fleet, top_activations=activations, logit_lens=1)
        settings = msgspec.structs.replace(settings, fleet=fleet)
    with readable_files(file or []) as files:
        text = text_or_input(task or "", has_more=bool(files or graph))
        steps = None if graph is None else read_graph_file(graph, text)
        if show is not None:
            write_graph(steps, show)
            return
        if steps is None and not (text.strip() or files):
            raise typer.BadParameter("the task is empty: say what is to be done, or name a file", param_hint="TASK")

        async def work() -> None:
            async with Fleet(settings) as fleet:
                await watch(
                    fleet,
                    text if steps is None else steps,
                    files=files,
                    agent=agent,
                    timeout_seconds=seconds,
                    is_private=private,
                    as_json=as_json,
                    urgency=Urgency(priority, request_class),
                    budget=limits.RunBudget(tokens=tokens, usd=usd),
                    plan=_planning(plan, confirm, settings.fleet.plan, is_plain=steps is None and agent is None),
                )

        run_to_end(work())


def _planning(
    plan: bool | None, confirm: bool | None, by_settings: Planning, *, is_plain: bool
) -> bool | Planning | None:
    """Return whether the task is planned, and whether the plan is shown before it runs."""
    if confirm:
        return "ask"
    plans = plan or (plan is None and is_plain and by_settings != "off")
    return "auto" if confirm is False and plans else plan


async def watch(
    fleet: Fleet,
    task: str | Task | Sequence[Step],
    *,
    files: Sequence[str] = (),
    agent: str | None = None,
    timeout_seconds: float | None = None,
    is_private: bool = False,
    as_json: bool = False,
    urgency: Urgency | None = None,
    plan: bool | Planning | None = None,
    budget: RunBudget | None = None,
) -> None:
    """Run `task` on `fleet`, showing what happens; then its result and what it took, also when it fails."""
    run = fleet.run(
        task,
        files=files,
        agent=agent,
        timeout_seconds=timeout_seconds,
        is_private=is_private,
        waits_for_answers=waits_for_answers(as_json=as_json),
        priority=urgency.priority if urgency else 0,
        request_class=urgency.request_class if urgency else "",
        plan=plan,
        budget=budget,
    )
    await show_run(fleet, run, as_json=as_json)


def waits_for_answers(*, as_json: bool) -> bool | None:
    """Return whether a run's questions wait for a person at the terminal; None leaves it to the settings."""
    from pyagent.cli.answering import can_answer

    return True if not as_json and can_answer() else None


async def show_run(fleet: Fleet, run: AsyncGenerator[Event, None], *, as_json: bool) -> None:
    """Show the events of a run, and let its questions be answered; then its result and what it took."""
    import asyncio
    from contextlib import aclosing

    from pyagent.cli.answering import answer_at_terminal
    from pyagent.cli.startup import fetches_shown
    from pyagent.cli.view import make_view
    from pyagent.core.fleet.events import QuestionAsked

    view, asks = make_view(as_json=as_json), waits_for_answers(as_json=as_json)
    outcome: Literal["done", "failed", "interrupted"] = "failed"
    try:
        with view, fetches_shown(view.show_fetch):
            async with aclosing(run) as events:
                async for event in events:
                    view.show(event)
                    if asks and isinstance(event, QuestionAsked):
                        with view.paused():
                            await answer_at_terminal(fleet, event)
        outcome = "done"
        if not as_json:
            write_results(view.progress)
    except asyncio.CancelledError:
        outcome = "interrupted"
        raise
    finally:
        if not as_json:
            loss = fleet.journal.loss(view.progress.run)
            sys.stdout.write(f"\n{view.progress.summary(outcome, loss)}\n")
            sys.stdout.flush()


def write_results(progress: RunProgress) -> None:
    """Write the whole results of the steps, where a row had no room for them."""
    from pyagent.cli.progress import as_text

    rows = list(progress.rows.values())
    for row in rows:
        text = as_text(row.output).strip()
        if len(rows) == 1 or "\n" in text or len(text) > 72:
            heading = f"\n{row.agent}:\n" if len(rows) > 1 else "\n"
            sys.stdout.write(f"{heading}{for_terminal(text)}\n")

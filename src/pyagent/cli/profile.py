"""`pyagent profile`: what a running server does for some seconds, and what memory it has. Speaks HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.server_calls import call_server
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.infrastructure.observability.profile import Profile

app = typer.Typer(add_completion=False)
_SHOWN = 15


@app.command()
def profile(
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=60.0, help="How long to watch.")] = 5.0,
    allocations: Annotated[
        bool, typer.Option("--allocations", help="Trace what Python allocates meanwhile, which slows the server.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the whole profile into a file, as JSON.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="The server's URL; without it the one that runs here.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Watch a running server: hot threads and functions, memory, garbage collections. Needs an administrator's key."""
    import msgspec

    from pyagent.infrastructure.observability.profile import Profile

    body = call_server("POST", "/pyagent/profile", url, config, {"seconds": seconds, "allocations": allocations})
    if output is not None:
        output.write_bytes(body + b"\n")
    sys.stdout.write(body.decode() + "\n" if as_json else _text(msgspec.json.decode(body, type=Profile)))


def _text(profile: Profile) -> str:
    lines = [f"processor time by thread, of {profile.seconds:.1f} s"]
    lines += [f"  {one.cpu_seconds:8.2f} s  {one.name} (process {one.process_id})" for one in profile.threads[:_SHOWN]]
    lines.append(f"Python functions, in {profile.num_samples} samples: itself, and with what it calls")
    lines += [f"  {one.own:6} {one.total:6}  {one.function}" for one in profile.functions[:_SHOWN]]
    heap = "" if profile.heap_bytes is None else f", {format_bytes(profile.heap_bytes)} of it in the heap"
    grown = f"{'+' if profile.resident_growth >= 0 else '-'}{format_bytes(abs(profile.resident_growth))}"
    lines.append(f"memory: {format_bytes(profile.resident_bytes)} ({grown}){heap}")
    found = profile.collections
    pauses = f"{found.count} collections, {found.pause_seconds:.3f} s, the longest {found.longest_pause_seconds:.3f} s"
    lines.append(f"garbage: {pauses}; {found.num_tracked} objects are looked at, {found.num_frozen} left alone")
    lines += [f"  {count:8} {name}" for name, count in found.top_types.items()]
    if profile.allocations:
        lines.append("allocated meanwhile and still held")
        lines += [f"  {format_bytes(one.num_bytes):>10}  {one.line}" for one in profile.allocations[:_SHOWN]]
    return "\n".join(lines) + "\n"

"""What `pyagent cluster drain` tells."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from typer.testing import CliRunner

from pyagent.cli.cluster import app
from pyagent.testing import serve


@pytest.mark.parametrize(
    ("num_left", "told"),
    [
        (0, "drained\n"),
        (1, "drained; 1 answer not over in time: the nodes that asked go on elsewhere from the text they have\n"),
        (2, "drained; 2 answers not over in time: the nodes that asked go on elsewhere from the text they have\n"),
    ],
)
def test_drain_tells_that_answers_go_on_elsewhere(num_left: int, told: str) -> None:
    """Answers that were broken off do not run here any more, and the command does not say that they do."""

    async def drain(_: object) -> JSONResponse:
        return JSONResponse({"num_running": num_left})

    with serve(Starlette(routes=[Route("/pyagent/cluster/drain", drain, methods=["POST"])])) as url:
        assert CliRunner().invoke(app, ["drain", "--url", url], catch_exceptions=False).stdout == told

"""A program that tells how a node sees its cluster: `support.watch_node URL`; a line of JSON for each change."""

from __future__ import annotations

import http.client
import json
import sys
import time
from urllib.parse import urlsplit

_PAUSE_SECONDS = 0.1
"""Each look takes a few ms of the node it looks at; states last for seconds."""


def look(connection: http.client.HTTPConnection) -> dict[str, str]:
    """Return each peer's state, `connected` where requests can go there."""
    connection.request("GET", "/pyagent/cluster")
    told = json.loads(connection.getresponse().read())
    return {
        peer["name"]: "connected" if peer["is_connected"] and peer["state"] == "alive" else peer["state"]
        for peer in told["peers"]
    }


def main(url: str) -> None:
    place = urlsplit(url).netloc
    connection, seen = http.client.HTTPConnection(place, timeout=30), None
    while True:
        try:
            now: dict[str, str] | None = look(connection)
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            connection, now = http.client.HTTPConnection(place, timeout=30), None
        if now != seen:
            print(json.dumps({"at": time.monotonic(), "peers": now}), flush=True)
            seen = now
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])

"""An MCP server of the protocol before 2026, by hand and in the standard library alone: quick to start, and hostile.

What it does is its first argument; one that `fails` says `KEY` on standard error.
"""

import json
import os
import signal
import subprocess
import sys
import time

MODE = sys.argv[1]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "echo", "description": "Give back a text.", "inputSchema": TEXT, "annotations": {"readOnlyHint": True}}
]


def nested(depth):
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


LIES = [
    *({"name": f"deep{depth}", "inputSchema": nested(depth)} for depth in (30, 70, 90, 150)),
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("a b", "a_b", "a\tb", "x" * 200, "")),
    {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    {"name": "big", "inputSchema": {"type": "object", "description": "x" * 200_000}},
    {"name": "talks", "description": "y" * 100_000, "inputSchema": {"type": "object"}},
]


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    send({"id": request["id"], "result": result})


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def call(request):
    said = request["params"]["arguments"].get("text", "")
    if MODE == "endless":
        while True:
            sys.stdout.write("x" * 1_000_000)
    if MODE == "flood":
        for number in range(3_000):
            progress = {"progressToken": request["params"]["_meta"]["progressToken"], "progress": number}
            send({"method": "notifications/progress", "params": progress})
            send({"method": "notifications/message", "params": {"level": "info", "data": "z" * 100}})
    if MODE == "silent":
        return
    if MODE == "dies":
        os._exit(3)
    if said == "more":
        TOOLS.append({"name": "added", "inputSchema": {"type": "object"}})
        send({"method": "notifications/tools/list_changed"})
    if said == "key":
        said = request["params"]["_meta"]["pyagent/idempotency-key"]
    if MODE == "blocks":
        link = {"type": "resource_link", "name": "notes", "uri": "file:///notes"}
        inner = {"type": "resource", "resource": {"uri": "file:///a", "text": "the text of a"}}
        blob = {"type": "resource", "resource": {"uri": "file:///b", "blob": "aGVsbG8="}}
        answer(request, {"content": [link, inner, blob], "structuredContent": {"sum": 3}})
        return
    answer(request, text(said))


def main():
    if MODE == "fails":
        sys.exit("no: " + os.environ.get("KEY", ""))
    if MODE == "child":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        TOOLS[0]["description"] = f"{os.getpid()} {child.pid}"
    if MODE == "noise":
        print("starting up")
        print("[1, 2", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("method") == "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}}
            info = {"name": "raw", "version": "1"}
            answer(request, {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
        elif request.get("method") == "tools/list":
            wrong = [{"name": "list", "inputSchema": {"type": "array"}}]
            answer(request, {"tools": {"lies": LIES, "wrong": wrong}.get(MODE, TOOLS)})
        elif request.get("method") == "tools/call":
            call(request)
        elif "id" in request:
            send({"id": request["id"], "error": {"code": -32601, "message": "no such method"}})
    while MODE == "child":
        time.sleep(600)


main()

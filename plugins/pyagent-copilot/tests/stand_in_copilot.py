"""Stands in for the program `copilot`: reads a prompt, writes the lines of the real one. STAND_IN says what fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

FLAGS = {"--output-format", "--stream", "--model", "--log-level"}
SWITCHES = {"--no-color", "--no-auto-update", "--no-custom-instructions", "--no-ask-user", "--disable-builtin-mcps"}
SWITCHES |= {"--no-remote", "--available-tools=none"}


def sample(schema: dict) -> object:
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"string": "text", "integer": 1, "number": 0.5, "boolean": True, "array": []}
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: sample(value) for name, value in schema.get("properties", {}).items()}
    return kinds.get(kind)


def answer_to(prompt: str) -> str:
    if found := re.search(r"JSON schema:\n(\{.*\})", prompt):
        return json.dumps(sample(json.loads(found[1])))
    if "one JSON object" in prompt:
        return "{}"
    if found := re.search(r'exactly one of these texts .*: "([^"]*)"', prompt):
        return found[1]
    found = re.search(r"parameters:\n(\{.*\})\n", prompt)
    if found and "\nUser: <tool_response>" not in prompt:
        tool = json.loads(found[1])
        call = {"name": tool["name"], "arguments": sample(tool.get("parameters", {}))}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    return os.environ.get("STAND_IN_ANSWER", "Hello from the stand-in.")


def say(kind: str, **data: object) -> None:
    print(json.dumps({"type": kind, "data": data, "id": "1"}), flush=True)


def main() -> None:
    words = sys.argv[1:]
    options = {word: words[index + 1] for index, word in enumerate(words[:-1]) if word in FLAGS}
    unknown = [word for word in words if word.startswith("-") and word not in FLAGS | SWITCHES]
    if unknown:
        sys.exit(f"error: unknown option '{unknown[0]}'")
    prompt, fault = sys.stdin.read(), os.environ.get("STAND_IN", "")
    if record := os.environ.get("STAND_IN_RECORD"):
        told = {"argv": words, "prompt": prompt, "cwd": os.listdir(), "allow": os.environ["COPILOT_ALLOW_ALL"]}
        with open(record, "w") as file:
            json.dump(told, file)
    if fault == "signed-out":
        sys.exit("Error: No authentication information found.\n\nCopilot can be authenticated with ...")
    if fault == "old":
        sys.exit("error: unknown option '--output-format'")
    say("session.info", infoType="configuration", message="Disabled tools: bash, view")
    if options.get("--model") == "no-such-model":
        say("session.error", errorType="query", message="Model 'no-such-model' not found on provider", statusCode=404)
        sys.exit(1)
    if fault.startswith("status-"):
        say("session.error", errorType="query", message="refused\n  for a reason", statusCode=int(fault[7:]))
        sys.exit(1)
    if fault == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(os.environ["STAND_IN_CHILD"], "w") as file:
            file.write(str(child.pid))
    text = answer_to(prompt)
    for piece in re.findall(r"\s*\S+", text):
        say("assistant.message_delta", messageId="m", deltaContent=piece)
        if fault in {"stall", "child"}:
            time.sleep(600)
        if fault == "crash":
            os._exit(3)
        if fault == "garbage":
            print("\x1b[31mnot json", flush=True)
        if fault == "long":
            print("x" * 5_000_000, flush=True)
    print("many words " * 50_000, file=sys.stderr) if fault == "noise" else None
    say("assistant.message", messageId="m", model=options.get("--model", "gpt-fake"), content=text, toolRequests=[])
    print(json.dumps({"type": "result", "exitCode": 0, "usage": {"premiumRequests": 1}}), flush=True)


main()

"""A PyAgent plugin with a guardrail: no API key goes into a task, a tool or a result."""

import re
from collections.abc import Sequence

from pyagent.plugin import Context, Guardrail, Task, hookimpl

KEY = re.compile(r"\b(sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{36})\b")


class NoKeys:
    """Refuses what holds a key, and says so without the key."""

    name = "no-keys"

    async def check_task(self, context: Context, task: Task) -> str | None:
        return reason(f"{task.title} {task.arguments}")

    async def check_call(self, context: Context, tool: str, arguments: object) -> str | None:
        return reason(str(arguments))

    async def check_output(self, context: Context, output: object) -> str | None:
        return reason(str(output))


def reason(text: str) -> str | None:
    return "it holds an API key" if KEY.search(text) else None


@hookimpl
def pyagent_register_guardrails() -> Sequence[Guardrail]:
    return [NoKeys()]

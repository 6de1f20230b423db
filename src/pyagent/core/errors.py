"""The tree of errors PyAgent raises, split by who can act on them.

    PyAgentError
    ├── ConfigError        the user: a setting, a flag, a file of settings
    ├── RequestError       the caller: a request that cannot be served as it is
    │   ├── ContextOverflowError   the prompt does not fit the model's context
    │   ├── InvalidOutputError     the model's answers do not match what the request asks for; another model's may
    │   ├── GuardrailError     a guardrail refuses a task, a call or a result
    │   └── Decline        an agent says that a task is not for it; the router asks the next
    ├── PluginError        the plugin's author: names the plugin and, where known, the hook
    ├── ModelError         the model's files: format, weights, checksum
    │   └── AdapterError   an adapter that a request names cannot be used with the model
    ├── CapacityError      the caller, later: says when to try again
    │   ├── AwayError      what has the model takes no requests now
    │   ├── MovedError     it had not begun, and another node is to be asked
    │   └── BudgetError    the run's budget is spent
    ├── DeadlineError      the caller's deadline passed
    ├── ReplayError        a resumed run's agent asks for something else than before: its code changed
    ├── StalledError       a run's calls only repeat, or its scores stay as they are: it gets nowhere
    ├── NeedsAnswerError   a person: the run asks something, and has to be told before it can go on
    ├── BackendError       a backend failed: names it and whether trying again can help
    │   ├── UnsupportedError   it cannot do what the request asks; another may
    │   └── RunnerLostError    what an engine's runner computes with is gone, KV included
    ├── WireError          another process of PyAgent's: its message cannot be read, or it is of another version
    └── AgentError         an agent failed: names it
        └── AgentAwayError     it is elsewhere and took no task: the router asks the next

Every message says what was wrong, what was expected and what to do. Facts are attributes. Foreign errors are
mapped once, at the border, with ``raise ... from``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class PyAgentError(Exception):
    """Root of everything PyAgent raises on purpose.

    `has_begun`: what was asked has effects, as an agent's run, and may have had them: no other is asked.
    """

    has_begun: bool = False


class ConfigError(PyAgentError):
    """A setting is wrong. `key` is the dotted name of the setting, when one is at fault."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class FieldFault(NamedTuple):
    """One of several things that are wrong with a request."""

    message: str
    param: str | None
    code: str


class RequestError(PyAgentError):
    """A request that cannot be served as it is. `param` names the field at fault, as in OpenAI's errors.

    Of several faults `param` and `code` are the first one's, and `faults` are all of them.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_request",
        faults: tuple[FieldFault, ...] = (),
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.faults = faults


class ContextOverflowError(RequestError):
    """The prompt, or a text in `param`, does not fit: `num_tokens` asked for, `limit` tokens in the model's context."""

    def __init__(self, message: str, *, num_tokens: int, limit: int, param: str = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
        self.num_tokens = num_tokens
        self.limit = limit


class Decline(RequestError):  # noqa: N818 - what an agent does, not what went wrong
    """An agent does not take a task. The router hands it to the next; asked by name, the caller is told."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="task", code="declined")


class InvalidOutputError(RequestError):
    """A model's answer does not match the response format or call that the request asks for; another model's may.

    No fault of the backend, which works: so it is the request's, and the codes are those that Groq's API made known.
    """

    def __init__(self, message: str, *, param: str) -> None:
        code = "json_validate_failed" if param == "response_format" else "tool_use_failed"
        super().__init__(message, param=param, code=code)


class GuardrailError(RequestError):
    """A guardrail, by its name, refuses a task, the arguments of a call, or an output (`param`)."""

    def __init__(self, message: str, *, guardrail: str, param: str | None = None) -> None:
        super().__init__(message, param=param, code="guardrail")
        self.guardrail = guardrail


class PluginError(PyAgentError):
    """A plugin misbehaved. `plugin` is its name, `hook` the hook concerned, when one is."""

    def __init__(self, message: str, *, plugin: str, hook: str | None = None) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook


class ModelError(PyAgentError):
    """A model cannot be found, read or run. `model` is the name or path asked for."""

    def __init__(self, message: str, *, model: str) -> None:
        super().__init__(message)
        self.model = model


class AdapterError(ModelError):
    """An adapter of a model cannot be used: `adapter` is its name. The model and its other adapters go on answering."""

    param = "model"

    def __init__(self, message: str, *, model: str, adapter: str) -> None:
        super().__init__(message, model=model)
        self.adapter = adapter


class CapacityError(PyAgentError):
    """Something is full. `retry_after_seconds` says when to try again, when that is known."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class AwayError(CapacityError):
    """The nodes that have the model take no requests now: they are gone, drain, or are not connected."""


class MovedError(CapacityError):
    """A request was given back before it began. `to` is the id of the node that has room for it; empty is any."""

    def __init__(self, message: str, *, to: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.to = to


class BudgetError(CapacityError):
    """A budget would be exceeded. `resource` is tokens, usd or agents; `setting` names the budget, where it has one."""

    def __init__(self, message: str, *, resource: str, setting: str = "") -> None:
        super().__init__(message)
        self.resource = resource
        self.setting = setting


class DeadlineError(PyAgentError):
    """The caller's deadline passed before the work was done."""


class StalledError(PyAgentError):
    """A run gets nowhere: its calls only repeat, or its scores stay as they are."""


class NeedsAnswerError(PyAgentError):
    """A run asks a person, and no answer can reach it. `question` is the question's id, `options` what it takes."""

    def __init__(self, message: str, *, question: str, options: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.question = question
        self.options = options


class ReplayError(PyAgentError):
    """A resumed run's agent asks for something else than before: its code changed. `step` and `call` say where."""

    def __init__(self, message: str, *, agent: str, step: str, call: str) -> None:
        super().__init__(message)
        self.agent = agent
        self.step = step
        self.call = call


class BackendError(PyAgentError):
    """A backend failed. `retryable` says whether another try or another backend can help."""

    def __init__(self, message: str, *, backend: str, retryable: bool = True, status: int | None = None) -> None:
        super().__init__(message)
        self.backend = backend
        self.retryable = retryable
        self.status = status


class UnsupportedError(BackendError):
    """A backend, or its model, cannot do what a request asks, by the names of `core.abilities`; another may."""

    def __init__(self, message: str, *, backend: str, fields: Sequence[str]) -> None:
        super().__init__(message, backend=backend, retryable=False)
        self.fields = tuple(fields)

    @property
    def param(self) -> str | None:
        """The field of a request that asks for it: images stand in messages."""
        first = self.fields[0] if self.fields else None
        return "messages" if first == "images" else first


class RunnerLostError(BackendError):
    """What an engine's runner computes with is gone, and the KV memory with it: a rank's process ended, say.

    The engine's loop ends by it. Answers go on where the engine has a process of its own; else they fail, and the next
    request loads the model again.
    """

    def __init__(self, message: str, *, backend: str = "native") -> None:
        super().__init__(message, backend=backend)


class WireError(PyAgentError):
    """Another process of PyAgent's, `peer`, sent what cannot be read, or speaks another version of the protocol."""

    def __init__(self, message: str, *, peer: str) -> None:
        super().__init__(message)
        self.peer = peer


class ClusterError(PyAgentError):
    """The cluster, or `peer`, a node of it, cannot do what was asked; empty names no node."""

    def __init__(self, message: str, *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class AgentError(PyAgentError):
    """An agent failed. `agent` is its name."""

    def __init__(self, message: str, *, agent: str) -> None:
        super().__init__(message)
        self.agent = agent


class AgentAwayError(AgentError):
    """One elsewhere cannot be reached, or does not take the task, which has not begun: the router asks the next."""

"""What happens in a run, as it happens: the command line's live view, `--json` and the journal read these.

Each event is a frozen struct that JSON carries with its kind in the field `event`. `step` is a path in the run's tree:
`summarize`, `summarize/2.reasoning`. `at` is seconds since 1970.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from pyagent.core.activations import TokenActivations
from pyagent.core.fleet.confidence import Confidence, DoubtAct
from pyagent.core.fleet.notes import Note, Scope
from pyagent.core.messages import FailedAttempt, FinishReason, Message, TokenLogprob, ToolCall, Usage


def _kind(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a run or a step used. `tokens_per_second` is tokens out over the time it took, all its calls together.

    `usd` is what its model calls cost by the `price` of the links that answered.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    tokens_per_second: float = 0.0


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_kind):
    run: str
    at: float = msgspec.field(default_factory=time.time)


class RunStarted(_Event, frozen=True):
    """A run began. `steps` are the steps of its graph, as far as they were given."""

    task: str
    files: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


class RunResumed(_Event, frozen=True):
    """A run goes on after its end, or its process's death: so many agents and calls are not run again."""

    num_agents: int
    num_calls: int


class RouteChosen(_Event, frozen=True):
    """The router picked an agent: what it took the task for, its intent.

    `how`: the caller named it, by its `score`, by the typical tasks it tells (`examples`), by what near ones earned
    before (`learned`), a model or a person chose, it takes the `rest` as no agent is made for the task, or there is
    no other. `score` is how sure that is: its own score, or its probability.
    """

    step: str
    agent: str
    how: Literal["named", "score", "examples", "learned", "model", "rest", "person", "only"]
    reason: str
    score: float | None = None


class OptionChosen(_Event, frozen=True):
    """What was chosen for an agent: its `strategy`, or the variant of its `prompt`, whose `text` its models are told.

    `how`: by what was `learned` from outcomes, or by a `test` of the variants.
    """

    step: str
    agent: str
    kind: str
    option: str
    how: Literal["learned", "test"]
    reason: str
    text: str = ""


class AgentStarted(_Event, frozen=True):
    """An agent began its task; `parent` is the step that spawned it."""

    step: str
    agent: str
    task: str
    parent: str | None = None
    asked: str = ""


class RateLimited(_Event, frozen=True):
    """An agent or a call waits about so many seconds for its turn: `what` (an agent, a tool, a step) has a `rate`."""

    step: str
    agent: str
    what: str
    rate: str
    seconds: float = 0.0


class Progress(_Event, frozen=True):
    """A line an agent shows while it works: `8 parts in parallel`."""

    step: str
    agent: str
    text: str


class TextDelta(_Event, frozen=True):
    """A piece of the answer, for reading along. Not kept in the journal: the whole answer is."""

    step: str
    agent: str
    text: str


class ModelCalled(_Event, frozen=True):
    """A model answered, or failed to (`error`). `attempts` are the backends that did not answer.

    A `finish_reason` of `length` means that the answer was cut at its `max_tokens`, or at the model's context length.
    `tool_calls` are those that the answer asks for. A resumed run finds the answer by `call`, the number among its
    agent's calls, and `asked`, a hash of the question; `fault` has the error's class and facts. `confidence` is how
    sure the answer is; `logprobs` and `prompt_logprob` are there where the agent asked for them; `activations`, those
    behind the answer's first tokens, where the settings do.
    """

    step: str
    agent: str
    backend: str
    messages: list[Message]
    answer: str
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    tool_calls: list[ToolCall] = []
    attempts: list[FailedAttempt] = []
    seconds: float = 0.0
    error: str | None = None
    call: str = ""
    asked: str = ""
    fault: dict[str, object] = {}
    model: str = ""
    confidence: Confidence | None = None
    logprobs: list[TokenLogprob] = []
    prompt_logprob: float | None = None
    activations: list[TokenActivations] = []


class AnswerDoubted(_Event, frozen=True):
    """An answer is doubtful (`reason`), and what is done about that (`act`); `call` is its `ModelCalled`'s.

    Without a `call` it is of several answers, which an agent compared.
    """

    step: str
    agent: str
    reason: str
    act: DoubtAct
    confidence: Confidence
    backend: str = ""
    call: str = ""


class ScoreReported(_Event, frozen=True):
    """An agent says how good what it has is (`Context.report`); more is better.

    Scores of one `series` of an agent are compared with each other, and with no others.
    """

    step: str
    agent: str
    score: float
    series: str = ""


class ToolStarted(_Event, frozen=True):
    """A tool with an effect is about to run, for the `attempt`th time; without a `ToolCalled` its outcome is unknown.

    `key` is the call's own in all runs, and equal in all attempts: the tool is given it as `idempotency_key()`.
    """

    step: str
    agent: str
    tool: str
    arguments: object
    call: str
    asked: str
    key: str
    effect: str
    attempt: int = 1


class ToolCalled(_Event, frozen=True):
    """A tool ran, or failed (`error`). An output that is not `is_restorable` cannot be read back as it was."""

    step: str
    agent: str
    tool: str
    arguments: object
    output: object = None
    seconds: float = 0.0
    error: str | None = None
    call: str = ""
    asked: str = ""
    fault: dict[str, object] = {}
    is_restorable: bool = True


QuestionKind = Literal["question", "approval", "effect", "plan"]
"""What a person is asked: for words, whether an unsafe tool may run, whether an interrupted tool had its effect, or
whether a plan may run.
"""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for a person to answer. `options` are the answers it takes; without them any text will do.

    `id` is the question's own in all runs, and the same when the run is resumed.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...] = ()


class QuestionAsked(_Event, frozen=True):
    """An agent asks a person. Until `QuestionAnswered` follows, its step waits, or the run ends without it."""

    step: str
    agent: str
    question: Question
    call: str = ""
    asked: str = ""


class QuestionAnswered(_Event, frozen=True):
    """A person answered; `question` is the question's id."""

    step: str
    agent: str
    question: str
    answer: str


class NoteTaken(_Event, frozen=True):
    """An agent noted something for the agents of its run, or with scope `fleet` for later runs of its tenant."""

    step: str
    agent: str
    text: str
    importance: float = 0.5
    expires_seconds: float | None = None
    scope: Scope = "run"
    call: str = ""
    asked: str = ""


class NotesRead(_Event, frozen=True):
    """An agent read the notes that fit best."""

    step: str
    agent: str
    notes: list[Note]
    call: str = ""
    asked: str = ""


class HistoryCompacted(_Event, frozen=True):
    """A conversation grew too long for the model and was shortened: its prompt's tokens, about, before and after."""

    step: str
    agent: str
    tokens_before: int
    tokens_after: int

    @property
    def line(self) -> str:
        """What people are told of it."""
        return f"shortened the conversation: {self.tokens_before:,} to {self.tokens_after:,} tokens"


class ToolResultFlagged(_Event, frozen=True):
    """What a tool gave reads like instructions to the model: `injection` from 0 to 1, the kinds of signs, and quotes.

    The model was warned of it, or did not see it (`is_blocked`), as `fleet.tool_guard` says.
    """

    step: str
    agent: str
    tool: str
    injection: float
    kinds: list[str]
    quotes: list[str]
    is_blocked: bool = False

    @property
    def line(self) -> str:
        """What people are told of it."""
        done = "withheld from the model" if self.is_blocked else "the model is warned"
        return f"the result of {self.tool} reads like instructions to a model ({', '.join(self.kinds)}): {done}"


class StepFinished(_Event, frozen=True):
    """A part of an agent's work, named by the agent, ended."""

    step: str
    agent: str
    name: str
    seconds: float
    error: str | None = None


class AgentFinished(_Event, frozen=True):
    """An agent gave its result."""

    step: str
    agent: str
    output: object
    totals: Totals
    is_restorable: bool = True


class AgentFailed(_Event, frozen=True):
    """An agent gave up. `kind` is the error's class."""

    step: str
    agent: str
    kind: str
    error: str
    totals: Totals
    fault: dict[str, object] = {}


class AgentDeclined(_Event, frozen=True):
    """An agent does not take the task. Unless the caller named it, a `RouteChosen` with the next agent follows."""

    step: str
    agent: str
    reason: str
    totals: Totals


class StepSkipped(_Event, frozen=True):
    """A step of the run's graph did not run: the step `cause` before it failed or did not run, or `condition` is false.

    The condition is the step's own `when`.
    """

    step: str
    cause: str
    condition: str = ""


class StepRetried(_Event, frozen=True):
    """A step failed for the `attempt`th time and is tried again after so many seconds; `failed` names its agents."""

    step: str
    attempt: int
    kind: str
    error: str
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


class FailureTolerated(_Event, frozen=True):
    """A step begins though the agents of steps before it, `failed`, failed: its `join` is `any` or `done`."""

    step: str
    failed: tuple[str, ...]


class LoopEnded(_Event, frozen=True):
    """A step was repeated so many rounds; whether its `until` is met, or the rounds were used up."""

    step: str
    rounds: int
    is_met: bool


class StepFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A step that failed, and how. `kind` is the error's class."""

    step: str
    kind: str
    error: str


class RunFinished(_Event, frozen=True):
    """The run's result: the output of its last step, or of each of its last steps by name."""

    output: object
    totals: Totals


RunEnd = Literal["error", "budget_exhausted", "needs_answer", "timeout", "stalled", "cancelled"]


class RunFailed(_Event, frozen=True):
    """The run ended without a result.

    `kind` and `error` are of the first failure, `failures` of all; `skipped` has the steps that did not run, each with
    the step that failed before it; `partial` holds the outputs of the steps that did finish, and what others had so far
    (`Context.keep`). `reason` says what kind of end it is.
    """

    kind: str
    error: str
    partial: dict[str, object]
    totals: Totals
    failures: tuple[StepFailure, ...] = ()
    skipped: dict[str, str] = {}
    reason: RunEnd = "error"


Event = (
    RunStarted
    | RunResumed
    | RouteChosen
    | AgentStarted
    | RateLimited
    | Progress
    | TextDelta
    | ModelCalled
    | AnswerDoubted
    | OptionChosen
    | ScoreReported
    | ToolStarted
    | ToolCalled
    | NoteTaken
    | NotesRead
    | HistoryCompacted
    | ToolResultFlagged
    | QuestionAsked
    | QuestionAnswered
    | StepFinished
    | StepSkipped
    | StepRetried
    | FailureTolerated
    | LoopEnded
    | AgentFinished
    | AgentFailed
    | AgentDeclined
    | RunFinished
    | RunFailed
)


def encode_event(event: Event) -> bytes:
    """Return an event as one line of JSON; an output that JSON cannot carry becomes its text."""
    return msgspec.json.encode(event, enc_hook=str)

"""What a logits processor is: a plugin's code that changes the logits from which the next token is sampled.

It has one of two forms. `make` gives each request a function of its own, called with that request's row. `make_batch`
gives each model one object, which hears which rows join, leave and move, and is called once a step with all of them.
Knows no engine and no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyagent.core.errors import PluginError, RequestError

if TYPE_CHECKING:
    from pyagent.core.messages import JsonObject

HOOK = "pyagent_register_logits_processors"
RequestLogitsProcessor = Callable[[Sequence[int], Sequence[int], "memoryview[float]"], object]
"""Changes a row in place: `(prompt_token_ids, output_token_ids, logits)`, the logits being floats of 32 bits.

It may return a buffer of as many such floats instead. What it does may depend on its arguments and the tokens only.
"""


class Vocabulary(Protocol):
    """The tokens of a loaded model; one object as long as it is loaded, to which a plugin may tie tables of its own."""

    @property
    def size(self) -> int:
        """Rows of logits are this long: token ids end here."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """The tokens that are no text: ends, roles, tags."""
        ...

    def tokens(self) -> list[bytes]:
        """Return the bytes of each token, made anew: those of a control token are its name, some ids have none."""
        ...


class AddedRow(NamedTuple):
    """A request that joins a batch processor, in row `row`: also when it was preempted, and comes back.

    The token ids are views that grow with the request.
    """

    row: int
    args: JsonObject
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]


class BatchUpdate(NamedTuple):
    """How a batch processor's rows differ from the last step's, to be followed in this order.

    The requests of the rows `removed` are gone; those `added` come, into such rows or behind the last; rows are
    `moved` (from, to) into those left free. There are `batch_size` rows then.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[AddedRow]
    moved: Sequence[tuple[int, int]]


class BatchLogitsProcessor(Protocol):
    """Changes the rows of all requests that name it, once a step. One thread at a time calls it."""

    def update_state(self, update: BatchUpdate | None) -> None:
        """Take in which rows there are now; None where they are those of the last step. Comes before each `apply`."""
        ...

    def apply(self, logits: memoryview[float]) -> object:
        """Change the rows, floats of 32 bits [rows, vocabulary], in place."""
        ...


class _Factory(Protocol):
    """What both kinds of factories say of themselves."""

    @property
    def name(self) -> str:
        """What requests and settings call it."""
        ...

    @property
    def arguments(self) -> Mapping[str, object]:
        """The JSON schema of its `args`, an object."""
        ...

    @property
    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which token is the likeliest: requests that sample greedily go without it."""
        ...


class LogitsProcessorFactory(_Factory, Protocol):
    """What a plugin brings: makes a function for each request."""

    def make(self, args: JsonObject, vocabulary: Vocabulary) -> RequestLogitsProcessor | None:
        """Return what changes a request's rows, or None where these arguments change nothing.

        Raises `ValueError` for arguments that follow the schema and are wrong all the same.
        """
        ...


class BatchLogitsProcessorFactory(_Factory, Protocol):
    """What a plugin brings in the place of a `LogitsProcessorFactory`: makes one object for each model."""

    def make_batch(self, vocabulary: Vocabulary) -> BatchLogitsProcessor:
        """Return what changes the rows of a model's requests."""
        ...


@dataclass(frozen=True, slots=True)
class BroughtLogitsProcessor:
    """A logits processor, and the plugin that brings it, which is named in every fault.

    What its factory says of itself is asked once: a step asks no plugin what it is called.
    """

    factory: LogitsProcessorFactory | BatchLogitsProcessorFactory
    plugin: str
    name: str
    arguments: Mapping[str, object]
    is_argmax_invariant: bool
    is_batched: bool

    @classmethod
    def of(cls, factory: LogitsProcessorFactory | BatchLogitsProcessorFactory, plugin: str) -> BroughtLogitsProcessor:
        """Return what a plugin's factory says that it is."""
        is_batched = hasattr(factory, "make_batch")
        return cls(factory, plugin, factory.name, factory.arguments, factory.is_argmax_invariant, is_batched)

    def check_args(self, args: JsonObject, param: str) -> None:
        """Raise `RequestError` naming `param` where arguments do not follow the schema."""
        from pyagent.core.emulation.schemas import fault_of

        schema = {"type": "object", **self.arguments}
        try:
            deepcopy(args)  # as each row is given them
        except (RecursionError, TypeError) as error:
            text = f"the logits processor {self.name!r} takes plain JSON values that are not nested as deep"
            raise RequestError(text, param=param) from error
        if (fault := fault_of(args, schema, param)) is not None:
            raise RequestError(f"the logits processor {self.name!r} cannot take these args: {fault}", param=param)

    def fault(self, what: str) -> str:
        """Return what it did wrong as a sentence that names it and its plugin."""
        return f"plugin {self.plugin!r}: its logits processor {self.name!r} {what}"

    def error(self, what: str) -> PluginError:
        """Return what it did wrong as an error."""
        return PluginError(self.fault(what), plugin=self.plugin, hook=HOOK)


def factory_problem(factory: object) -> str | None:
    """Return what is wrong with a factory, as far as its shape tells; None when nothing is."""
    from pyagent.core.emulation.schemas import fault_of

    makers = [name for name in ("make", "make_batch") if callable(getattr(factory, name, None))]
    if len(makers) != 1:
        return f"which has {' and '.join(makers) or 'neither `make` nor `make_batch`'}, expected one of the two"
    if not isinstance(getattr(factory, "is_argmax_invariant", None), bool):
        return "whose `is_argmax_invariant` is neither True nor False"
    arguments: object = getattr(factory, "arguments", None)
    if not isinstance(arguments, dict):
        return f"whose `arguments` is {arguments!r:.80}, expected a JSON schema of an object"
    try:
        fault_of({}, {"type": "object", **arguments}, "arguments")
    except (TypeError, RequestError) as error:
        return f"whose `arguments` is no JSON schema: {error}"
    return None

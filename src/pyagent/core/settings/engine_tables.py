"""Kinds of tables among the settings of the engine; each says what it expects."""

from typing import Annotated, Any, Literal, cast, get_args

from pyagent.core.adapter_stacks import JOINT
from pyagent.core.messages import ReasoningEffort
from pyagent.core.setting_kinds import SIZE, TABLE, TEXT, TRUTH, Kind, choice, number, read_table, whole
from pyagent.core.settings.section import Section, Setting, settings_in


class RequestClass(Section, frozen=True):
    """How requests of one class wait for the engine."""

    policy: Annotated[str, Setting(TEXT, "Queue policy of the request class.")] = "fcfs"
    options: Annotated[dict[str, Any], Setting(TABLE, "Options of the queue policy.")] = {}
    share: Annotated[float, Setting(number(10**6), "Share of the engine that the request class gets.")] = 1.0


def _read_draft_models(value: object) -> dict[str, str]:
    models = {"": value} if isinstance(value, str) else read_table(value)
    for name, draft in models.items():
        if not isinstance(draft, str) or not draft.strip():
            raise ValueError(f"expected the name of a model{f' for {name!r}' if name else ''}")
    return cast("dict[str, str]", models)


DRAFT_MODELS = Kind("text or table", _read_draft_models, "table")
"""Draft models by the models that they draft for, the one for all others under an empty name."""


class Speculative(Section, frozen=True):
    """Speculative decoding of the embedded engine."""

    method: Annotated[
        Literal["off", "ngram", "suffix", "draft_model"],
        Setting(
            choice("off", "ngram", "suffix", "draft_model"),
            "Where the tokens are from that a step proposes and verifies (speculative decoding): `ngram` copies from a "
            "request's own prompt and answer, `suffix` also from earlier answers to the same tenant, and with "
            "`draft_model` the smaller model of `engine.speculative.model` writes what texts do not give. Answers are "
            "the same, token by token (on the `torch` runner with `engine.batch_invariant`), and steps verify only "
            "what is measured to be quicker.",
        ),
    ] = "suffix"
    model: Annotated[
        dict[str, str],
        Setting(
            DRAFT_MODELS,
            "The draft model, with `draft_model`: its name, or a table of models and what drafts for each. Its "
            "vocabulary must be its target's, such as that of a smaller model of the same family; or Gemma 4's "
            "assistant, a head of EAGLE-3, or heads of Medusa, all for the `cpu` runner. A model goes on without one "
            "that cannot be used, as one that would run in a GPU's memory.",
        ),
    ] = {}
    mtp: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether a model's own head for further tokens (MTP, as in Qwen 3.5 and GLM-4.5) is loaded and proposes "
            "what texts do not give, unless a draft model does. For the `cpu` runner.",
        ),
    ] = True
    num_speculative_tokens: Annotated[
        int, Setting(whole(1, 64), "Tokens that a step proposes for a request at most.")
    ] = 7
    prompt_lookup_min: Annotated[
        int,
        Setting(
            whole(1, 64), "Tokens of a text's end that must be found again for what came after them to be proposed."
        ),
    ] = 2
    memory: Annotated[
        int,
        Setting(SIZE, "Memory for the texts that tokens are proposed from, of each model: 12 bytes a token."),
    ] = 32_000_000


def _read_class(name: str, value: object) -> RequestClass:
    settings = settings_in(RequestClass)
    fields: dict[str, Any] = {}
    for key, entry in read_table(value).items():
        if key not in settings:
            raise ValueError(f"expected a table with {', '.join(settings)} for {name!r}, got {key!r}")
        try:
            fields[key] = settings[key].read(entry)
        except ValueError as error:
            raise ValueError(f"{error} as {name}.{key}") from error
    return RequestClass(**fields)


def _read_classes(value: object) -> dict[str, RequestClass]:
    return {name: _read_class(name, table) for name, table in read_table(value).items()}


def _read_budgets(value: object) -> dict[str, int]:
    efforts = cast("tuple[str, ...]", get_args(ReasoningEffort))
    if unknown := sorted(read_table(value).keys() - set(efforts)):
        raise ValueError(f"expected efforts out of {', '.join(efforts)}, got {unknown[0]!r}")
    return {effort: cast("int", whole(0).read(given)) for effort, given in read_table(value).items()}


def _read_templates(value: object) -> dict[str, str]:
    templates = read_table(value)
    if not all(isinstance(template, str) for template in templates.values()):
        raise ValueError("expected a text for each model")
    return cast("dict[str, str]", templates)


def _read_adapters(value: object) -> dict[str, str]:
    adapters = read_table(value)
    for name, path in adapters.items():
        if not isinstance(path, str) or not path:
            raise ValueError(f"expected a path for {name!r}")
        own = name.rpartition(":")[2]
        if not own.strip() or {"/", JOINT} & set(own):
            raise ValueError(f"expected a name without '/' and '+', or MODEL:NAME, got {name!r}")
    return cast("dict[str, str]", adapters)


def _read_arguments(value: object) -> dict[str, dict[str, object]]:
    return {name: read_table(table) for name, table in read_table(value).items()}


CLASSES = Kind("table", _read_classes, "table")
"""Request classes by their names."""
BUDGETS = Kind("table", _read_budgets, "table")
"""Tokens by `reasoning_effort`."""
TEMPLATES = Kind("table", _read_templates, "table")
"""Chat templates by their models."""
ADAPTERS = Kind("table", _read_adapters, "table")
"""Paths of adapters by their names."""
ARGUMENTS = Kind("table", _read_arguments, "table")
"""Tables of arguments by what takes them."""

"""The settings of learning from outcomes."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, cast, get_args

import msgspec

from pyagent.core.learning.objectives import QUALITY, Metric, Objective
from pyagent.core.learning.prompts import PromptVariant
from pyagent.core.setting_kinds import NUMBER, TEXTS, TRUTH, Kind, choice, number, read_table, whole
from pyagent.core.settings.section import Section, Setting

PolicyName = Literal[
    "off", "ucb1", "thompson", "gaussian", "q_learning", "sarsa", "double_q", "td_lambda", "actor_critic"
]
Rewarded = Literal["check", "vote"]
_MAX_AGENTS = 100
_MAX_VARIANTS = 8
_LONGEST_NAME = 60
_LONGEST_TEXT = 20_000
_MAX_STRATEGIES = 20
_BOUNDS: dict[str, str] = {"quality": "at_least", **dict.fromkeys(("seconds", "usd", "tokens"), "at_most")}
_SCALES = {"seconds": 10.0, "usd": 0.01, "tokens": 1_000.0}


def _named(table: Mapping[str, object], most: int, what: str) -> Mapping[str, object]:
    if len(table) > most:
        raise ValueError(f"expected at most {most} {what}, got {len(table)}")
    for name in table:
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or "#" in name:
            raise ValueError(
                f"expected names of 1 to {_LONGEST_NAME} characters on one line without #, got {name[:80]!r}"
            )
    return table


def _read_prompts(value: object) -> dict[str, tuple[PromptVariant, ...]]:
    agents = _named(read_table(value), _MAX_AGENTS, "agents")
    prompts: dict[str, tuple[PromptVariant, ...]] = {}
    for agent, given in agents.items():
        try:
            prompts[agent] = _read_variants(read_table(given))
        except ValueError as error:
            raise ValueError(f"{error}, as prompts of {agent!r}") from error
    return prompts


def _read_variants(table: dict[str, object]) -> tuple[PromptVariant, ...]:
    variants = _named(table, _MAX_VARIANTS, "variants")
    if len(variants) < 2:
        raise ValueError(f"expected two variants or more, got {len(variants)}")
    return tuple(_read_variant(name, entry) for name, entry in variants.items())


def _read_variant(name: str, entry: object) -> PromptVariant:
    table = {"text": entry} if isinstance(entry, str) else read_table(entry)
    if unknown := [key for key in table if key not in {"text", "weight"}]:
        raise ValueError(f"expected text and weight in {name!r}, got {unknown[0]!r}")
    text = table.get("text", "")
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
        raise ValueError(f"expected a text of at most {_LONGEST_TEXT:,} characters in {name!r}")
    weight = cast("float", number(1_000.0).read(table.get("weight", 1.0)))
    return PromptVariant(name=name, text=text, weight=weight)


def _read_objectives(value: object) -> dict[str, Objective]:
    table = read_table(value)
    if not table:
        raise ValueError(f"expected one of {', '.join(get_args(Metric))} at least")
    objectives = {name: _read_objective(name, entry) for name, entry in table.items()}
    if not any(each.weight > 0 for each in objectives.values()):
        raise ValueError("expected a weight greater than 0 of one objective at least")
    return objectives


def _read_objective(name: str, entry: object) -> Objective:
    if isinstance(entry, Objective):
        return entry
    if name not in get_args(Metric):
        raise ValueError(f"expected the objectives {', '.join(get_args(Metric))}, got {name!r:.60}")
    table = read_table(entry)
    bound = _BOUNDS[name]
    readers: dict[str, Callable[[object], object]] = {"weight": _read_weight, bound: _read_weight}
    if name != "quality":
        readers["scale"] = NUMBER.read
    if unknown := [key for key in table if key not in readers]:
        raise ValueError(f"expected {', '.join(readers)} in {name!r}, got {unknown[0]!r:.60}")
    read = {key: cast("float", readers[key](given)) for key, given in table.items()}
    return Objective(
        metric=cast("Metric", name),
        weight=read.get("weight", 1.0),
        bound=read.get(bound),
        scale=read.get("scale", _SCALES.get(name, 1.0)),
    )


def _read_weight(value: object) -> object:
    """Return a number from 0."""
    return 0.0 if value == 0 and not isinstance(value, bool) else NUMBER.read(value)


def _read_rewards(value: object) -> list[Rewarded]:
    texts = cast("list[str]", TEXTS.read(value))
    if unknown := [text for text in texts if text not in get_args(Rewarded)]:
        raise ValueError(f"expected check and vote, got {unknown[0]!r:.60}")
    return cast("list[Rewarded]", texts)


def _read_strategies(value: object) -> list[str]:
    texts = cast("list[str]", TEXTS.read(value))
    return [*_named(dict.fromkeys(texts), _MAX_STRATEGIES, "strategies")]


def _read_agents(value: object) -> list[str]:
    texts = cast("list[str]", TEXTS.read(value))
    return [*_named(dict.fromkeys(texts), _MAX_AGENTS, "agents")]


class Learning(Section, frozen=True):
    """Choosing by what runs earned before: agents of near score, strategies, prompts and links."""

    policy: Annotated[
        PolicyName,
        Setting(
            choice(*get_args(PolicyName)),
            "How an agent is chosen among those whose scores of a task are near each other: `off` takes the highest "
            "score; `ucb1`, `thompson` (marks are good or bad) and `gaussian` (marks are numbers) learn which is best "
            "over all tasks; `q_learning`, `sarsa`, `double_q`, `td_lambda` and `actor_critic` learn it for each kind "
            "of task, and for what was tried before.",
        ),
    ] = "off"
    margin: Annotated[
        float, Setting(number(1.0), "Difference of scores up to which agents are near each other; 0 is equal scores.")
    ] = 0.05
    agents: Annotated[
        list[str],
        Setting(
            Kind("list of text", _read_agents, "list"),
            "Agents that can stand in for each other: a task that the router gives to one of them is given to the one "
            "that `learning.policy` takes, whatever their scores, unless an agent says that the task is not for it.",
        ),
    ] = msgspec.field(default_factory=list[str])
    together: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether a choice depends on those that a run made before it: a strategy on the prompt's variant, a link "
            "on both and on the agent. Finds the best combination where choices depend on each other; takes more "
            "marks where they do not.",
        ),
    ] = False
    seed: Annotated[
        int, Setting(whole(0), "Seed of learned choices: equal outcomes and an equal seed give equal choices.")
    ] = 0
    attempts: Annotated[
        int,
        Setting(
            whole(1, 10),
            "Agents that get a task one after the other where one fails, with a `learning.policy`; an agent that the "
            "caller named is the only one.",
        ),
    ] = 1
    strategies: Annotated[
        list[str],
        Setting(
            Kind("list of text", _read_strategies, "list"),
            "Strategies of `reasoning` that `learning.policy` chooses among, where a task names none: two or more of "
            "`chain-of-thought`, `self-consistency`, `reflection`, `debate`, `tree-of-thoughts`.",
        ),
    ] = msgspec.field(default_factory=list[str])
    backends: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether `learning.policy` chooses, for each run, which of the chain's neighbours with a `weight` is asked "
            "first, instead of `rules.routing`.",
        ),
    ] = False
    rewards: Annotated[
        list[Rewarded],
        Setting(
            Kind("list of `check` or `vote`", _read_rewards, "list"),
            "What counts besides marks and failures: `check` is whether the `until` of a loop was met, `vote` how far "
            "several answers to one question agree.",
        ),
    ] = msgspec.field(default_factory=lambda: cast("list[Rewarded]", ["check"]))
    prompts: Annotated[
        dict[str, tuple[PromptVariant, ...]],
        Setting(
            Kind("tables", _read_prompts, "table"),
            "Variants of agents' system prompts, each a table `[learning.prompts.AGENT]` of names with a `text` (empty "
            "is the agent's own, `{system}` stands for it) and a `weight`; runs are spread over them by weight until a "
            "test finds one better.",
        ),
    ] = msgspec.field(default_factory=dict[str, tuple[PromptVariant, ...]])
    prompts_by: Annotated[
        Literal["test", "policy"],
        Setting(
            choice("test", "policy"),
            "What chooses among `learning.prompts`: a `test` by weight, or `learning.policy`.",
        ),
    ] = "test"
    objectives: Annotated[
        dict[str, Objective],
        Setting(
            Kind("tables", _read_objectives, "table"),
            "What a choice is to be good at: `quality` (marks, checks and votes), `seconds`, `usd`, `tokens`, each a "
            "table with a `weight`, a bound of its mean (`at_least`, or `at_most` of costs), and for costs the `scale` "
            "that counts as half.",
            shown="`{ quality = { weight = 1 } }`",
        ),
    ] = msgspec.field(default_factory=lambda: {each.metric: each for each in QUALITY})


def written(learning: Learning) -> dict[str, object]:
    """Return the tables of prompts and objectives as a user writes them."""
    prompts = {
        agent: {each.name: {"text": each.text, "weight": each.weight} for each in variants}
        for agent, variants in learning.prompts.items()
    }
    return {"prompts": prompts, "objectives": {name: _objective(each) for name, each in learning.objectives.items()}}


def _objective(objective: Objective) -> dict[str, float]:
    bound = {} if objective.bound is None else {_BOUNDS[objective.metric]: objective.bound}
    scale = {} if objective.goal == "maximise" else {"scale": objective.scale}
    return {"weight": objective.weight, **bound, **scale}

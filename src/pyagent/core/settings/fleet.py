"""The settings of runs: what one may use, how much of it at once, how long it is kept, and how it is found again."""

from typing import Annotated, Literal

import msgspec

from pyagent.core.setting_kinds import COUNT, NUMBER, TEXT, choice
from pyagent.core.settings.confidence import Confidence
from pyagent.core.settings.rates import RATES
from pyagent.core.settings.section import Section, Setting
from pyagent.core.settings.stalls import Stalls


class RunBudget(Section, frozen=True):
    """What one run may use; each call reserves its share first."""

    tokens: Annotated[
        int | None, Setting(COUNT, "Prompt and output tokens that one run may use, or `unlimited`.", none="unlimited")
    ] = 1_000_000
    seconds: Annotated[
        float | None, Setting(NUMBER, "Seconds that one run may take, or `unlimited`.", none="unlimited")
    ] = 3600.0
    usd: Annotated[
        float | None,
        Setting(
            NUMBER,
            "US dollars that the model calls of one run may cost, by the `price` of the chain's links, or `unlimited`.",
            none="unlimited",
        ),
    ] = None
    agents: Annotated[int, Setting(COUNT, "Agents that one run may start, spawned ones included.")] = 10_000


class AgentBudget(Section, frozen=True):
    """What each agent of a run may use, with those that it spawns."""

    tokens: Annotated[
        int | None, Setting(COUNT, "Prompt and output tokens that one agent may use, or `unlimited`.", none="unlimited")
    ] = None
    seconds: Annotated[
        float | None, Setting(NUMBER, "Seconds that one agent may take, or `unlimited`.", none="unlimited")
    ] = None
    usd: Annotated[
        float | None,
        Setting(NUMBER, "US dollars that the model calls of one agent may cost, or `unlimited`.", none="unlimited"),
    ] = None


class FleetBudget(Section, frozen=True):
    """What all runs of one fleet may use together: of a command, or of a server until it ends."""

    tokens: Annotated[
        int | None, Setting(COUNT, "Prompt and output tokens that all runs may use, or `unlimited`.", none="unlimited")
    ] = None
    seconds: Annotated[
        float | None,
        Setting(NUMBER, "Seconds after the first run's start at which all runs end, or `unlimited`.", none="unlimited"),
    ] = None
    usd: Annotated[
        float | None,
        Setting(NUMBER, "US dollars that the model calls of all runs may cost, or `unlimited`.", none="unlimited"),
    ] = None


class Budget(Section, frozen=True):
    """Limits on what work may cost."""

    run: RunBudget = RunBudget()
    agent: AgentBudget = AgentBudget()
    fleet: FleetBudget = FleetBudget()


class FleetRates(Section, frozen=True):
    """How often agents and tools may begin: token buckets that all runs share, also after a restart."""

    agents: Annotated[
        dict[str, str],
        Setting(
            RATES,
            'How often agents may begin, by name: `researcher = "30/minute"` or `"10/s burst 20"`. What has no turn '
            "yet waits, the most urgent first.",
        ),
    ] = msgspec.field(default_factory=dict[str, str])
    tools: Annotated[
        dict[str, str],
        Setting(
            RATES,
            'How often tools may be called, by name: `fetch_url = "2/s"`; `"github__*"` is all tools that begin so, '
            "together.",
        ),
    ] = msgspec.field(default_factory=dict[str, str])


class Fleet(Section, frozen=True):
    """The fleet of agents."""

    max_concurrency: Annotated[int, Setting(COUNT, "Steps of one run that may run at once.")] = 8
    plan: Annotated[
        Literal["off", "auto", "ask"],
        Setting(
            choice("off", "auto", "ask"),
            "Whether a model first makes a graph of agents for a task that is for no agent by name: `auto` runs the "
            "plan, `ask` shows it to a person before, who accepts, changes or refuses it.",
        ),
    ] = "off"
    route: Annotated[
        Literal["auto", "ask"],
        Setting(
            choice("auto", "ask"),
            "Which agent gets a task that names none and that no agent's score is sure of: `auto` lets a model choose, "
            "`ask` asks a person.",
        ),
    ] = "auto"
    max_runs: Annotated[
        int | None,
        Setting(
            COUNT,
            "Runs of one fleet (a server's, say) that may go on at once, or `unlimited`; those that wait for a "
            "person do not count. Others wait: API keys take turns, and of a key's runs the lowest priority goes "
            "first, then the earliest deadline.",
            none="unlimited",
        ),
    ] = None
    questions: Annotated[
        Literal["end", "wait"],
        Setting(
            choice("end", "wait"),
            "What a question of an agent to a person does where no terminal is: `end` ends the run with the question, "
            "`wait` waits for `Fleet.answer` as long as the run may last.",
        ),
    ] = "end"
    tool_guard: Annotated[
        Literal["off", "warn", "block"],
        Setting(
            choice("off", "warn", "block"),
            "What becomes of a tool's result that reads like instructions to the model (a page or file may hold some): "
            "`warn` tells the model that it is data, `block` withholds it, `off` does not look.",
        ),
    ] = "warn"
    top_activations: Annotated[
        int | None,
        Setting(
            COUNT,
            "Neurons that runs record behind each token of a model's answers, 1 to 32, or `off`: `pyagent runs show "
            "--activations` shows them. Only models of the embedded engine tell them; other backends are not asked.",
            none="off",
        ),
    ] = None
    logit_lens: Annotated[
        int | None,
        Setting(
            COUNT,
            "Tokens that runs record of each layer of the model behind each token of its answers, 1 to 20, or `off`: "
            "what the layer would have said. Likewise of the embedded engine alone.",
            none="off",
        ),
    ] = None
    executor: Annotated[
        str, Setting(TEXT, "Where agents run: `in-process`, or what a plugin brings, such as `ray`.")
    ] = "in-process"
    confidence: Confidence = Confidence()
    stalls: Stalls = Stalls()
    rates: FleetRates = FleetRates()


class Journal(Section, frozen=True):
    """How long past runs are kept (`pyagent runs list`). Private runs are not kept at all."""

    max_runs: Annotated[
        int | None,
        Setting(
            COUNT,
            "Number of past runs kept, the oldest deleted first, or `unlimited`. The keys of a server share it fairly: "
            "one that begins many runs loses its own.",
            none="unlimited",
        ),
    ] = 1_000
    max_age_days: Annotated[
        float | None, Setting(NUMBER, "Days after which a run is deleted, or `unlimited`.", none="unlimited")
    ] = 90.0


class Search(Section, frozen=True):
    """Search over past runs and files (`pyagent search`)."""

    embedder: Annotated[
        str,
        Setting(
            TEXT,
            "Backend that embeds what is searched, as a link of a chain (`native:all-minilm:l6-v2`, "
            "`ollama:nomic-embed-text`, `openai:URL#MODEL`): the texts of runs and files are sent to it. `auto` is the "
            "embedded engine, where the model store has a model that embeds; `off` searches by words alone.",
        ),
    ] = "auto"

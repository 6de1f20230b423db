"""The model of every setting: name, type, default, how it is read, what it means; the reference page is made from it.

Frozen. Reading files and the environment is `core.config`'s work, which checks what it reads: `Settings()` here is the
defaults alone. Secrets never stand in settings, only references to them (`env:NAME`, `file:PATH`).
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import msgspec
import platformdirs

from pyagent.core.chain.settings import LinkSettings, links_of, read_links
from pyagent.core.messages import Unsupported
from pyagent.core.setting_kinds import (
    COUNT,
    NUMBER,
    PATH,
    REFERENCES,
    SIZE,
    TABLE,
    TEXT,
    TEXTS,
    TRUTH,
    Kind,
    choice,
    number,
    or_word,
    read_table,
    whole,
)

__all__ = ["ENV_PREFIX", "Engine", "RequestClass", "Section", "Setting", "Settings"]

ENV_PREFIX = "PYAGENT_"


class Setting(msgspec.Struct, frozen=True):
    """How a setting is read, what it means. `none` is the word for None; `shown` stands for a default that varies."""

    kind: Kind
    meaning: str
    none: str = ""
    shown: str = ""

    def read(self, value: object) -> object:
        """The value as the model has it; raises `ValueError` saying what is expected."""
        return (or_word(self.kind, self.none) if self.none else self.kind).read(value)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of settings."""


def _auto(kind: Kind, meaning: str) -> Setting:
    return Setting(kind, meaning, none="auto")


class Rules(Section, frozen=True):
    """What holds for all links of the chain: which may see what, for how long, at what cost."""

    private: Annotated[list[str], Setting(TEXTS, "Backend schemes that may answer requests marked private.")] = (
        msgspec.field(default_factory=lambda: ["native"])
    )
    deadline_seconds: Annotated[
        float | None,
        Setting(NUMBER, "Longest time for a request over all links; `never` leaves it to the caller.", none="never"),
    ] = None
    retries: Annotated[int, Setting(whole(0, 10), "How often the chain is tried again when no link answered.")] = 2
    jitter: Annotated[
        Literal["full", "equal", "decorrelated"],
        Setting(choice("full", "equal", "decorrelated"), "How waits before that are spread."),
    ] = "full"
    after_first_token: Annotated[
        Literal["continue", "restart", "error"],
        Setting(
            choice("continue", "restart", "error"),
            "What becomes of an answer whose link breaks off: the next one goes on with it, begins it anew behind a "
            "marker, or it ends with an error.",
        ),
    ] = "continue"  # noqa: S105 - a policy
    check_answers: Annotated[
        Literal["whole", "always", "never"],
        Setting(
            choice("whole", "always", "never"),
            "Which answers with a `response_format` are checked, and where wrong asked of the next link: those not "
            "streamed, or all (streamed ones are held back), or none.",
        ),
    ] = "whole"
    usd_per_request: Annotated[
        float | None,
        Setting(NUMBER, "USD one request may cost, by the links' `price`; `unlimited` is no limit.", none="unlimited"),
    ] = None
    usd_per_hour: Annotated[
        float | None, Setting(NUMBER, "USD all requests of an hour may cost, or `unlimited`.", none="unlimited")
    ] = None


class ResponseCacheSettings(Section, frozen=True):
    """Answers given again to equal requests."""

    keep: Annotated[
        Literal["off", "determined", "all"],
        Setting(
            choice("off", "determined", "all"),
            "Which answers equal requests get again, and share while they are made: none, those that are always the "
            "same (`temperature` 0, a `seed`, beam search), or drawn ones too.",
        ),
    ] = "off"
    ttl_seconds: Annotated[float, Setting(NUMBER, "Longest that an answer is kept.")] = 3600.0
    max_bytes: Annotated[
        int, Setting(SIZE, "Memory for them, such as `64MB`; the one not used for the longest time goes first.")
    ] = 64_000_000
    pinned: Annotated[
        list[str],
        Setting(TEXTS, "Beginnings of system prompts; answers to requests with one of these go after all others."),
    ] = []
    between_clients: Annotated[
        bool, Setting(TRUTH, "Give an answer made for one client (API key, name) to others too.")
    ] = False


class RunBudget(Section, frozen=True):
    """What one run may use; each call reserves its share first."""

    tokens: Annotated[
        int | None, Setting(COUNT, "Tokens in and out that one run may use, or `unlimited`.", none="unlimited")
    ] = 1_000_000
    seconds: Annotated[float | None, Setting(NUMBER, "Time one run may take, or `unlimited`.", none="unlimited")] = (
        3600.0
    )
    agents: Annotated[int, Setting(COUNT, "Agents that one run may start, spawned ones included.")] = 10_000


class Budget(Section, frozen=True):
    """Limits on what work may cost."""

    run: RunBudget = RunBudget()


class RequestClass(Section, frozen=True):
    """How requests of one class wait for the engine."""

    policy: Annotated[str, Setting(TEXT, "Its queue policy.")] = "fcfs"
    options: Annotated[dict[str, Any], Setting(TABLE, "The policy's options.")] = {}
    share: Annotated[float, Setting(number(10**6), "Its share of the engine.")] = 1.0


def _read_classes(value: object) -> dict[str, RequestClass]:
    return {name: _read_class(name, table) for name, table in read_table(value).items()}


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


class Engine(Section, frozen=True):
    """The embedded engine."""

    models: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Models that `native` offers, the first by default: names from the store, or files (`./` is beside this "
            "file).",
        ),
    ] = msgspec.field(default_factory=lambda: ["smollm2:135m"])
    memory: Annotated[
        int | None,
        _auto(
            SIZE,
            "One ledger for the process and all models, such as `12GB`; `auto`: the process and 70 % of what is "
            "available.",
        ),
    ] = None
    threads: Annotated[int | None, _auto(COUNT, "Threads that compute; `auto` is one for each core.")] = None
    kv_dtype: Annotated[
        Literal["auto", "f32", "f16", "bf16", "int8"],
        Setting(
            choice("auto", "f32", "f16", "bf16", "int8"),
            "Number format of the KV memory: `auto` is `bf16`, the quickest; `f16` is more exact, `int8` takes about "
            "half of either.",
        ),
    ] = "auto"
    max_num_seqs: Annotated[int, Setting(COUNT, "Sequences computed in one step.")] = 64
    max_num_batched_tokens: Annotated[
        int, Setting(COUNT, "Tokens computed in one step; longer prompts go in chunks of this.")
    ] = 512
    decode_latency_ms: Annotated[
        float | None,
        _auto(
            NUMBER,
            "Time between two tokens of an answer, in milliseconds, that prompts of others may cost; `auto` is ten "
            "times what a token takes without prompts, at least 100.",
        ),
    ] = None
    async_scheduling: Annotated[
        Literal["auto", "on", "off"],
        Setting(
            choice("auto", "on", "off"),
            "Plan a step while the one before it is computed; `auto` does where `threads` leaves a core free.",
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None, _auto(COUNT, "Tokens of context for each sequence; `auto` is the model's.")
    ] = None
    idle_sleep_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "Sleep after so long without a request, until the next comes; `never` stays awake.",
            none="never",
        ),
    ] = None
    idle_sleep_level: Annotated[
        Literal[1, 2], Setting(choice(1, 2), "What sleep gives back: 1 the KV memory, 2 the models too.")
    ] = 1
    process: Annotated[
        bool,
        Setting(
            TRUTH,
            "Run the engine in a process of its own: a crash there is mended, and answers go on where they stopped.",
        ),
    ] = False
    hang_seconds: Annotated[
        float | None,
        Setting(
            NUMBER,
            "With `process`: a step that takes longer counts as a crash; `never` waits for as long as it takes.",
            none="never",
        ),
    ] = 60.0
    queues: Annotated[
        dict[str, RequestClass],
        Setting(
            Kind("table", _read_classes, "table"),
            "Request classes, each a table: `policy` (`fcfs`, `priority`, `deadline`, `fair`, `mlfq` or a plugin's), "
            "its `options`, and the class's `share` of the engine (2.0 is twice 1.0). Requests without a class are "
            "`default`.",
        ),
    ] = {}
    eviction: Annotated[
        str,
        Setting(
            TEXT,
            "What of the cached KV that nobody uses goes first, after demoted and before retained prompts: `lru`, "
            "`lfu`, `fifo`, `arc`, `slru`, `tlru`, `priority` or a plugin's.",
        ),
    ] = "lru"
    prefix_hash: Annotated[
        Literal["siphash", "sha256", "xxh3"],
        Setting(
            choice("siphash", "sha256", "xxh3"),
            "Hash behind the keys that `pyagent cache show` gives cached prompts: `siphash` is keyed anew in each "
            "process, so that no prompt can be made to collide; the others give equal keys in every process.",
        ),
    ] = "siphash"
    sessions: Annotated[
        Literal["auto", "named", "off"],
        Setting(
            choice("auto", "named", "off"),
            "Conversations that continue the tokens computed before: any, those with a `session`, none.",
        ),
    ] = "auto"
    hints: Annotated[
        bool,
        Setting(TRUTH, "Let the fleet say which prompts will be asked for again, and keep those rather than others."),
    ] = True
    normalize_prompts: Annotated[
        bool,
        Setting(
            TRUTH,
            "Take what popular clients change in their system prompts with each request (billing lines, clocks) out "
            "of the way, so that prompts keep their common beginning.",
        ),
    ] = True
    isa: Annotated[
        Literal["auto", "scalar", "avx2", "avx512", "amx"],
        Setting(
            choice("auto", "scalar", "avx2", "avx512", "amx"), "Widest instruction set to use; for finding faults."
        ),
    ] = "auto"


class Fleet(Section, frozen=True):
    """The fleet of agents."""

    max_concurrency: Annotated[int, Setting(COUNT, "Steps of one run that may be under way at once.")] = 8


class Server(Section, frozen=True):
    """`pyagent serve`."""

    host: Annotated[str, Setting(TEXT, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting(whole(0, 65535), "Port to listen on; 0 takes a free one.")] = 8321
    api_keys_file: Annotated[
        Path | None,
        Setting(
            PATH,
            "File with the clients' API keys, one a line, as `KEY` or `NAME KEY`; `none` accepts everybody. What is "
            "computed or kept for one key is never used for another.",
            none="none",
        ),
    ] = None
    admin_keys_file: Annotated[
        Path | None,
        Setting(
            PATH,
            "File with API keys, in the same form, that may also drain, sleep and wake the engines, fetch models, "
            "share pinned prompts between all keys and clear all kept answers.",
            none="none",
        ),
    ] = None
    files_root: Annotated[
        Path | None,
        Setting(
            PATH,
            "Folder below which agents may read files for clients of the server (`agent:code-health`); `none`: they "
            "read no file.",
            none="none",
        ),
    ] = None
    requests_per_minute: Annotated[
        int | None, Setting(COUNT, "Answers each API key may ask for in a minute, or `unlimited`.", none="unlimited")
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Setting(COUNT, "Tokens in and out that each may use in a minute, or `unlimited`.", none="unlimited"),
    ] = None
    max_connections: Annotated[
        int,
        Setting(
            COUNT,
            "Connections held at once, as far as `ulimit -n` allows; for one more, the one that has been idle longest "
            "is closed.",
        ),
    ] = 1000
    max_body_bytes: Annotated[int, Setting(SIZE, "Largest request body, such as `32MB`.")] = 32_000_000
    request_seconds: Annotated[
        float, Setting(NUMBER, "Longest that a request's headers, and then its body, may take to arrive.")
    ] = 30.0
    allowed_origins: Annotated[
        list[str],
        Setting(
            TEXTS,
            "Origins of pages in a browser that may use the server (CORS), such as `http://localhost:3000`; `*` is "
            "any, which needs API keys.",
        ),
    ] = []
    private_images: Annotated[
        bool,
        Setting(TRUTH, "Hand on addresses of images in private networks, which a backend could fetch for anybody."),
    ] = False
    kept_responses_bytes: Annotated[
        int, Setting(SIZE, "Memory for responses that clients go on from (`/v1/responses`); the oldest go first.")
    ] = 64_000_000
    kept_responses_seconds: Annotated[float, Setting(NUMBER, "Longest that such a response is kept.")] = 86_400.0
    otlp_endpoint: Annotated[
        str | None,
        Setting(
            TEXT,
            "Base URL of an OpenTelemetry collector to send traces to (OTLP over HTTP); also read from "
            "`OTEL_EXPORTER_OTLP_ENDPOINT`.",
            none="none",
        ),
    ] = None
    drain_seconds: Annotated[
        float, Setting(NUMBER, "Longest that SIGTERM waits for running answers; Ctrl+C waits 3 s.")
    ] = 30.0


class Plugins(Section, frozen=True):
    """Which plugins are used."""

    disable: Annotated[list[str], Setting(TEXTS, "Plugins not to use, by the names `pyagent plugins list` shows.")] = []
    order: Annotated[
        list[str],
        Setting(TEXTS, "Plugins that come first; the first to bring a name wins it, over built-ins too."),
    ] = []


class Paths(Section, frozen=True):
    """Where files are kept."""

    models: Annotated[
        Path, Setting(PATH, "Folder of the model store.", shown="the user's data folder, `pyagent/models`")
    ] = platformdirs.user_data_path("pyagent", appauthor=False) / "models"
    data: Annotated[Path, Setting(PATH, "Folder of journals and runs.", shown="the user's data folder, `pyagent`")] = (
        platformdirs.user_data_path("pyagent", appauthor=False)
    )


class Journal(Section, frozen=True):
    """How long past runs are kept (`pyagent runs list`). Private runs are not kept at all."""

    max_runs: Annotated[
        int | None, Setting(COUNT, "Runs kept; the oldest go first. Or `unlimited`.", none="unlimited")
    ] = 1_000
    max_age_days: Annotated[
        float | None, Setting(NUMBER, "Days after which a run is deleted, or `unlimited`.", none="unlimited")
    ] = 90.0


class Log(Section, frozen=True):
    """Logging, always to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting(choice("debug", "info", "warning", "error"), "Least severe level that is written."),
    ] = "warning"
    format: Annotated[
        Literal["console", "json"],
        Setting(choice("console", "json"), "Lines for people or one JSON object a line."),
    ] = "console"


class Backends(Section, frozen=True):
    """What all remote backends share."""

    timeout_seconds: Annotated[
        float, Setting(NUMBER, "Longest wait for a remote backend's next piece of an answer.")
    ] = 120.0
    connect_timeout_seconds: Annotated[float, Setting(NUMBER, "Longest wait for a connection.")] = 5.0
    allow_remote: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether `auto` also finds what is not on this machine: OpenAI, the Copilot CLI, GitHub Models, an "
            "OPENAI_BASE_URL or OLLAMA_HOST elsewhere. Links that `chain` names are used either way.",
        ),
    ] = False
    unsupported: Annotated[
        Unsupported,
        Setting(
            choice("emulate", "refuse"),
            "What becomes of a request's field that a backend lacks: emulated by the prompt and checked afterwards "
            "(JSON, choices, tools, several answers), or refused by name.",
        ),
    ] = "emulate"
    api_keys: Annotated[
        dict[str, str],
        Setting(
            REFERENCES,
            "Where the key of each host (`host` or `host:port`) is: `env:NAME` or `file:PATH`, never the key itself.",
        ),
    ] = msgspec.field(default_factory=lambda: {"api.openai.com": "env:OPENAI_API_KEY"})


class Settings(Section, frozen=True):
    """All settings. `Settings()` is the defaults alone; `load_settings` reads files, environment and flags."""

    chain: Annotated[
        list[str | LinkSettings],
        Setting(
            Kind("list of links", read_links, "list"),
            "Backends in the order they are tried, each `SCHEME` or `SCHEME:TARGET` (`ollama:llama3.2`), or a table "
            "with that as `use` and conditions and limits of its own. `auto` is what is found of `lmstudio`, `native`, "
            "`openai`, `ollama`, `copilot`, `github`.",
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    rules: Rules = Rules()
    response_cache: ResponseCacheSettings = ResponseCacheSettings()
    budget: Budget = Budget()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    server: Server = Server()
    plugins: Plugins = Plugins()
    paths: Paths = Paths()
    journal: Journal = Journal()
    log: Log = Log()
    backends: Backends = Backends()

    @property
    def links(self) -> list[LinkSettings]:
        """The chain's links, each as a table."""
        return links_of(self.chain)


def sections_in(section: type[Section]) -> dict[str, type[Section]]:
    """The tables that stand in a table, by name."""
    return {name: kind for name, kind in section.__annotations__.items() if isinstance(kind, type)}


def settings_in(section: type[Section]) -> dict[str, Setting]:
    """The settings of a table itself, by name."""
    annotations = section.__annotations__.items()
    return {name: kind.__metadata__[0] for name, kind in annotations if get_origin(kind) is Annotated}

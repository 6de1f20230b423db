"""The model of every setting: names, types, defaults and what each means; the reference page is made from it.

Frozen, unknown keys forbidden. Reading files and the environment is `core.config`'s work: `Settings()` here is the
defaults alone. Secrets never stand in settings, only references to them (`env:NAME`, `file:PATH`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pyagent.core.backends import Link
from pyagent.core.errors import ConfigError

ENV_PREFIX = "PYAGENT_"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)
_UNITS: dict[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", 1)
}


def parse_size(value: object) -> int:
    """Bytes from `"12GB"` (10⁹), `"12GiB"` (2³⁰) or a whole number; raises `ValueError`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) < 40 else None
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _UNITS:
        raise ValueError('expected a size such as "12GB", "512MiB" or a number of bytes')
    return int(float(match[1]) * _UNITS[unit])


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, got true or false")  # noqa: TRY004 - pydantic collects ValueErrors
    return value


def _word(word: str) -> BeforeValidator:
    """The word that stands for None in a file, as TOML has no null."""
    return BeforeValidator(lambda value: None if value == word else value)


Count = Annotated[int, BeforeValidator(_no_bool), Field(gt=0, le=2**31 - 1)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=10**9, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0, le=2**62)]
AutoCount = Annotated[Count | None, _word("auto")]
AutoNumber = Annotated[Seconds | None, _word("auto")]
AutoSize = Annotated[Size | None, _word("auto")]
UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
SecretReference = Annotated[str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]


def _setting(default: object, meaning: str, *, none: str = "", shown: str = "") -> Any:
    """A setting with its documentation. `none` is the word for None; `shown` stands for a default that varies."""
    extra: dict[str, Any] = {"none": none, "shown": shown}
    return Field(default=default, description=meaning, json_schema_extra=extra)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Rules(_Section):
    """Which backends may see which requests."""

    private: list[str] = _setting(["native"], "Backend schemes that may answer requests marked private.")


class RunBudget(_Section):
    """What one run may use; each call reserves its share first."""

    tokens: Annotated[Count | None, _word("unlimited")] = _setting(
        1_000_000, "Tokens in and out that one run may use, or `unlimited`.", none="unlimited"
    )
    seconds: Annotated[Seconds | None, _word("unlimited")] = _setting(
        3600.0, "Time one run may take, or `unlimited`.", none="unlimited"
    )


class Budget(_Section):
    """Limits on what work may cost."""

    run: RunBudget = RunBudget()


class RequestClass(_Section):
    """How requests of one class wait for the engine."""

    policy: str = "fcfs"
    options: dict[str, Any] = {}
    share: Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=10**6, allow_inf_nan=False)] = 1.0


class Engine(_Section):
    """The embedded engine."""

    models: list[str] = _setting(
        ["smollm2:135m"],
        "Models that `native` offers, the first by default: names from the store, or files (`./` is beside this file).",
    )
    memory: AutoSize = _setting(
        None,
        "One ledger for weights, KV and caches of all models, such as `12GB`; `auto` is 70 % of what is available.",
        none="auto",
    )
    threads: AutoCount = _setting(None, "Threads that compute; `auto` is one for each core.", none="auto")
    kv_dtype: Literal["auto", "f32", "f16", "bf16", "int8"] = _setting(
        "auto", "Number format of the KV memory: `auto` is `f16`; `int8` takes about half of that."
    )
    max_num_seqs: Count = _setting(64, "Sequences computed in one step.")
    token_budget: Count = _setting(512, "Tokens computed in one step; longer prompts go in chunks of this.")
    decode_latency_ms: AutoNumber = _setting(
        None,
        "Time between two tokens of an answer, in milliseconds, that prompts of others may cost; `auto` is ten times "
        "what a token takes without prompts, at least 100.",
        none="auto",
    )
    async_scheduling: Literal["auto", "on", "off"] = _setting(
        "auto", "Plan a step while the one before it is computed; `auto` does where `threads` leaves a core free."
    )
    max_context: AutoCount = _setting(None, "Tokens of context for each sequence; `auto` is the model's.", none="auto")
    idle_sleep_seconds: Annotated[Seconds | None, _word("never")] = _setting(
        None, "Sleep after so long without a request, until the next comes; `never` stays awake.", none="never"
    )
    idle_sleep_level: Literal[1, 2] = _setting(1, "What sleep gives back: 1 the KV memory, 2 the models too.")
    process: bool = _setting(
        False, "Run the engine in a process of its own: a crash there is mended, and answers go on where they stopped."
    )
    queues: dict[str, RequestClass] = _setting(
        {},
        "Request classes, each a table: `policy` (`fcfs`, `priority`, `deadline`, `fair`, `mlfq` or a plugin's), its "
        "`options`, and the class's `share` of the engine (2.0 is twice 1.0). Requests without a class are `default`.",
    )
    eviction: str = _setting(
        "lru",
        "What of the cached KV that nobody uses goes first, after demoted and before retained prompts: `lru`, `lfu`, "
        "`fifo`, `arc`, `slru`, `tlru`, `priority` or a plugin's.",
    )
    prefix_hash: Literal["siphash", "sha256", "xxh3"] = _setting(
        "siphash",
        "Hash behind the keys that `pyagent cache show` gives cached prompts: `siphash` is keyed anew in each process, "
        "so that no prompt can be made to collide; the others give equal keys in every process.",
    )
    sessions: Literal["auto", "named", "off"] = _setting(
        "auto",
        "Conversations that continue the tokens computed before: any, those with a `session`, none.",
    )
    hints: bool = _setting(
        True, "Let the fleet say which prompts will be asked for again, and keep those rather than others."
    )
    settle_prompts: bool = _setting(
        True,
        "Take what popular clients change in their system prompts with each request (billing lines, clocks) out of the "
        "way, so that prompts keep their common beginning.",
    )
    isa: Literal["auto", "scalar", "avx2", "avx512", "amx"] = _setting(
        "auto", "Widest instruction set to use; for finding faults."
    )


class Fleet(_Section):
    """The fleet of agents."""

    max_concurrency: Count = _setting(8, "Steps of one run that may be under way at once.")


class Server(_Section):
    """`pyagent serve`."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=65535)] = _setting(
        8321, "Port to listen on; 0 takes a free one."
    )
    api_keys_file: Annotated[UserPath | None, _word("none")] = _setting(
        None, "File with one accepted API key a line; `none` accepts everybody.", none="none"
    )
    max_body_bytes: Size = _setting(32_000_000, "Largest request body, such as `32MB`.")
    drain_seconds: Seconds = _setting(30.0, "Longest that SIGTERM waits for running answers; Ctrl+C waits 3 s.")


class Plugins(_Section):
    """Which plugins are used."""

    disable: list[str] = _setting([], "Plugins not to use, by the names `pyagent plugins list` shows.")
    order: list[str] = _setting([], "Plugins that come first; the first to bring a name wins it, over built-ins too.")


class Paths(_Section):
    """Where files are kept."""

    models: UserPath = _setting(
        platformdirs.user_data_path("pyagent", appauthor=False) / "models",
        "Folder of the model store.",
        shown="the user's data folder, `pyagent/models`",
    )
    data: UserPath = _setting(
        platformdirs.user_data_path("pyagent", appauthor=False),
        "Folder of journals and runs.",
        shown="the user's data folder, `pyagent`",
    )


class Log(_Section):
    """Logging, always to standard error."""

    level: Literal["debug", "info", "warning", "error"] = _setting("warning", "Least severe level that is written.")
    format: Literal["console", "json"] = _setting("console", "Lines for people or one JSON object a line.")


class Backends(_Section):
    """What all remote backends share."""

    timeout_seconds: Seconds = _setting(120.0, "Longest wait for a remote backend's next piece of an answer.")
    connect_timeout_seconds: Seconds = _setting(5.0, "Longest wait for a connection.")
    api_keys: dict[str, SecretReference] = _setting(
        {"api.openai.com": "env:OPENAI_API_KEY"},
        "Where the key of each host (`host` or `host:port`) is: `env:NAME` or `file:PATH`, never the key itself.",
    )


class Settings(BaseSettings):
    """All settings. `Settings()` is the defaults alone; `load_settings` reads files, environment and flags."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    chain: list[str] = _setting(
        ["native"], "Backends in the order they are tried, each `SCHEME` or `SCHEME:TARGET` (`ollama:llama3.2`)."
    )
    rules: Rules = Rules()
    budget: Budget = Budget()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    server: Server = Server()
    plugins: Plugins = Plugins()
    paths: Paths = Paths()
    log: Log = Log()
    backends: Backends = Backends()

    @field_validator("chain")
    @classmethod
    def _check_chain(cls, chain: list[str]) -> list[str]:
        if not chain:
            raise ValueError("a chain needs at least one backend")
        try:
            return [str(Link.parse(entry)) for entry in chain]
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing is read behind the caller's back: `load_settings` reads the layers and remembers each source."""
        return (init_settings,)

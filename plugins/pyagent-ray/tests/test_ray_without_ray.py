"""What of the Ray plugin needs no Ray: options, what goes to workers, the order of engines, the words of errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from pyagent_ray import make_backend, make_executor, pyagent_register_backends, pyagent_register_executors
from pyagent_ray.agent_work import Outcome
from pyagent_ray.engine_link import EngineLink
from pyagent_ray.engine_router import EngineRouter
from pyagent_ray.options import Options, decoded_by_worker, encoded_for_workers, read_options
from pyagent_ray.placement import Engines

from pyagent.plugin import Balancer, ChatRequest, ConfigError, LinkSpec, Message, PyAgentError, Settings


def settings_with(**options: object) -> Settings:
    plugins = msgspec.structs.replace(Settings().plugins, options={"ray": options, "other": {"token": "t0p"}})
    return msgspec.structs.replace(Settings(), plugins=plugins)


def engines_of(count: int) -> list[EngineLink]:
    engines = Engines("ray:tiny", "native:tiny", b"", Options(engines=count))
    return [EngineLink(f"ray:tiny#{number}", number, ["tiny"], engines) for number in range(count)]


def test_options_of_ray_are_checked() -> None:
    """A wrong option is a `ConfigError` that names the table and the key; a right one is read."""
    assert read_options(settings_with(engines=3, cpus="2", strategy="PACK")) == Options(
        engines=3, cpus=2.0, strategy="PACK"
    )
    for wrong in ({"engine": 3}, {"engines": 0}, {"strategy": "WIDE"}, {"cpus": -1}):
        with pytest.raises(ConfigError, match=f"plugins.ray: .*{next(iter(wrong))}"):
            make_executor(settings_with(**wrong))
    none = msgspec.structs.replace(Settings(), engine=msgspec.structs.replace(Settings().engine, models=[]))
    with pytest.raises(ConfigError, match=r"engine\.models is empty"):
        make_backend(LinkSpec("ray"), none)
    assert list(pyagent_register_backends()) == list(pyagent_register_executors()) == ["ray"]


def test_workers_get_the_engine_s_settings_and_no_secrets() -> None:
    """Of the settings only those of the engine go to workers: no keys, headers, clients' files or others' options."""
    given = settings_with()
    engine = msgspec.structs.replace(given.engine, process=True, max_model_len=77)
    backends = msgspec.structs.replace(given.backends, api_keys={"api.example.org": "env:SECRET_NAME"})
    paths = msgspec.structs.replace(given.paths, models=Path("/shared/models"))
    server = msgspec.structs.replace(given.server, api_keys_file=Path("/etc/secret-keys"))
    given = msgspec.structs.replace(given, engine=engine, backends=backends, paths=paths, server=server)
    said = encoded_for_workers(given, Options(cpus=3))
    assert not any(word in said for word in (b"SECRET_NAME", b"secret-keys", b"t0p", b"example.org"))
    told = decoded_by_worker(said)
    assert (told.engine.max_model_len, told.engine.process, told.engine.threads) == (77, False, 3)
    assert told.paths.models == Path("/shared/models")
    assert "models" not in json.loads(encoded_for_workers(Settings(), Options()))["paths"]


def test_engines_are_ordered_by_load_and_prefix() -> None:
    """The least busy engine is asked first; the one that computed a long prompt before is asked for it."""
    engines = engines_of(3)
    router = EngineRouter(engines, Balancer("prefix"))
    names = [engine.name for engine in engines]
    engines[0].num_running, engines[1].num_running = 3, 1
    short = ChatRequest(messages=[Message("user", "hello")])
    assert list(router.order(short, names)) == ["ray:tiny#2", "ray:tiny#1", "ray:tiny#0"]
    assert list(router.order(short, names[:2])) == ["ray:tiny#1", "ray:tiny#0"]
    long = ChatRequest(messages=[Message("user", "once upon a time " * 400)])
    router.asked(long, "ray:tiny#0")
    assert next(iter(router.order(long, names))) == "ray:tiny#0"
    assert next(iter(router.order(short, names))) == "ray:tiny#2"


def test_foreign_error_of_an_agent_keeps_its_class_and_text() -> None:
    """What an agent raises in a worker that is not ours is raised with its class's name and its text."""
    with pytest.raises(Exception, match="no such key") as info:
        Outcome(kind="KeyError", text="no such key").result("math")
    assert type(info.value).__name__ == "KeyError"
    assert not isinstance(info.value, PyAgentError)


def test_cancelled_error_of_an_agent_is_its_own_as_it_would_be_here() -> None:
    """What no one cancelled did not lose its worker: the outcome says so, and is raised as in this process."""
    with pytest.raises(asyncio.CancelledError):
        Outcome(is_cancelled=True).result("math")

"""Settings: their layers, their sources, and how wrong ones are refused."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from pyagent.cli.config import app, render_settings_reference
from pyagent.core.config import Settings, leaf_settings, load_settings, project_file, read_secret
from pyagent.core.errors import ConfigError
from pyagent.core.secrets import strike_out, strike_text
from pyagent.core.setting_kinds import parse_size

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, and no settings in the environment."""
    for name in [name for name in os.environ if name.startswith("PYAGENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refused(text: str) -> ConfigError:
    file = write(Path("pyagent.toml"), text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    return caught.value


def test_defaults_need_no_file() -> None:
    """Without files and environment every setting is its default, and says so."""
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert loaded.settings.chain == ["auto"]
    assert set(loaded.sources) == set(leaf_settings())
    assert set(loaded.sources.values()) == {"default"}


def test_layers_override_in_order(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's file yields to the project's, that to the environment, that to flags; each value names its source."""
    user = write(
        home / "config/pyagent/pyagent.toml",
        "[server]\nport = 1\nhost = 'a'\n[engine]\nthreads = 1\nmax_num_seqs = 1\n",
    )
    project = write(Path("pyagent.toml"), "[server]\nport = 2\n[engine]\nthreads = 2\nmax_num_seqs = 2\n").resolve()
    monkeypatch.setenv("PYAGENT_ENGINE__THREADS", "3")
    monkeypatch.setenv("PYAGENT_ENGINE__MAX_NUM_SEQS", "3")
    settings, sources = (loaded := load_settings(overrides={"engine.max_num_seqs": 4})).settings, loaded.sources
    assert (settings.server.host, settings.server.port) == ("a", 2)
    assert (settings.engine.threads, settings.engine.max_num_seqs) == (3, 4)
    assert sources["server.host"] == f"pyagent.toml:{user}"
    assert sources["server.port"] == f"pyagent.toml:{project}"
    assert sources["engine.threads"] == "env PYAGENT_ENGINE__THREADS"
    assert sources["engine.max_num_seqs"] == "flag"
    assert sources["engine.memory"] == "default"


def test_nearest_file_upwards_is_the_projects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program started in a folder below finds the project's file; relative paths in it start from the file."""
    file = write(
        Path("pyagent.toml"), '[engine]\nmodels = ["./m.gguf", "smollm2:135m"]\n[paths]\ndata = "runs"\n'
    ).resolve()
    below = home / "project/a/b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert project_file() == file
    settings = load_settings().settings
    assert settings.engine.models == [str(file.parent / "m.gguf"), "smollm2:135m"]
    assert settings.paths.data == file.parent / "runs"


def test_given_file_stands_alone(home: Path) -> None:
    """A file that is named is the only one read, and must exist."""
    write(home / "config/pyagent/pyagent.toml", "[server]\nport = 1\n")
    write(Path("pyagent.toml"), "[server]\nport = 2\n")
    assert load_settings(write(home / "x.toml", "[log]\nlevel = 'debug'\n")).settings.server.port == 8321
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings(home / "missing.toml")


def test_flags_that_were_not_given_change_nothing() -> None:
    """A flag that is None leaves the value and its source."""
    assert load_settings(overrides={"server.port": None}).sources["server.port"] == "default"


def test_the_scene_of_the_handbook_loads() -> None:
    """The file a user is shown loads as it means."""
    file = write(
        Path("pyagent.toml"),
        """
        chain = ["lmstudio", "native:smollm2:135m", "openai:http://gpu-box:8000/v1", "ollama:llama3.2"]
        [rules]
        private = ["native", "ollama"]
        [budget]
        run = { tokens = 200_000, seconds = 600 }
        [engine]
        models = ["smollm2:135m"]
        memory = "12GB"
        [plugins]
        disable = ["gui"]
        """,
    )
    settings = load_settings(file).settings
    assert settings.chain[3] == "ollama:llama3.2"
    assert settings.engine.memory == 12_000_000_000
    assert (settings.budget.run.tokens, settings.budget.run.seconds) == (200_000, 600)
    assert settings.plugins.disable == ["gui"]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("[engine]\nmemroy = '1GB'", "engine.memroy", "did you mean 'engine.memory'?"),
        ("[engin]\nmemory = '1GB'", "engin", "did you mean 'engine'?"),
        ("chian = ['native']", "chian", "did you mean 'chain'?"),
        ("[budget.run]\nseconnds = 3", "budget.run.seconnds", "did you mean 'budget.run.seconds'?"),
        ("zzz = 1", "zzz", "`pyagent config show` lists all settings"),
    ],
)
def test_unknown_key_names_the_nearest(text: str, key: str, hint: str) -> None:
    """An unknown key is refused with its path, its file and the nearest known key."""
    error = refused(text)
    assert error.key == key
    assert hint in str(error)
    assert "pyagent.toml" in str(error)


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("[server]\nport = 70000", "server.port", "expected a whole number from 0 to 65535"),
        ("[server]\nport = true", "server.port", "expected a whole number from 0 to 65535"),
        ("[engine]\nthreads = 'two'", "engine.threads", "expected a whole number from 1 to 2147483647, or 'auto'"),
        (
            "[engine]\nhang_seconds = 'soon'",
            "engine.hang_seconds",
            "expected a number above 0, at most 1000000000, or 'never'",
        ),
        ("[engine]\nthreads = 0", "engine.threads", "expected a whole number from 1 to 2147483647, or 'auto'"),
        ("[engine]\nmemory = '12 parsecs'", "engine.memory", 'expected a size such as "12GB"'),
        ("[engine]\nisa = 'neon'", "engine.isa", "expected 'auto', 'scalar', 'avx2', 'avx512' or 'amx'"),
        ("[budget.run]\nseconds = nan", "budget.run.seconds", "expected a number above 0"),
        ("[server]\nport = 1.5", "server.port", "expected a whole number from 0 to 65535"),
        ("[log]\nlevel = 3", "log.level", "expected 'debug', 'info', 'warning' or 'error'"),
        ("[engine]\nprocess = 'perhaps'", "engine.process", "expected true or false"),
        ("[engine.queues.a]\npolcy = 'fair'", "engine.queues", "a table with policy, options, share for 'a'"),
        ("[engine.queues.a]\nshare = 0", "engine.queues", "expected a number above 0, at most 1000000 as a.share"),
        ("[cluster]\nplacement = {m = 0}", "cluster.placement", "as the number of 'm'"),
        ("[cluster]\nplacement = {m = 'two'}", "cluster.placement", "as the number of 'm'"),
        ("[cluster]\nplacement = ['m']", "cluster.placement", "expected a table"),
        (
            '[cluster]\nplacement = {"a\\nb" = 1}',
            "cluster.placement",
            "expected names of 1 to 200 characters on one line",
        ),
        ('[cluster]\nplacement = {"" = 1}', "cluster.placement", "expected names of 1 to 200 characters on one line"),
        ("engine = 3", "engine", "is a table with models, memory"),
        ("chain = [':x']", "chain", "SCHEME or SCHEME:TARGET"),
        ("chain = 'native'", "chain", "expected a list of links, each a text or a table"),
    ],
)
def test_wrong_value_says_what_is_expected(text: str, key: str, reason: str) -> None:
    """A wrong value is one sentence with the key, the value, the file and what is expected."""
    error = refused(text)
    assert error.key == key
    assert reason in str(error)
    assert str(error).startswith(key)
    assert "\n" not in str(error)


def test_all_faults_are_told_at_once() -> None:
    """Two wrong values are two lines, so that nobody corrects them one run at a time."""
    assert len(str(refused("[server]\nport = -1\n[log]\nlevel = 'loud'")).splitlines()) == 2


def test_malformed_toml_names_the_line() -> None:
    """A file that is no TOML, or no text, is refused with the place."""
    assert "line 2, column" in str(refused("[engine]\nmemory = \n"))
    Path("pyagent.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings()
    write(Path("pyagent.toml"), "x = " + "[" * 20_000)
    with pytest.raises(ConfigError, match=r"nests too deep|not valid TOML"):
        load_settings()


def test_environment_takes_lists_tables_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are JSON or parts with commas, tables are JSON, words stand for none; empty means not set."""
    monkeypatch.setenv("PYAGENT_CHAIN", "native, ollama:llama3.2")
    monkeypatch.setenv("PYAGENT_PLUGINS__DISABLE", '["gui"]')
    monkeypatch.setenv("PYAGENT_LOG", '{"level": "debug"}')
    monkeypatch.setenv("PYAGENT_BUDGET__RUN__SECONDS", "unlimited")
    monkeypatch.setenv("PYAGENT_SERVER__HOST", "")
    loaded = load_settings()
    assert loaded.settings.chain == ["native", "ollama:llama3.2"]
    assert loaded.settings.plugins.disable == ["gui"]
    assert loaded.settings.log.level == "debug"
    assert loaded.sources["log.level"] == "env PYAGENT_LOG"
    assert loaded.settings.budget.run.seconds is None
    assert loaded.sources["server.host"] == "default"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PYAGENT_ENGIN__MEMORY", "1GB", "did you mean 'PYAGENT_ENGINE__MEMORY'?"),
        ("PYAGENT_ENGINE__MEMROY", "1GB", "did you mean 'engine.memory'?"),
        ("PYAGENT_ENGINE", "[1", "error parsing value"),
        ("PYAGENT_ENGINE__SPECULATIVE__MODEL", '{"a" = "b"}', 'tables are JSON, as {"NAME": "VALUE"}'),
        ("PYAGENT_SERVER__PORT", "x", "env PYAGENT_SERVER__PORT"),
    ],
)
def test_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str) -> None:
    """A misspelt or wrong environment variable is refused, not passed over."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert reason in str(caught.value)


def test_wrong_flags_are_refused() -> None:
    """Flags pass the same checks as files."""
    for overrides in ({"engine.thread": 3}, {"server.port": "x"}, {"engine": 3, "engine.threads": 2}):
        with pytest.raises(ConfigError):
            load_settings(overrides=overrides)


def test_keys_never_stand_in_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key written into a file is refused without repeating it; references are resolved on demand."""
    for text in ('[backends.api_keys]\nhost = "sk-very-secret"', '[backends]\napi_keys = "sk-very-secret"'):
        error = refused(text)
        assert "sk-very-secret" not in f"{error!r} {error.__cause__}"
        assert "env:NAME or file:PATH" in str(error)
    monkeypatch.setenv("MY_KEY", "abc")
    assert read_secret("env:MY_KEY") == "abc"
    assert read_secret("env:NOT_SET_ANYWHERE") is None
    assert read_secret(f"file:{write(tmp_path / 'key', 'abc' + chr(10))}") == "abc"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(f"file:{tmp_path / 'none'}")


def test_settings_cannot_be_changed() -> None:
    """Settings are built once and frozen."""
    with pytest.raises(AttributeError, match="immutable"):
        Settings().engine.threads = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12GB", 12 * 10**9),
        ("1GiB", 2**30),
        ("1.5 k", 1500),
        ("512", 512),
        (7, 7),
        ("2tb", 2 * 10**12),
        (".5MiB", 2**19),
    ],
)
def test_sizes(text: object, size: int) -> None:
    """GB counts in thousands, GiB in 1024s, a bare number in bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1, "9999999999TiB"])
def test_sizes_that_no_machine_has_are_refused(size: object) -> None:
    """What no whole number of 64 bits holds would end a program far from here."""
    with pytest.raises(ConfigError, match=f"engine.memory = .* expected a size from 1 byte to {2**62} bytes"):
        load_settings(overrides={"engine.memory": size})
    assert load_settings(overrides={"engine.memory": 2**62}).settings.engine.memory == 2**62


@pytest.mark.parametrize("key", leaf_settings())
def test_every_default_is_a_value_of_its_kind(key: str) -> None:
    """What stands as a default would also be taken from a file, and stays what it is."""
    leaf = leaf_settings()[key]
    assert leaf.setting.read(leaf.default) == leaf.default
    assert not leaf.setting.none or leaf.setting.read(leaf.setting.none) is None


@given(
    st.sampled_from(list(leaf_settings())),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_any_value_is_read_or_refused(key: str, value: object) -> None:
    """No value makes a setting's reader fail otherwise than by refusing."""
    with contextlib.suppress(ValueError):
        leaf_settings()[key].setting.read(value)


@given(st.text(max_size=60) | st.floats() | st.booleans() | st.none())
def test_any_size_is_a_number_or_refused(value: object) -> None:
    """No text makes the size parser fail otherwise than by refusing."""
    try:
        size = parse_size(value)
    except ValueError:
        return
    assert size >= 0


@given(st.text(max_size=200))
def test_any_file_loads_or_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """No file of settings makes the loader fail otherwise than by `ConfigError`."""
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        assert load_settings(file).settings.chain


def test_show_says_value_and_source() -> None:
    """`config show` prints each value with its source, as lines or as JSON, without passwords in URLs."""
    write(Path("pyagent.toml"), 'chain = ["openai:http://me:secret@host/v1"]\n[log]\nlevel = "info"\n')
    lines = CliRunner().invoke(app, ["show"]).stdout
    assert "secret" not in lines
    assert "openai:http://[redacted]@host/v1" in lines
    shown = json.loads(CliRunner().invoke(app, ["show", "log", "--json"]).stdout)
    assert shown["log.level"]["value"] == "info"
    assert shown["log.level"]["source"].startswith("pyagent.toml:")
    assert shown["log.format"] == {"value": "console", "source": "default"}
    assert isinstance(CliRunner().invoke(app, ["show", "nothing"]).exception, ConfigError)


def test_reference_page_is_the_models() -> None:
    """docs/reference/settings.md is what the model says; every setting has a meaning."""
    page = ROOT / "docs/reference/settings.md"
    assert page.read_text(encoding="utf-8") == render_settings_reference()
    assert CliRunner().invoke(app, ["reference"]).stdout == render_settings_reference()
    assert all(leaf.setting.meaning for leaf in leaf_settings().values())


@pytest.mark.parametrize(
    "text",
    [
        'chain = [{ use = "openai:http://h/v1", key = "KEY" }]',
        'chain = [{ use = "openai:http://h/v1", headers = { authorization = "Bearer KEY" } }]',
        'chain = [{ use = "openai:http://h/v1", headers = { x-api-key = "KEY" } }]',
        'chain = [{ use = "openai:http://h/v1", headers = "KEY" }]',
        'chain = [{ use = "openai:http://h/v1", api_key = "KEY" }]',
        'chain = [{ use = "openai:http://h/v1", kee = "KEY" }]',
        'chain = [["KEY"]]',
        'chain = "openai:http://user:KEY@h/v1"',
        'chain = ["openai:http://user:KEY@h/v1"]',
        'chain = ["openai:http://h/v1?api_key=KEY"]',
        '[server]\notlp_endpoint = "http://user:KEY@h"',
        '[backends]\napi_keys = { h = "KEY" }',
        '[backends]\napi_keys = "KEY"',
    ],
)
def test_a_key_written_into_the_settings_is_never_shown(tmp_path: Path, text: str) -> None:
    """Wherever somebody writes a key into the file, neither an error nor `config show` tells it."""
    file = tmp_path / "pyagent.toml"
    file.write_text(text.replace("KEY", "squeamish-ossifrage-1977"), encoding="utf-8")
    for arguments in (["show", "--config", str(file)], ["show", "--config", str(file), "--json"]):
        result = CliRunner().invoke(app, arguments)
        told = f"{result.output}{result.exception}"
        assert "chain" in told or "server" in told or "backends" in told
        assert "squeamish" not in told


def test_secrets_among_a_programs_arguments_are_struck() -> None:
    """A flag that goes by a secret's name hides its value, joined to it or after it; a reference and others stay."""
    arguments = ["--api-key=hunter2", "--token", "hunter2", "-y", "--max-tokens=5", "--password", "env:X", "--key"]
    struck = ["--api-key=[redacted]", "--token", "[redacted]", "-y", "--max-tokens=5", "--password", "env:X", "--key"]
    assert strike_out({"args": arguments}) == {"args": struck}
    assert strike_text("serve --db_password hunter2 --n 3") == "serve --db_password [redacted] --n 3"

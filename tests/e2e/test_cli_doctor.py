"""`pyagent doctor`: what it ticks works, and what it advises helps."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from support.command_line import pyagent

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder


def _models(env: dict[str, str], *arguments: str) -> list[dict[str, object]]:
    found = json.loads(pyagent("doctor", "--json", *arguments, env=env).stdout)
    return [finding for finding in found if finding["area"] == "models" and finding["name"] != "runner"]


def test_a_model_nobody_knows_is_not_to_be_fetched(environment: dict[str, str]) -> None:
    """The advice for a model that is not known is not to fetch it, and for a known one it is."""
    unknown, known = _models(environment, "--model", "nosuch")[0], _models(environment)[0]
    assert (unknown["is_well"], "pull" in str(unknown["advice"])) == (False, False)
    assert "not known" in str(unknown["found"])
    assert (known["is_well"], known["advice"]) == (False, "pyagent models pull smollm2:135m")


@pytest.mark.parametrize("fault", ["none", "truncated", "overwritten"])
def test_a_damaged_model_is_not_ticked(
    fault: str, environment: dict[str, str], tmp_path: Path, tiny_model_path: Path
) -> None:
    """A model in the store is ticked when it is the file that was fetched: neither cut short nor overwritten."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    file = Path(shutil.copy(tiny_model_path, folder / "tiny.gguf"))
    whole = file.read_bytes()
    manifest = {"name": "tiny", "file": "tiny.gguf", "source": "a test", "sha256": hashlib.sha256(whole).hexdigest()}
    (folder / "model.json").write_text(json.dumps(manifest))
    changed = {"none": whole, "truncated": whole[: len(whole) // 2], "overwritten": whole[:-64] + bytes(64)}
    file.write_bytes(changed[fault])
    [finding] = _models(environment | {"PYAGENT_PATHS__MODELS": str(tmp_path / "models")}, "--model", "tiny")
    assert finding["is_well"] == (fault == "none"), finding
    assert ("pyagent models rm tiny" in str(finding["advice"])) == (fault != "none")


def test_setting_that_a_model_cannot_follow_is_to_be_corrected(
    environment: dict[str, str], tiny_model_path: Path
) -> None:
    """Where a setting is wrong for a model, the advice is that setting, not to fetch the model again."""
    env = environment | {"PYAGENT_ENGINE__RUNNER": "cpu", "PYAGENT_ENGINE__TENSOR_PARALLEL_SIZE": "2"}
    [finding] = [one for one in _models(env, "--model", str(tiny_model_path)) if one["name"] != "ranks"]
    assert (finding["is_well"], finding["advice"]) == (False, "correct engine.tensor_parallel_size"), finding


def test_a_wrong_setting_is_told_once(environment: dict[str, str]) -> None:
    """The link that it keeps from being made names it, and the advice is the setting, not the chain."""
    env = environment | {"PYAGENT_ENGINE__ATTENTION": "nonsense", "PYAGENT_CHAIN": '["native"]'}
    told = pyagent("doctor", env=env).stdout
    assert told.count("no plugin brings the attention backend 'nonsense'") == 1
    assert "native           waits for engine.attention, which is wrong (runner, above)" in told
    assert "correct engine.attention in pyagent.toml" in told


def test_advice_names_a_link_only_where_one_answers(chain: str, environment: dict[str, str]) -> None:
    """A link that is down is told which link answers meanwhile; alone, to be started or replaced."""
    away = "openai:http://127.0.0.1:9/v1"
    assert f"{chain} answers meanwhile" in pyagent("doctor", "--chain", f"{away},{chain}", env=environment).stdout
    alone = pyagent("doctor", "--chain", away, env=environment)
    assert (alone.returncode, "such as `native`" in alone.stdout) == (1, True)
    assert "– LM Studio" in alone.stdout or "runs here" in alone.stdout


def test_node_is_told_which_setting_keeps_kv_from_moving(environment: dict[str, str]) -> None:
    """In a cluster, an engine in a process of its own keeps its KV; where a role needs it to move, that is wrong."""
    folder = cluster_folder(Path(environment["PYAGENT_PATHS__DATA"]))
    folder.mkdir(parents=True)
    ClusterFile(folder).init("home")
    settings = {"PYAGENT_ENGINE__PROCESS": "true", "PYAGENT_CLUSTER__MULTICAST": "false"}
    env = environment | settings | {"PYAGENT_CLUSTER__ROLE": "decode"}
    found = json.loads(pyagent("doctor", "--json", env=env).stdout)
    [finding] = [finding for finding in found if finding["name"] == "KV moves"]
    assert (finding["found"], finding["is_well"]) == ("none, as engine.process = true", False)
    assert "set engine.process = false" in finding["advice"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system with affinities")
def test_threads_are_as_many_as_cores_this_process_may_use(environment: dict[str, str]) -> None:
    """With `engine.threads` on auto, a process that is held to one core computes on one thread."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # for this thread, and the process it starts
    try:
        found = json.loads(pyagent("doctor", "--json", env=environment).stdout)
    finally:
        os.sched_setaffinity(0, allowed)
    assert [finding["found"] for finding in found if finding["name"] == "threads"] == ["1 of 1 cores"]


def test_plugin_that_is_set_and_not_installed_is_listed(environment: dict[str, str], tmp_path: Path) -> None:
    """Options of a plugin that is not there, or whose name is mistyped, have no effect: that is said."""
    (tmp_path / "pyagent.toml").write_text("[plugins.rai]\nengines = 3\n")
    shown = pyagent("doctor", "--config", str(tmp_path / "pyagent.toml"), env=environment).stdout
    assert re.search(r"– rai +is in the settings, and not installed", shown), shown

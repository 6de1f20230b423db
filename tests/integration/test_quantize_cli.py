"""`pyagent models quantize` as people and programs run it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.command_line import fresh_environment, pyagent
from support.folder_tokenizer import write_model_folder
from support.tiny_encoder import write_encoder
from support.tiny_model import write_tiny_model

TEXT = "the user is at ease,\nand 12 more; the system is on\n\nthe end of it: 7 × 8\n" * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return write_model_folder(tmp_path / "tiny")


def quantize(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in the folder's parent, as a user without models."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    return pyagent("models", "quantize", *arguments, env=fresh_environment(home), cwd=folder.parent)


def test_quantize_writes_a_file_and_reports(folder: Path) -> None:
    """The file lies here by default; sizes, bits and both perplexities are told, and a second time is refused."""
    ran = quantize(folder, "./tiny", "--type", "q8_0", "--text", "text.txt", "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    file = folder.parent / "tiny-Q8_0.gguf"
    assert told["path"] == "tiny-Q8_0.gguf"
    assert told["bytes_after"] == file.stat().st_size < told["bytes_before"] * 0.5
    assert 8.4 < told["bits_per_weight"] < 10
    quality = told["quality"]
    assert 0.98 < quality["ratio"] == quality["perplexity_after"] / quality["perplexity_before"] < 1.02
    assert 0.8 < quality["same_best"] <= 1
    assert quality["num_tokens"] > 100
    ran = quantize(folder, "./tiny", "--type", "q8_0", "--no-report")
    assert ran.returncode == 1
    assert ran.stderr.strip().splitlines() == [ran.stderr.strip()]
    assert "--force" in ran.stderr


def test_quantize_speaks_to_people(folder: Path) -> None:
    """Without --json lines are for people; --no-report scores nothing; --force writes over a file."""
    write_tiny_model(folder.parent / "made.gguf")
    ran = quantize(folder, "tiny", "--type", "F16", "--output", "made.gguf", "--force", "--no-report")
    assert ran.returncode == 0, ran.stderr
    lines = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert list(lines) == ["file", "size", "weights", "tensors", "seconds"]
    assert lines["file"] == "made.gguf"
    assert lines["weights"].startswith("16.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("./tiny", "--type", "Q4_M"), "Q4_K_M"),
        (("./absent", "--no-report"), "does not exist"),
        (("smollm2:135m", "--no-report"), "models pull"),
        (("./tiny", "--text", "absent.txt"), "absent.txt cannot be read"),
        (("./tiny", "--no-report", "--output", "no/such/folder.gguf"), "cannot be written"),
        (
            ("./encoder", "--no-report"),
            "'electra' cannot be written as GGUF; the documentation's page on quantising lists the",
        ),
    ],
)
def test_quantize_refuses_in_a_line(arguments: tuple[str, ...], named: str, folder: Path) -> None:
    """A wrong type, model, text or place is one line, and leaves no file."""
    write_encoder(folder.parent / "encoder", model_type="electra")
    before = sorted(file.name for file in folder.parent.iterdir() if file.name != "home")
    ran = quantize(folder, *arguments)
    assert ran.returncode == 1
    assert named in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert sorted(file.name for file in folder.parent.iterdir() if file.name != "home") == before


def test_a_file_that_cannot_be_scored_stays(folder: Path) -> None:
    """Where the report fails the file is there, and the line says so."""
    write_tiny_model(folder.parent / "other.gguf", architecture="grok")
    ran = quantize(folder, "./other.gguf", "--type", "Q8_0", "--text", "text.txt")
    assert ran.returncode == 1
    assert "other-Q8_0.gguf is written, but not compared" in ran.stderr
    assert (folder.parent / "other-Q8_0.gguf").exists()

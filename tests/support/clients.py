"""Programs of others that talk to a server, installed by `make clients`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.server import KEY


def run_llm(url: str, model: str, folder: Path, *words: str, settings: str = "") -> subprocess.CompletedProcess[str]:
    """llm, asked with these words of a model that its files in a folder name; it must not fail."""
    entry = f"- model_id: mine\n  model_name: {model}\n  api_base: {url}/v1\n  api_key_name: mine\n{settings}"
    (folder / "extra-openai-models.yaml").write_text(entry)
    (folder / "keys.json").write_text(json.dumps({"mine": KEY}))
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "mine", *words],
        env={"LLM_USER_PATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done

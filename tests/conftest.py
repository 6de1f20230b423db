"""Models that several test files share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import ssl
from collections.abc import Generator, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from support.models import located
from support.tiny_model import TINY_GEMMA_WINDOW, vocabulary, write_tiny_model

from pyagent.infrastructure.engine.tokens import ModelTokenizer

# A loaded machine takes longer over an example than Hypothesis expects; a test that hangs is CI's to end.
settings.register_profile("any machine", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Every `httpx.get` makes a client, which reads a file of certificates whole: 25 ms, for servers on loopback that have
# none. Of a folder OpenSSL reads what it meets.
os.environ.pop("SSL_CERT_FILE", None)
os.environ.setdefault("SSL_CERT_DIR", ssl.get_default_verify_paths().openssl_capath)

# A shell starts what it puts in the background deaf to Ctrl+C; programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor ever after in what is there then.

    It is a third of the time that collecting takes, and half a second at each engine's end, which would have all that
    is frozen looked through. So what tests make is not frozen, and found as garbage without being thawed.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        _no_freezing.start()


_no_freezing = patch.multiple(gc, freeze=lambda: None, unfreeze=lambda: None)


@pytest.fixture
def freezing() -> Iterator[None]:
    """Python's own `gc.freeze` and `gc.unfreeze`, which other tests go without."""
    _no_freezing.stop()
    yield
    gc.freeze()
    _no_freezing.start()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command run in this process sets logging up, some at the first record only: not for the tests after it."""
    root, ours = logging.getLogger(), logging.getLogger("pyagent")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of random weights with a byte-level vocabulary and a chat template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def tokenizer(tiny_model_path: Path) -> ModelTokenizer:
    """The tiny model's."""
    return ModelTokenizer.load(tiny_model_path, vocab_size=len(vocabulary()[0]))


@pytest.fixture(scope="session")
def tiny_gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten layers that see 40 tokens and two that see all: pages of two layers, six of them a block."""
    return write_tiny_model(
        tmp_path_factory.mktemp("tiny") / "gemma.gguf",
        architecture="gemma3",
        gemma3__block_count=12,
        gemma3__attention__sliding_window=TINY_GEMMA_WINDOW,
        gemma3__context_length=4096,
    )


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2 135M Instruct (Q4_1)."""
    return located("smollm2:135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (Q4_K_M), for oracle tests."""
    return located("gemma3:270m")

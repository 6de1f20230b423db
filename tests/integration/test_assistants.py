"""Gemma 4's assistants: answers are those without, and drafts after any history are those of a cold text.

Heads of Medusa go on from the same outputs of the same steps: what is said of drafts' histories is asked of both.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
from support.draft_models import (
    eagerly_drafted,
    has_no_draft_refused,
    same_while_preempted,
    same_with_head,
)
from support.gguf_writer import Blocks
from support.kv_sequences import Memory, random_tokens
from support.native import at_once, chat, options, run
from support.quantised_model import random_blocks
from support.requests_of_all_kinds import requests_of_all_kinds
from support.tiny_assistant import (
    NUM_TOKENS,
    assistant_config,
    assistant_tensors,
    write_assistant,
    write_assistant_gguf,
    write_right_assistant,
    write_target,
)
from support.tiny_gemma4 import HIDDEN
from support.tiny_medusa import medusa_config, medusa_tensors, write_medusa

from pyagent import _rust

Drafted = list[tuple[int, float] | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of E2B's form, `model.gguf`, and an assistant of random weights, which is usually wrong."""
    folder = tmp_path_factory.mktemp("assistants")
    write_target(folder / "model.gguf")
    write_assistant(folder / "assistant")
    return folder


@pytest.fixture(scope="module", params=["assistant", "heads of Medusa"])
def either(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with an assistant, or with heads of Medusa in its place."""
    if request.param == "assistant":
        return folder
    other = tmp_path_factory.mktemp("medusa")
    (other / "model.gguf").symlink_to(folder / "model.gguf")
    write_medusa(other / "assistant", medusa_config(vocab_size=NUM_TOKENS), medusa_tensors(num_tokens=NUM_TOKENS))
    return other


class Assisted(Memory):
    """A model with an assistant, or with heads of Medusa, whose steps sample."""

    def __init__(self, folder: Path, swap_dir: Path | None = None, *, threads: int = 1) -> None:
        super().__init__(folder / "model.gguf", swap_dir, threads=threads)
        self.model.attach_drafter(folder / "assistant")

    def sample(
        self, *segments: tuple[int, list[int]], num_drafts: dict[int, int] | None = None
    ) -> dict[int, list[int]]:
        """Compute tokens of sequences, of which the last may be drafts; return what was sampled by sequence."""
        drafts, log = num_drafts or {}, [token for _, tokens in segments for token in tokens]
        for place, (sequence, tokens) in enumerate(segments):
            known, count = self.pool.num_tokens(sequence), len(tokens)
            self.pool.reserve(sequence, known + count - drafts.get(place, 0))
            self.pool.reserve(sequence, known + count)
        samplers = [_rust.SamplerState(temperature=0.0) for _ in segments]
        ids, lengths = [sequence for sequence, _ in segments], [len(tokens) for _, tokens in segments]
        sampled, _, errors, more, _ = self.model.execute(
            self.pool, ids, lengths, log, samplers, [0] * len(ids), num_drafts=drafts
        )
        assert not errors
        return {
            sequence: [sampled[place], *(token for token, _ in more.get(place, ()))]
            for place, sequence in enumerate(ids)
        }

    def draft(self, ids: list[int], tokens: list[int], before: list[int | None] | None = None) -> Drafted:
        found, errors = self.model.draft(self.pool, ids, tokens, [0] * len(ids), before or [None] * len(ids))
        assert not errors
        return found

    def chain(self, sequence: int, token: int, length: int = 3) -> list[bytes]:
        """Return the logits of so many drafts after a sequence's next token."""
        logits, before = list[bytes](), None
        for _ in range(length):
            (likeliest,) = self.draft([sequence], [token], [before])
            assert likeliest is not None
            token, before = likeliest[0], 0
            logits.append(self.model.logits())
        return logits

    def cold(self, log: list[int], length: int = 3) -> list[bytes]:
        """Return those of a text that is computed at once, from nothing."""
        self.pool.clear_index()
        self.pool.add(99, log)
        self.sample((99, log[:-1]))
        logits = self.chain(99, log[-1], length)
        self.pool.release(99)
        self.pool.clear_index()
        return logits


def test_drafts_after_any_history_are_those_of_a_cold_text(either: Path, tmp_path: Path) -> None:
    """After right and wrong drafts at all places in a block, forked, swapped and cached, in windows: bit for bit."""
    memory, draw = Assisted(either, tmp_path, threads=2), random.Random(5)
    tokens = random_tokens(1, 37)
    memory.pool.add(1, tokens)
    tokens += memory.sample((1, tokens))[1]
    while len(tokens) < 120:
        tokens += memory.sample((1, tokens[-1:]))[1]
    memory.pool.release(1)
    memory.pool.clear_index()
    memory.pool.add(1, tokens[:37])
    log = [*tokens[:37], *memory.sample((1, tokens[:37]))[1]]
    histories: list[tuple[list[int], list[bytes]]] = []
    while len(log) < 100:
        num_right, num_wrong = draw.choice([(0, 0), (0, 1), (3, 0), (2, 4), (6, 1)])
        right = tokens[len(log) : len(log) + num_right]
        wrong = [(tokens[len(log) + num_right] + 1 + at) % NUM_TOKENS for at in range(num_wrong)]
        log += memory.sample((1, [log[-1], *right, *wrong]), num_drafts={0: num_right + num_wrong})[1]
        assert log == tokens[: len(log)]
        histories.append((list(log), memory.chain(1, log[-1])))
    memory.model.copy_pages(memory.pool.fork(1, 3))
    assert memory.draft([3], [log[-1]]) == [None]  # the last step had another sequence
    following = memory.sample((3, log[-1:]))[3]
    forked = memory.chain(3, following[0])
    handle = memory.model.swap_out(memory.pool.pages_in_use(3))
    memory.pool.release(3)
    num_cached, places = memory.pool.restore(4, log)
    memory.model.swap_in(handle, places)
    memory.pool.commit(4, log[num_cached:])
    assert memory.draft([4], following) == [None]
    further = memory.sample((4, following))[4]
    swapped = memory.chain(4, further[0])
    for sequence in (1, 4):
        memory.pool.release(sequence)
    turn = [*log, *random_tokens(7, 5)]
    num_cached = memory.add(5, turn)
    assert num_cached >= 96
    memory.sample((5, turn[num_cached:-1]))
    cached = memory.chain(5, turn[-1])
    memory.pool.release(5)
    assert forked == memory.cold([*log, *following])
    assert swapped == memory.cold([*log, *following, *further])
    assert cached == memory.cold(turn)
    for one, logits in histories:
        assert logits == memory.cold(one), len(one)


@pytest.mark.parametrize("kind", ["assistant", "with clusters", "heads of Medusa"])
def test_a_batch_drafts_what_each_sequence_drafts_alone(kind: str, folder: Path, tmp_path: Path) -> None:
    """Whatever stands beside a sequence, and however many threads compute, with many rows and with few."""
    (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    has_clusters = kind == "with clusters"
    if kind == "heads of Medusa":
        config = medusa_config(vocab_size=NUM_TOKENS)
        write_medusa(tmp_path / "assistant", config, medusa_tensors(num_tokens=NUM_TOKENS))
    else:
        tensors = assistant_tensors(has_clusters=has_clusters)
        write_assistant(tmp_path / "assistant", assistant_config(has_clusters=has_clusters), tensors)
    logs = [random_tokens(seed, 20 + 13 * seed) for seed in range(6)]
    single = Assisted(tmp_path)
    alone = [single.cold(log, 2) for log in logs]
    memory = Assisted(tmp_path, threads=2)
    for sequence, log in enumerate(logs):
        memory.pool.add(sequence, log)
    memory.sample(*((sequence, log[:-1]) for sequence, log in enumerate(logs)))
    memory.pool.add(9, logs[0])
    first = memory.draft([0, 1, 9, 2, 3, 4, 5], [log[-1] for log in (*logs[:2], logs[0], *logs[2:])])
    assert first[2] is None  # a sequence that no step had
    found = [one for one in first if one is not None]
    size, logits = len(alone[0][0]), memory.model.logits()
    assert [logits[at * size : (at + 1) * size] for at in range(6)] == [one[0] for one in alone]
    if has_clusters:
        assert size == 4 * 80
        assert all(0 <= token < NUM_TOKENS for token, _ in found)
    kept = [4, 1, 3]  # the second drafts of some, in another order
    rows: list[int | None] = [5, 1, 4]
    memory.draft(kept, [found[at][0] for at in kept], rows)
    logits = memory.model.logits()
    assert [logits[at * size : (at + 1) * size] for at in range(3)] == [alone[at][1] for at in kept]
    memory.sample((1, [3]))
    assert len(memory.model.logits()) == 4 * NUM_TOKENS  # those of the step again


def test_a_model_with_an_assistant_computes_what_it_computes_without(either: Path) -> None:
    """No bit of its logits is another, few rows or many, and its pages are as they were."""
    tokens, found = random_tokens(3, 90), []
    for memory in (Memory(either / "model.gguf", threads=2), Assisted(either, threads=2)):
        memory.pool.add(1, tokens)
        parts = (tokens[:60], tokens[60:63], tokens[63:64], tokens[64:])
        info = memory.model.info()
        found.append(([memory.compute((1, part)) for part in parts], info["page_bytes"], info["kv_groups"]))
    assert found[0] == found[1]


def test_gguf_files_under_the_names_of_llama_cpp_have_the_same_assistant(folder: Path, tmp_path: Path) -> None:
    """Bit for bit; its clusters are left aside, so that drafts look at all tokens; a part of it is refused."""
    (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    config = assistant_config()
    rope = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
    rope["sliding_attention"] = {"rope_type": "default", "rope_theta": 10_000.0}
    config["text_config"] = config["text_config"] | {"rms_norm_eps": 1e-6, "rope_parameters": rope}  # type: ignore[operator]
    write_assistant(tmp_path / "assistant", config)
    memory, log = Assisted(tmp_path, threads=2), random_tokens(4, 60)
    expected = memory.cold(log)
    tensors = assistant_tensors() | {
        name: one for name, one in assistant_tensors(has_clusters=True).items() if name.startswith("masked_embedding")
    }
    path = write_assistant_gguf(tmp_path / "assistant.gguf", tensors)
    memory.model.attach_drafter(path)
    assert memory.cold(log) == expected
    with pytest.raises(_rust.ModelFileError, match="an assistant of Gemma 4 answers nothing by itself; name it"):
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20)
    wrong = {name: one for name, one in tensors.items() if name != "pre_projection.weight"}
    with pytest.raises(_rust.ModelFileError, match=r'"nextn.pre_projection.weight" is missing'):
        memory.model.attach_drafter(write_assistant_gguf(path, wrong))
    with pytest.raises(_rust.ModelFileError, match=r"models of hidden size 65; the model has 64"):
        memory.model.attach_drafter(write_assistant_gguf(path, tensors, embedding_length_out=65))
    with pytest.raises(_rust.ModelFileError, match=r"'gemma4-assistant.embedding_length_out' is not 1 to 1048576"):
        memory.model.attach_drafter(write_assistant_gguf(path, tensors, embedding_length_out=1 << 31))


def test_answers_of_every_kind_are_the_same(folder: Path) -> None:
    """In a batch of all of them, with log probabilities, forms, penalties and several answers of one prompt."""
    run(
        same_with_head(
            folder, "assistant", requests_of_all_kinds(), options(threads=2, blocks=4096, max_num_batched_tokens=64)
        )
    )


def test_answers_are_the_same_while_requests_are_preempted(folder: Path) -> None:
    """With memory for one answer and a bit: requests yield, swapped or computed again, in the middle of drafts."""
    run(same_while_preempted(folder, "assistant", 30))


def test_an_assistant_that_is_right_has_no_draft_refused(tmp_path: Path) -> None:
    """Of a model whose tokens follow from the one before alone: all drafts are accepted; and it is asked of itself."""
    path = write_target(tmp_path / "model.gguf", is_repeating=True)
    run(has_no_draft_refused(path, write_right_assistant(tmp_path / "assistant")))


def test_drafts_that_cannot_be_are_refused_by_row(either: Path) -> None:
    """A row's fault is its own; what no step computed just now is none, and without an assistant nothing drafts."""
    memory, tokens = Assisted(either), random_tokens(1, 30)
    for sequence in (1, 2):
        memory.pool.add(sequence, tokens)
    memory.sample((1, tokens[:20]), (2, tokens[:20]))
    (right,) = memory.draft([1], [5])
    ids, log, before = [7, 1, 2, 1], [5, NUM_TOKENS, 5, 5], [None, None, 3, None]
    found, errors = memory.model.draft(memory.pool, ids, log, [0, 0, 0, 9], before)
    assert "7" in errors[0]
    assert "is not in the vocabulary" in errors[1]
    assert found == [None, None, None, right]
    assert set(errors) == {0, 1}
    assert memory.draft([], []) == []
    memory.sample((2, tokens[20:21]))  # a step without the other one, whose output is gone
    assert memory.draft([2, 1], [5, 5])[1] is None
    memory.pool.reserve(2, 22)
    memory.pool.commit(2, tokens[21:22])  # what no step computed
    assert memory.draft([2], [5]) == [None]
    memory.sample((2, tokens[22:23]))
    assert memory.draft([2, 1], [5, 5])[1] is None
    memory.compute((1, tokens[20:21]))  # a step that samples nothing
    assert memory.draft([1, 1], [5, 5], [None, 0]) == [None, None]
    memory.model.attach_drafter(None)
    assert memory.model.info()["drafter_weight_bytes"] == 0
    assert "no head" in memory.model.draft(memory.pool, [1], [5], [0], [None])[1][0]


def test_an_assistant_may_have_an_output_matrix_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Where its words are not tied, logits are of that matrix, and nothing reads the embedding."""
    (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    tensors, log = assistant_tensors(), random_tokens(4, 30)
    output = assistant_tensors(seed=8)["model.embed_tokens.weight"]
    write_assistant(tmp_path / "assistant", None, tensors | {"model.embed_tokens.weight": output})
    memory = Assisted(tmp_path)
    expected = memory.cold(log)
    untied = assistant_config() | {"tie_word_embeddings": False}
    memory.model.attach_drafter(write_assistant(tmp_path / "untied", untied, tensors | {"lm_head.weight": output}))
    assert memory.cold(log) == expected
    with pytest.raises(_rust.ModelFileError, match=r'"lm_head.weight" is missing'):
        memory.model.attach_drafter(write_assistant(tmp_path / "lacking", untied, tensors))


def test_an_exit_may_be_quantised_beside_a_plain_embedding(folder: Path, tmp_path: Path) -> None:
    """The first draft has the same bits; what goes on from it is that of the blocks' numbers, but for rounding."""
    (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    (tmp_path / "assistant").symlink_to(folder / "assistant")
    memory, found = Assisted(tmp_path), list[list[bytes]]()
    blocks = random_blocks("Q8_0", HIDDEN, HIDDEN, 5)
    for values in (array("f", _rust.dequantise("Q8_0", blocks)), Blocks(8, blocks)):
        tensors = assistant_tensors(hidden=HIDDEN) | {"post_projection.weight": ((HIDDEN, HIDDEN), values)}
        path = write_assistant_gguf(tmp_path / "assistant.gguf", tensors, embedding_length=HIDDEN)
        memory.model.attach_drafter(path)
        found.append(memory.cold(random_tokens(4, 30), 2))
    (first, plain), (same, quantised) = found
    assert same == first
    assert array("f", quantised) == pytest.approx(array("f", plain), abs=0.05)
    assert quantised != plain


def test_an_assistant_drafts_within_its_own_context(folder: Path, tmp_path: Path) -> None:
    """Its context may be shorter than the model's: from there on a row is refused."""
    (tmp_path / "model.gguf").symlink_to(folder / "model.gguf")
    config = assistant_config()
    config["text_config"] = config["text_config"] | {"max_position_embeddings": 21}  # type: ignore[operator]
    write_assistant(tmp_path / "assistant", config)
    memory, tokens = Assisted(tmp_path), random_tokens(1, 30)
    memory.pool.add(1, tokens)
    memory.sample((1, tokens[:20]))
    assert memory.draft([1], [5]) != [None]
    memory.sample((1, tokens[20:21]))
    found, errors = memory.model.draft(memory.pool, [1], [5], [0], [None])
    assert found == [None]
    assert "there is no draft after position 21 in a context of 21" in errors[0]


def test_memory_of_an_assistant_is_in_the_account(folder: Path, tmp_path: Path) -> None:
    """Its weights and passes are told before it is loaded, and held as a draft model's; closed, it is forgotten."""
    memory = Assisted(folder, threads=2)
    before = memory.model.info()["workspace_bytes"]
    log = random_tokens(2, 200)
    for sequence in range(3):
        memory.pool.add(sequence, log)
    memory.sample(*((sequence, log[:-1]) for sequence in range(3)))
    plain = memory.model.info()["workspace_bytes"]
    memory.draft([0, 1, 2], [5, 6, 7])
    about = _rust.describe_drafter(folder / "assistant", 2, 3, 200)
    assert about is not None
    assert before < plain < memory.model.info()["workspace_bytes"] <= plain + about["workspace_bytes"]
    assert about["weight_bytes"] >= memory.model.info()["drafter_weight_bytes"] > 0
    assert _rust.describe_drafter(folder / "model.gguf") is None
    tensors = assistant_tensors(has_clusters=True)
    matrices = [shape for shape, _ in tensors.values() if len(shape) == 2]
    clustered = write_assistant(tmp_path / "clustered", assistant_config(has_clusters=True), tensors)
    memory.model.attach_drafter(clustered)
    in_groups = sum(4 * -(-rows // 16) * 16 * columns for rows, columns in matrices)
    assert memory.model.info()["drafter_weight_bytes"] == in_groups + 4 * NUM_TOKENS, "and the order of tokens"
    memory.model.attach_drafter(folder / "assistant")

    async def work() -> None:
        async with eagerly_drafted(folder / "model.gguf", folder / "assistant") as (backend, eager):
            await at_once(backend, [chat("on", max_tokens=20, ignore_eos=True)])
            pool = backend.engine.models  # type: ignore[attr-defined]
            assert pool.accounts()["draft_weights:tiny"] == memory.model.info()["drafter_weight_bytes"]
            assert pool.accounts()["draft_workspace:tiny"] > 0
            info = eager.model.model.runner.info  # type: ignore[union-attr]
            weights = memory.model.info()["drafter_weight_bytes"]
            assert eager.model.model.weight_ratio == weights / info.weight_bytes  # type: ignore[union-attr]
            assert "draft_kv:tiny" not in pool.accounts()
            pool.loaded()["tiny"].drop_kv()
            pool.unload("tiny")
            assert not any("tiny" in account for account in pool.accounts())
            assert eager.model.model.runner.attach_drafter(None) == 0  # type: ignore[union-attr]

    run(work())

"""What is sampled beside drafts follows the distribution that there is without them, and the seed decides it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.native import engine_logits
from support.reference_sampling import Sampler, assert_follows
from support.tiny_model import vocabulary

from pyagent import _rust

VOCAB = len(vocabulary()[0])
PROMPT = [7, 30, 31, 7, 40, 52, 90, 7, 30, 31, 7, 41, 52, 90, 12, 7, 30, 31, 7]
NUM_SEEDS, AT_ONCE = 4_000, 200
ROW_BYTES = -(-VOCAB // 32) * 4
ALLOWED = [token for token in range(VOCAB) if token % 3 != 1]


class Steps:
    """Many answers to one prompt, all before its last token computed once."""

    def __init__(self, path: Path) -> None:
        self.model = _rust.CpuModel.load(path, threads=1, kv_bytes=8 << 20, kv_type="f32")
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])
        self.pool.add(0, PROMPT)
        self.pool.reserve(0, len(PROMPT))
        self.model.execute(self.pool, [0], [len(PROMPT) - 1], PROMPT[:-1])

    def sample(
        self, samplers: Sequence[_rust.SamplerState], drafts: list[int], mask: bytes | None, step: int = 0
    ) -> list[list[int]]:
        """The tokens of each sampler's answer in a step after the last token of the prompt."""
        ids = list(range(1, 1 + len(samplers)))
        for sequence in ids:
            self.model.copy_pages(self.pool.fork(0, sequence))
            self.pool.reserve(sequence, len(PROMPT) + len(drafts))
        rows, num_rows = range(len(ids)), 1 + len(drafts)
        first, _, errors, more, *_ = self.model.execute(
            self.pool,
            ids,
            [num_rows] * len(ids),
            [PROMPT[-1], *drafts] * len(ids),
            samplers,
            [step] * len(ids),
            {} if mask is None else dict.fromkeys(rows, mask * num_rows),
            num_drafts=dict.fromkeys(rows, len(drafts)),
        )
        assert not errors
        for row, sequence in enumerate(ids):
            assert self.pool.num_tokens(sequence) == len(PROMPT) + len(more.get(row, ()))
            self.pool.release(sequence)
        return [[first[row], *(token for token, _ in more.get(row, ()))] for row in rows]


def mask_of(tokens: Sequence[int]) -> bytes:
    bits = bytearray(ROW_BYTES)
    for token in tokens:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"temperature": 1.7}, None),
        ({"temperature": 1.2, "top_p": 0.8}, None),
        ({"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": 0.5}, None),
        ({"temperature": 1.3, "top_p": 0.9, "frequency_penalty": 1.5}, ALLOWED),
    ],
)
def test_tokens_beside_drafts_follow_the_distribution(
    tiny_model_path: Path, params: dict[str, float], allowed: list[int] | None
) -> None:
    """Chi-square against the formulas in float64: of the first token, and of those after an accepted draft."""
    steps, reference = Steps(tiny_model_path), Sampler(**params)
    of_prompt = engine_logits(tiny_model_path, PROMPT)[-1]
    first_shares = reference.shares(held(of_prompt, allowed), PROMPT)
    draft = max(range(VOCAB), key=first_shares.__getitem__)
    second_shares = reference.shares(
        held(engine_logits(tiny_model_path, [*PROMPT, draft])[-1], allowed), PROMPT, [draft]
    )
    first, second = Counter[str](), Counter[str]()
    for begin in range(0, NUM_SEEDS, AT_ONCE):
        samplers = [_rust.SamplerState(seed=seed, **params) for seed in range(begin, begin + AT_ONCE)]
        for sampler in samplers:
            sampler.observe_prompt(PROMPT)
        for sampled in steps.sample(samplers, [draft], None if allowed is None else mask_of(allowed)):
            first[str(sampled[0])] += 1
            assert (len(sampled) == 2) is (sampled[0] == draft)
            second.update(map(str, sampled[1:]))
    assert second.total() > 50
    assert_follows(first, {str(token): share for token, share in enumerate(first_shares) if share})
    assert_follows(second, {str(token): share for token, share in enumerate(second_shares) if share})


def held(logits: list[float], allowed: list[int] | None) -> list[float]:
    """Logits that leave the tokens that are allowed."""
    return logits if allowed is None else [one if token in allowed else -1e30 for token, one in enumerate(logits)]


def test_seed_decides_whatever_is_proposed(tiny_model_path: Path) -> None:
    """Right drafts, wrong ones and none give a seed the same tokens, as far as each step goes."""
    steps = Steps(tiny_model_path)

    def sampled(drafts: list[int]) -> list[list[int]]:
        return steps.sample([_rust.SamplerState(seed=seed, temperature=0.3) for seed in range(50)], drafts, None)

    plain = sampled([])
    assert all(len(tokens) == 1 for tokens in plain)
    for seed in range(50):
        right = sampled([plain[seed][0], 3, 3])[seed]
        assert right[:1] == plain[seed]
        assert len(right) >= 2
        assert sampled([(plain[seed][0] + 1) % VOCAB])[seed] == plain[seed]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_drafts": {0: 1}, "masks": {0: b"\xff" * ROW_BYTES}}, "a mask of"),
        ({"num_drafts": {0: 1}, "num_outputs": [1]}, "1 drafts"),
        ({"num_drafts": {0: 1}, "processed": {0}, "process": lambda rows: {}}, "no processors"),
    ],
)
def test_drafts_that_do_not_fit_are_refused(tiny_model_path: Path, changes: dict[str, object], told: str) -> None:
    """By a sentence, before anything is computed; more drafts than tokens are that segment's fault."""
    steps = Steps(tiny_model_path)
    steps.pool.reserve(0, 40)
    columns: dict[str, object] = {"samplers": [_rust.SamplerState(temperature=0)], "steps": [0]}
    with pytest.raises(ValueError, match=told):
        steps.model.execute(steps.pool, [0], [2], [5, 6], **(columns | changes))  # type: ignore[arg-type]
    for num_drafts in (2, 1 << 62):
        _, _, errors, *_ = steps.model.execute(
            steps.pool, [0], [2], [5, 6], [_rust.SamplerState()], [0], num_drafts={0: num_drafts}
        )
        assert "outputs of 2 tokens" in errors[0]
    assert steps.pool.num_tokens(0) == len(PROMPT) - 1

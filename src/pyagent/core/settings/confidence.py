"""The settings of doubtful answers: which are, and what is done about them."""

from typing import Annotated, Literal

import msgspec

from pyagent.core.setting_kinds import NUMBER, TEXTS, TRUTH, choice
from pyagent.core.settings.section import Section, Setting


class Confidence(Section, frozen=True):
    """Which answers of models are doubtful, and what is done about them."""

    act: Annotated[
        Literal["off", "mark", "retry", "escalate"],
        Setting(
            choice("off", "mark", "retry", "escalate"),
            "What is done about a doubtful answer: nothing is looked at, the event `AnswerDoubted` says it, the model "
            "is asked once more, or the next link of the chain is asked the same once.",
        ),
    ] = "mark"
    languages: Annotated[list[str], Setting(TEXTS, "Languages whose words of doubt are looked for: `en`, `de`.")] = (
        msgspec.field(default_factory=lambda: ["en"])
    )
    max_phrases: Annotated[
        float, Setting(NUMBER, "Phrases of doubt for 100 words, as `probably`, above which an answer is doubtful.")
    ] = 2.0
    min_agreement: Annotated[
        float, Setting(NUMBER, "Part of several answers to one question that has to say the same, from 0 to 1.")
    ] = 0.5
    logprobs: Annotated[
        bool,
        Setting(
            TRUTH, "Whether models are asked for the probabilities of their tokens, which not every backend tells."
        ),
    ] = False
    min_probability: Annotated[
        float, Setting(NUMBER, "Probability of an answer's tokens on average, below which the answer is doubtful.")
    ] = 0.35
    max_entropy: Annotated[
        float, Setting(NUMBER, "Entropy of an answer's tokens on average, in nats, above which the answer is doubtful.")
    ] = 2.0

"""DeepSeek V3.1: JSON after the name."""

from support.dialect_texts import Case
from support.dialect_texts.named import headed

CASES = [
    *headed(
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
    ),
    Case("no arguments", "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>", calls=[("now", {})]),
]

"""DeepSeek V3 and R1: JSON in a fence after the name."""

from support.dialect_texts.named import headed

CASES = headed(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)

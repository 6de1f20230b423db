"""DeepSeek V4: as V3.2, between other tags."""

from dataclasses import replace

from support.dialect_texts.deepseek_v32 import CASES as V32


def _written(text: str) -> str:
    return text.replace("DSML｜function_calls>", "DSML｜tool_calls>")


CASES = [replace(case, text=_written(case.text), content=_written(case.content)) for case in V32]

"""The process that looks at images, as `pyagent.logic.sandbox` runs and bounds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from pyagent.core.errors import RequestError
from pyagent.logic.sandbox.serving import bound_process, serve
from pyagent.logic.vision.code import code_of
from pyagent.logic.vision.rows import rows_of, text_of_rows
from pyagent.logic.vision.seen import Look, PageSeen, TextBox
from pyagent.logic.vision.table import table_of


def main() -> None:
    """Serve until standard input ends."""
    bound_process(int(sys.argv[1]))
    os.environ["OMP_NUM_THREADS"] = "1"
    from pyagent.logic.vision.chart import chart_of
    from pyagent.logic.vision.diagram import diagram_of
    from pyagent.logic.vision.ocr import Reader, images_of

    reader = Reader(num_threads=min(4, os.cpu_count() or 1))

    def answer(look: Look) -> list[PageSeen]:
        seen: list[PageSeen] = []
        for number, image in enumerate(images_of(look.data, look.max_pages), 1):
            upright, pieces = reader.read(image)
            page = _page(number, pieces)
            match look.kind:
                case "text":
                    pass
                case "code":
                    page = msgspec.structs.replace(page, code=code_of(pieces))
                case "table":
                    page = msgspec.structs.replace(page, table=table_of(pieces))
                case "chart":
                    page = msgspec.structs.replace(page, chart=chart_of(upright, pieces))
                case "diagram":
                    page = msgspec.structs.replace(page, diagram=diagram_of(upright, pieces))
            seen.append(page)
        if not any(page.text for page in seen):
            raise RequestError("no text is seen", param="files")
        return seen

    serve(Look, answer)


def _page(number: int, pieces: Sequence[TextBox]) -> PageSeen:
    length = sum(len(piece.text) for piece in pieces)
    confidence = sum(piece.score * len(piece.text) for piece in pieces) / max(1, length)
    return PageSeen(page=number, text=text_of_rows(rows_of(pieces)), confidence=round(confidence, 3))


if __name__ == "__main__":
    main()

"""Images that are drawn here, read by the real OCR in the real worker: texts, code, tables, charts, diagrams, PDFs."""

from __future__ import annotations

import asyncio
import base64
import io
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.logic.agents.vision import Vision, VisionAgent
from pyagent.logic.sandbox.pool import Work, WorkerPool
from pyagent.logic.vision.seen import Edge, PageSeen
from pyagent.testing import ScriptedBackend

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "Invoice 2041 of 17 March 2026: 1,284.50 EUR",
    "Reply to anna.meyer@example.org by Friday, 9:30.",
    "Half of what is known was measured twice.",
]
CODE = "def fib(n):\n    if n < 2:\n        return n\n    return fib(n - 1) + fib(n - 2)\n\nprint(fib(10))"
FONT = ImageFont.load_default(24)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool[list[PageSeen]]]:
    """One worker for all images: its libraries take seconds to import."""
    work = Work("vision", "pyagent.logic.vision.worker", list[PageSeen], "less", "the extra", 120.0, 8 << 30)
    made: WorkerPool[list[PageSeen]] = WorkerPool(work, max_workers=1)
    yield made
    asyncio.run(made.close())


def page(lines: list[str], size: tuple[int, int] = (720, 200)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 16 + 44 * number), line, fill="black", font=FONT)
    return image


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def seen(pool: WorkerPool[list[PageSeen]], data: bytes, **arguments: object) -> PageSeen:
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    fleet = Fleet(ScriptedBackend([]), [VisionAgent(pool)])
    output = asyncio.run(fleet.run_agent("vision", Task(arguments={"images": [url], **arguments})))
    assert isinstance(output, Vision)
    return output.files[0].pages[0]


def typed_page(source: str) -> bytes:
    """A page of a PDF in Courier, which all readers of PDF bring: letters of one width, as editors have them."""
    lines = [line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)") for line in source.splitlines()]
    shown = "BT /F1 12 Tf 14 TL 30 180 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 400 210]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(shown)}>>stream\n{shown}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Courier>>",
    ]
    body = "".join(f"{number} 0 obj\n{each}\nendobj\n" for number, each in enumerate(objects, 1))
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R>>".encode()


def error_rate(expected: str, read: str) -> float:
    """Edits from one text to the other, for each character of the expected one."""
    row = list(range(len(read) + 1))
    for number, character in enumerate(expected, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(read, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (character != other))
    return row[-1] / len(expected)


def noisy(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image, dtype=np.float32) * 0.7 + 30
    noise = np.random.default_rng(7).normal(0.0, 25.0, pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("clean", 0.01),
        ("slanted", 0.03),
        pytest.param("noisy", 0.03, marks=pytest.mark.slow),
        pytest.param("on its side", 0.03, marks=pytest.mark.slow),
        pytest.param("on its head", 0.03, marks=pytest.mark.slow),
        pytest.param("white on black", 0.03, marks=pytest.mark.slow),
    ],
)
def test_text_is_read_with_few_errors(pool: WorkerPool[list[PageSeen]], name: str, most: float) -> None:
    """At most one character in a hundred is wrong on a clean image, three on others."""
    plain = page(TEXT)
    image = {
        "clean": plain,
        "noisy": noisy(plain),
        "slanted": plain.rotate(3, fillcolor="white", expand=True),
        "on its side": plain.rotate(90, fillcolor="white", expand=True),
        "on its head": plain.rotate(180),
        "white on black": Image.eval(plain, lambda value: 255 - value),
    }[name]
    read = seen(pool, png(image))
    rate = error_rate("\n".join(TEXT), read.text)
    print(f"{name}: character error rate {rate:.4f}, confidence {read.confidence}")
    assert rate <= most, read.text
    assert read.confidence > 0.8


def test_code_of_a_screenshot_runs(pool: WorkerPool[list[PageSeen]]) -> None:
    """Indentation and blank lines are the source's: it compiles, and is what was drawn."""
    code = seen(pool, typed_page(CODE), read="code").code
    assert code is not None
    assert [len(line) - len(line.lstrip()) for line in code.splitlines()] == [0, 4, 8, 4, 0, 0]
    assert error_rate(CODE, code) <= 0.03
    compile(code, "screenshot", "exec")


def test_a_table_has_its_cells(pool: WorkerPool[list[PageSeen]]) -> None:
    """Rows and columns are where they were drawn, with the cell that is empty."""
    rows = [
        ["Item", "Count", "Price"],
        ["Apples", "12", "3.40"],
        ["Pears", "", "2.15"],
        ["Orange juice", "140", "19.99"],
    ]
    image = Image.new("RGB", (720, 220), "white")
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            ImageDraw.Draw(image).text((30 + 240 * column, 16 + 48 * number), cell, fill="black", font=FONT)
    table = seen(pool, png(image), read="table").table
    assert table is not None
    assert table.rows == rows


def test_bars_have_their_values(pool: WorkerPool[list[PageSeen]]) -> None:
    """Within a hundredth of the axis."""
    values = {"North": 20, "South": 85, "East": 52, "West": 97}
    image = Image.new("RGB", (760, 460), "white")
    draw = ImageDraw.Draw(image)
    for mark in range(0, 101, 20):
        draw.text((22, 380 - 3.4 * mark - 16), f"{mark}", fill="black", font=FONT)
    for number, (label, value) in enumerate(values.items()):
        left = 130 + 150 * number
        draw.rectangle((left, round(380 - 3.4 * value), left + 80, 379), fill=(40 + 50 * number, 110, 200))
        draw.text((left + 4, 395), label, fill="black", font=FONT)
    chart = seen(pool, png(image), read="chart").chart
    assert chart is not None
    assert chart.is_scaled
    assert [bar.label for bar in chart.bars] == list(values)
    assert [bar.value for bar in chart.bars] == pytest.approx(list(values.values()), abs=1.0)


def test_a_diagram_has_its_arrows(pool: WorkerPool[list[PageSeen]]) -> None:
    """Boxes by their texts; two arrows and a plain line between them."""
    image = Image.new("RGB", (720, 420), "white")
    draw = ImageDraw.Draw(image)
    for left, top, text in ((40, 40, "Client"), (300, 40, "Server"), (300, 280, "Database"), (540, 280, "Cache")):
        draw.rectangle((left, top, left + 150, top + 64), outline="black", width=2)
        draw.text((left + 20, top + 16), text, fill="black", font=FONT)
    draw.line((190, 72, 298, 72), fill="black", width=2)
    draw.polygon([(299, 72), (284, 65), (284, 79)], fill="black")
    draw.line((375, 104, 375, 278), fill="black", width=2)
    draw.polygon([(375, 279), (368, 264), (382, 264)], fill="black")
    draw.line((452, 312, 538, 312), fill="black", width=2)
    diagram = seen(pool, png(image), read="diagram").diagram
    assert diagram is not None
    assert diagram.nodes == ["Client", "Server", "Database", "Cache"]
    assert diagram.edges == [Edge(0, 1, is_directed=True), Edge(1, 2, is_directed=True), Edge(2, 3, is_directed=False)]


def test_pages_of_a_pdf_are_read(pool: WorkerPool[list[PageSeen]]) -> None:
    """A scan has no text of its own: each page is looked at, and more pages than asked for are refused."""
    buffer = io.BytesIO()
    page(["page one of two"]).save(buffer, "PDF", save_all=True, append_images=[page(["and the second"])])
    url = "data:application/pdf;base64," + base64.b64encode(buffer.getvalue()).decode()
    fleet = Fleet(ScriptedBackend([]), [VisionAgent(pool)])
    output = asyncio.run(fleet.run_agent("vision", Task(arguments={"images": [url]})))
    assert isinstance(output, Vision)
    assert [each.text for each in output.files[0].pages] == ["page one of two", "and the second"]
    assert str(output) == "image 1, page 1\npage one of two\n\nimage 1, page 2\nand the second"
    with pytest.raises(RequestError, match="image 1: the PDF has 2 pages; the most is 1"):
        seen(pool, buffer.getvalue(), max_pages=1)


def _bomb() -> bytes:
    """A PNG that says it has 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)

    side = (60_000).to_bytes(4)
    head = chunk(b"IHDR", side + side + b"\x08\x02\x00\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not an image", "neither an image nor a PDF"),
        (b"", "neither an image nor a PDF"),
        (png(page(TEXT))[:400], "this image cannot be read: image file is truncated"),
        (_bomb(), "too large|DecompressionBomb|neither an image"),
        (b"%PDF-1.7\n%%EOF", "this PDF cannot be read"),
        (png(Image.new("RGB", (300, 300), "white")), "no text is seen"),
        (png(Image.new("L", (1, 1))), "no text is seen"),
    ],
)
def test_what_is_no_image_is_refused(pool: WorkerPool[list[PageSeen]], data: bytes, message: str) -> None:
    """The error names the image, and the worker goes on."""
    with pytest.raises(RequestError, match=f"image 1: .*({message})"):
        seen(pool, data)


def test_a_worker_past_its_time_is_ended() -> None:
    """An image that takes too long fails alone."""
    work = Work("vision", "pyagent.logic.vision.worker", list[PageSeen], "a smaller image", "it", 0.05, 8 << 30)
    hurried: WorkerPool[list[PageSeen]] = WorkerPool(work, max_workers=1)
    with pytest.raises(AgentError, match=r"vision gave up after 0\.05 s; ask for a smaller image"):
        seen(hurried, png(page(TEXT)))
    asyncio.run(hurried.close())

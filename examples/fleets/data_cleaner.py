"""Clean a table of orders: dates, amounts, names and countries in one form, doubles out, doubts written beside the row.

python examples/fleets/data_cleaner.py
python examples/fleets/data_cleaner.py orders.csv --output clean.csv

Dates, amounts and doubles are computed, and never guessed: what cannot be read is empty, with the reason in the column
`doubts`. The model only chooses the country that a word may mean, and each of its choices is a doubt as well.
"""

import argparse
import asyncio
import csv
import io
import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec

from pyagent import (
    AgentError,
    Backend,
    Context,
    Fleet,
    PyAgentError,
    SamplingParams,
    Task,
    follow,
    load_settings,
    tool,
)

SAMPLE = Path(__file__).parent / "samples" / "orders.csv"
LIMITS = {"budget.run.tokens": 100_000, "budget.run.seconds": 600}
MAX_CHARACTERS = 10_000_000
COLUMNS = ("customer", "ordered", "amount", "country", "note")
DATES = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d %b %Y", "%d %B %Y")
COUNTRIES = {"DE": "Germany", "ES": "Spain", "FR": "France", "GB": "Great Britain", "IE": "Ireland", "PL": "Poland"}


class Row(msgspec.Struct, frozen=True):
    """An order as it should be; `doubts` say what a person has to look at."""

    customer: str
    ordered: str
    amount: str
    country: str
    note: str
    doubts: list[str]


class Cleaned(msgspec.Struct, frozen=True):
    """What became of the table."""

    output: str
    num_read: int
    rows: list[Row]

    def __str__(self) -> str:
        doubts = [f"  {row.customer}: {doubt}" for row in self.rows for doubt in row.doubts]
        num_doubles = self.num_read - len(self.rows)
        head = f"{self.num_read} rows read, {num_doubles} doubles left out, {len(doubts)} doubts"
        return "\n".join([head, *doubts, f"written to {self.output}"])


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table to read, and where to write the clean one."""

    source: str
    output: str


@tool(effect="none")
def read_table(file: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each with all columns."""
    with Path(file).open(encoding="utf-8-sig", errors="replace", newline="") as opened:
        text = opened.read(MAX_CHARACTERS + 1)
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing or len(text) > MAX_CHARACTERS:
        raise ValueError(f"{file} lacks {', '.join(missing)}" if missing else f"{file} is too long")
    return [{column: row[column] or "" for column in COLUMNS} for row in reader]


@tool(effect="idempotent")
def write_table(file: str, rows: list[Row]) -> int:
    """Write the rows as a CSV file, all or nothing: written twice it is the same."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "doubts"])
    for row in rows:
        cells = [row.customer, row.ordered, row.amount, row.country, row.note, "; ".join(row.doubts)]
        writer.writerow([f"'{cell}" if cell.startswith(("=", "+", "@")) else cell for cell in cells])
    part = Path(f"{file}.part")
    part.write_text(text.getvalue(), encoding="utf-8")
    os.replace(part, file)
    return len(rows)


class Cleaner:
    """Reads a table, cleans it row by row, and writes it."""

    name = "cleaner"
    description = "Cleans a table of orders."
    arguments = Files

    async def run(self, context: Context, task: Task) -> Cleaned:
        files = task.arguments_as(Files)
        table = msgspec.convert(await context.call_tool("read_table", {"file": files.source}), list[dict[str, str]])
        unknown = dict.fromkeys(row["country"].strip() for row in table if not country_of(row["country"]))
        guesses = dict(zip(unknown, await context.map(lambda word: self.guess(context, word), unknown), strict=True))
        rows = without_doubles(clean(row, guesses) for row in table)
        context.progress(f"{len(table)} rows, {len(rows)} of them different")
        await context.call_tool("write_table", {"file": files.output, "rows": msgspec.to_builtins(rows)})
        return Cleaned(files.output, len(table), rows)

    async def guess(self, context: Context, word: str) -> str:
        """Return the country that a word may mean; nothing where the model does not say."""
        question = f"Which country is {word[:60]!r}? Answer with its name in English."
        try:
            sampling = SamplingParams(temperature=0.0, max_tokens=12)
            name = await context.generate(question, choice=[*COUNTRIES.values(), "another"], sampling=sampling)
        except AgentError as error:
            context.progress(f"{word}: {error}")
            return ""
        context.progress(f"{word}: {name}, says the model")
        return country_of(name)


def clean(row: dict[str, str], guesses: dict[str, str]) -> Row:
    ordered, amount = date_of(row["ordered"]), amount_of(row["amount"])
    country = country_of(row["country"]) or guesses.get(row["country"].strip(), "")
    customer = " ".join(row["customer"].split())
    doubts = [f"{row['ordered']!r} is no date"] * (not ordered) + [f"{row['amount']!r} is no amount"] * (not amount)
    if not country_of(row["country"]):
        doubts.append(f"{row['country']!r} may be {country}" if country else f"{row['country']!r} is no country")
    return Row(
        customer=customer.title() if customer.islower() else customer,
        ordered=ordered,
        amount=amount,
        country=country,
        note=row["note"].strip(),
        doubts=doubts,
    )


def date_of(text: str) -> str:
    for form in DATES:
        try:
            return datetime.strptime(text.strip(), form).date().isoformat()
        except ValueError:
            continue
    return ""


def amount_of(text: str) -> str:
    """Return an amount with two decimals: the last of point and comma is the decimal sign, if two digits follow."""
    found = re.fullmatch(r"(\d[\d.,]*?)(?:[.,](\d{1,2}))?", re.sub(r"EUR|€|\s", "", text)[:30])
    if found is None:
        return ""
    try:
        return f"{Decimal(re.sub(r'[.,]', '', found[1]) + '.' + (found[2] or '0')):.2f}"
    except InvalidOperation:
        return ""


def country_of(text: str) -> str:
    known = {name.lower(): code for code, name in COUNTRIES.items()} | {code.lower(): code for code in COUNTRIES}
    return known.get(text.strip().lower(), "")


def without_doubles(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that differ in more than their doubts."""
    return list({(row.customer, row.ordered, row.amount, row.note): row for row in reversed([*rows])}.values())[::-1]


async def main(source: Path, output: Path, *, backend: Backend | None = None, resume: str = "") -> Cleaned:
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=[Cleaner()], tools=[read_table, write_table]) as fleet:
        task = Task(arguments={"source": str(source), "output": str(output)})
        return await follow(fleet.resume(resume) if resume else fleet.run(task, agent="cleaner"), Cleaned)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Clean a table of orders.")
    options.add_argument("source", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--output", type=Path, default=Path("clean.csv"))
    options.add_argument("--resume", metavar="RUN", default="", help="go on with a run that did not end")
    given = options.parse_args()
    try:
        print(asyncio.run(main(given.source, given.output, resume=given.resume)))
    except PyAgentError as error:
        sys.exit(f"data_cleaner: {error}")

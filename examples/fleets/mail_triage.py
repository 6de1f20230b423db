"""Sort a folder of mail: what kind each one is and when something is due; what is due soonest comes first.

python examples/fleets/mail_triage.py
python examples/fleets/mail_triage.py ~/Mail/new --today 2026-11-23

What is exact is code: headers, calendars, dates. The model only chooses a kind where no rule knows it; a mail that it
cannot place stays `unsorted`. The run is private: the journal keeps nothing of it, and only links that are marked as
private see it.
"""

import argparse
import asyncio
import email
import re
import sys
from datetime import date
from email.message import EmailMessage
from email.policy import default
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
)

SAMPLE = Path(__file__).parent / "samples" / "mail"
KINDS = ("bill", "meeting", "question", "greeting", "other")
LIMITS = {"budget.run.tokens": 60_000, "budget.run.seconds": 300}
MAX_BYTES = 1_000_000
SYSTEM = "You sort mail. Answer with the kind of the mail: bill, meeting, question, greeting or other."


class SortedMail(msgspec.Struct, frozen=True):
    """A mail in its place. `by` says what decided: a rule, the model, or nothing."""

    file: str
    sender: str
    subject: str
    kind: str
    by: str
    due: date | None = None
    is_late: bool = False


class Triage(msgspec.Struct, frozen=True):
    """All mails, those with a date first."""

    mails: list[SortedMail]

    def __str__(self) -> str:
        return "\n".join(
            f"{mail.due or ''!s:<10} {'late' if mail.is_late else '':<4} {mail.kind:<8} {mail.by:<5} "
            f"{mail.sender[:24]:<24} {mail.subject[:40]}"
            for mail in self.mails
        )


class Sorter:
    """Sorts mails, several at a time."""

    name = "sorter"
    description = "Sorts mails by kind and by the day something is due."

    def __init__(self, today: date) -> None:
        self.today = today

    async def run(self, context: Context, task: Task) -> Triage:
        async def sort(file: str) -> SortedMail:
            mail = await asyncio.to_thread(read_mail, Path(file))
            text = body_of(mail)
            kind, by = kind_by_rule(mail), "rule"
            if not kind:
                kind, by = await self.kind_by_model(context, mail, text)
            due = first_date(text)
            context.progress(f"{Path(file).name}: {kind}")
            return SortedMail(
                file=file,
                sender=str(mail.get("From", "")).partition("<")[0].strip(' "'),
                subject=str(mail.get("Subject", "(no subject)")),
                kind=kind,
                by=by,
                due=due,
                is_late=due is not None and due < self.today,
            )

        mails = await context.map(sort, task.files, max_concurrency=4)
        return Triage(sorted(mails, key=lambda mail: (mail.due is None, mail.due or date.max, mail.file)))

    async def kind_by_model(self, context: Context, mail: EmailMessage, text: str) -> tuple[str, str]:
        question = f"Subject: {mail.get('Subject', '')}\n\n{text[:1500]}"
        try:
            sampling = SamplingParams(temperature=0.0, max_tokens=8)
            return await context.generate(question, choice=KINDS, system=SYSTEM, sampling=sampling), "model"
        except AgentError as error:  # it answered with no kind, twice
            context.progress(f"{error}")
            return "unsorted", "-"


def read_mail(file: Path) -> EmailMessage:
    with file.open("rb") as opened:
        return email.message_from_bytes(opened.read(MAX_BYTES), policy=default)


def body_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain", "html"))
    try:
        text = body.get_content() if body is not None else ""
    except (LookupError, ValueError):  # a charset that does not exist
        text = ""
    return re.sub(r"<[^<>]{0,200}>", " ", text).strip()


def kind_by_rule(mail: EmailMessage) -> str:
    if mail.get("List-Unsubscribe") or mail.get("List-Id"):
        return "news"
    return "meeting" if any(part.get_content_type() == "text/calendar" for part in mail.walk()) else ""


def first_date(text: str) -> date | None:
    for found in re.findall(r"\b\d{4}-\d\d-\d\d\b", text):
        try:
            return date.fromisoformat(found)
        except ValueError:
            continue
    return None


def mails_in(folder: Path) -> tuple[str, ...]:
    files = tuple(sorted(str(file) for file in folder.glob("*.eml")))
    if not files:
        sys.exit(f"mail_triage: there are no .eml files in {folder}")
    return files


async def main(files: tuple[str, ...], today: date | None = None, backend: Backend | None = None) -> Triage:
    settings = load_settings(overrides=LIMITS).settings
    async with Fleet(settings, backend=backend, agents=[Sorter(today or date.today())], tools=[]) as fleet:
        task = Task(text=f"Sort {len(files)} mails", files=files)
        return await follow(fleet.run(task, agent="sorter", is_private=True), Triage)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Sort a folder of mail.")
    options.add_argument("folder", type=Path, nargs="?", default=SAMPLE)
    options.add_argument("--today", type=date.fromisoformat, help="the day from which late is told (2026-11-23)")
    given = options.parse_args()
    try:
        print(asyncio.run(main(mails_in(given.folder), given.today)))
    except PyAgentError as error:
        sys.exit(f"mail_triage: {error}")

"""What an input is for, by its label: the tokens of HTML's `autocomplete` that WCAG 2.2's criterion 1.3.5 asks for."""

from __future__ import annotations

import re

from pyagent.logic.interfaces.elements import InputType

_BY_LABEL: tuple[tuple[str, str], ...] = (
    ("given-name", r"first name|given name|forename"),
    ("family-name", r"last name|family name|surname"),
    ("username", r"user ?name|login name|user id"),
    ("new-password", r"new password|confirm password|repeat password|password again|choose (?:a )?password"),
    ("current-password", r"(?:current )?password|passphrase"),
    ("one-time-code", r"one[- ]time code|verification code|2fa code"),
    ("email", r"(?:your |work |confirm )?e-?mail(?: address)?"),
    ("tel", r"(?:mobile |tele)?phone(?: number)?|mobile|telephone number"),
    ("street-address", r"(?:street |postal |home )?address|street"),
    ("postal-code", r"zip(?: code)?|post(?:al )?code"),
    ("address-level2", r"city|town"),
    ("country-name", r"country"),
    ("organization", r"company|organi[sz]ation|employer"),
    ("bday", r"birthday|date of birth|birth date"),
    ("cc-number", r"card number|credit card(?: number)?"),
    ("cc-exp", r"expiry(?: date)?|expiration(?: date)?"),
    ("cc-csc", r"cvc|cvv|security code"),
    ("name", r"(?:your |full )?name"),
)
PURPOSES = frozenset(purpose for purpose, _ in _BY_LABEL)
_BY_TYPE: dict[InputType, str] = {"email": "email", "tel": "tel", "password": "current-password"}


def purpose_of(label: str, kind: InputType, given: str = "") -> str:
    """Return an input's purpose: the one given where it is known, else by its label or type; nothing for others."""
    if given in PURPOSES:
        return given
    for purpose, words in _BY_LABEL:
        if re.fullmatch(words, label.strip(), re.IGNORECASE):
            return purpose
    return _BY_TYPE.get(kind, "")

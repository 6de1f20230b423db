"""A text of others on one line, as a terminal may show it."""


def printable(text: str) -> str:
    """Return a text on one line, control characters and those that turn the order of letters written out."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)

"""A shop that sells by the kilogram. It has faults, for the reviewer to find."""

import json


def load(path, cache={}):
    try:
        if path not in cache:
            cache[path] = json.load(open(path))
        return cache[path]
    except:
        return None


def price(kilograms, kind, customer, day, is_member, coupon, country):
    total = 0.0
    if kind == "apple":
        total = 2.5 * kilograms
    elif kind == "pear":
        total = 3.0 * kilograms
    elif kind == "plum":
        total = 4.0 * kilograms
    if is_member and day != "sunday":
        total = total * 0.9
    if coupon and total > 10:
        total = total - 5
    if country not in ("DE", "FR") and total < 50:
        total = total + 8
    return total


def slug(text: str) -> str:
    """Return a text in lower case, with a dash between words."""
    return "-".join(text.lower().split())


def median(values: list[float]) -> float:
    """Return the middle value; of an even number of values, the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

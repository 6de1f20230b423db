"""Units of measure as English pages write them: what they measure, and how much of its base unit each is. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

_TABLE = """
    length 1 m metre metres meter meters
    length 1000 km kilometre kilometres kilometer kilometers
    length 0.01 cm centimetre centimetres centimeter centimeters
    length 0.001 mm millimetre millimetres millimeter millimeters
    length 0.3048 ft foot feet
    length 1609.344 mi mile miles
    length 0.9144 yd yard yards
    length 0.0254 inch inches
    mass 1 kg kilogram kilograms kilo kilos
    mass 0.001 g gram grams
    mass 1000 t tonne tonnes
    mass 0.45359237 lb lbs
    area 1 m² sqm
    area 1000000 km²
    area 10000 hectare hectares ha
    area 4046.8564224 acre acres
    volume 1 litre litres liter liters
    share 1 % percent
    time 1 second seconds
    time 60 minute minutes
    time 3600 hour hours
    time 86400 day days
    time 604800 week weeks
    span 1 year years
    span 10 decade decades
    span 100 century centuries
    power 1 watt watts
    power 1000 kW kilowatt kilowatts
    power 1000000 MW megawatt megawatts
    power 1000000000 GW gigawatt gigawatts
    speed 1 km/h kph
    speed 1.609344 mph
    warmth 1 °C
    heat 1 °F
    people 1 people inhabitants residents persons citizens
    dollars 1 dollars dollar USD
    euros 1 euros euro EUR
    pounds 1 pounds GBP
"""
_BY_WORD = {
    word: (kind, Decimal(factor))
    for kind, factor, *words in (line.split() for line in _TABLE.strip().splitlines())
    for word in words
}
_SIGNS = {"$": "dollars", "€": "euros", "£": "pounds"}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
UNIT_WORDS = frozenset(word.lower() for word in (*_BY_WORD, *_SCALES, "square", "cubic", "degree", "degrees"))
"""Words that belong to a figure, and are no part of what it is about."""
FIGURE = re.compile(
    r"(?<![\w.,/:$€£-])(?P<sign>[$€£])?\s?"
    r"(?P<number>\d{1,3}(?:[, \u00a0\u202f]\d{3}){1,4}(?:\.\d{1,6})?|\d{1,12}(?:\.\d{1,6})?)"
    r"(?![\d,]*\d)(?:[\s\u00a0-]?(?P<scale>thousand|million|billion|trillion)\b)?"
    r"(?:[\s\u00a0-]{0,2}(?P<unit>°[CF]|%|km/h|km²|m²|(?:square|cubic) [A-Za-z]{1,12}|per cent|[A-Za-z]{1,20}\b))?"
)


def measured(sign: str | None, scale: str | None, unit: str | None, number: str) -> tuple[str, Decimal, Decimal] | None:
    """Return what a figure measures, its value in the base unit, and half the value of its last digit; None for none.

    A word that is no unit is what is counted: `129 steps` measures `steps`.
    """
    plain = re.sub(r"[, \u00a0\u202f]", "", number)
    value = Decimal(plain)
    last_digit = Decimal(1).scaleb(-len(plain.partition(".")[2]))
    kind, factor = _unit(sign, unit)
    if not kind:
        return None
    factor *= _SCALES.get((scale or "").lower(), 1)
    return kind, value * factor, last_digit * factor / 2


def _unit(sign: str | None, unit: str | None) -> tuple[str, Decimal]:
    if sign:
        return _SIGNS[sign], Decimal(1)
    word = (unit or "").replace("per cent", "%")
    power, _, base = word.partition(" ") if word.lower().startswith(("square ", "cubic ")) else ("", "", word)
    found = _BY_WORD.get(base) or _BY_WORD.get(base.lower())
    if power and found and found[0] == "length":
        return ("area", found[1] ** 2) if power.lower() == "square" else ("volume", 1_000 * found[1] ** 3)
    if found is not None and not power:
        return found
    return (f"#{base.lower()}" if base and not power else ""), Decimal(1)

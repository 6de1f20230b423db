"""Colours as code writes them, and their contrast as WCAG 2.2 computes it."""

from __future__ import annotations

import re

_NAMED = {
    "black": "#000000", "silver": "#c0c0c0", "gray": "#808080", "grey": "#808080", "white": "#ffffff",
    "maroon": "#800000", "red": "#ff0000", "purple": "#800080", "fuchsia": "#ff00ff", "magenta": "#ff00ff",
    "green": "#008000", "lime": "#00ff00", "olive": "#808000", "yellow": "#ffff00", "navy": "#000080",
    "blue": "#0000ff", "teal": "#008080", "aqua": "#00ffff", "cyan": "#00ffff", "orange": "#ffa500",
    "brown": "#a52a2a", "pink": "#ffc0cb", "gold": "#ffd700", "crimson": "#dc143c", "darkgray": "#a9a9a9",
    "darkgrey": "#a9a9a9", "lightgray": "#d3d3d3", "lightgrey": "#d3d3d3", "dimgray": "#696969", "dimgrey": "#696969",
    "gainsboro": "#dcdcdc", "whitesmoke": "#f5f5f5", "darkblue": "#00008b", "darkgreen": "#006400",
    "darkred": "#8b0000", "lightblue": "#add8e6", "lightgreen": "#90ee90", "steelblue": "#4682b4",
    "tomato": "#ff6347", "indigo": "#4b0082", "violet": "#ee82ee", "coral": "#ff7f50", "salmon": "#fa8072",
    "khaki": "#f0e68c", "beige": "#f5f5dc", "ivory": "#fffff0", "tan": "#d2b48c", "turquoise": "#40e0d0",
    "slategray": "#708090", "royalblue": "#4169e1",
}  # fmt: skip
_RGB = re.compile(r"rgb\(\s*(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})\s*\)")


def read_color(text: str) -> str:
    """Return a colour of CSS as #rrggbb; nothing for one that is unknown, or lets others through."""
    low = text.strip().lower()[:60]
    if re.fullmatch(r"#[0-9a-f]{6}(?:ff)?", low):
        return low[:7]
    if re.fullmatch(r"#[0-9a-f]{3}", low):
        return "#" + "".join(2 * digit for digit in low[1:])
    if (found := _RGB.fullmatch(low)) and all(int(part) < 256 for part in found.groups()):
        return "#" + "".join(f"{int(part):02x}" for part in found.groups())
    return _NAMED.get(low, "")


def luminance(color: str) -> float:
    """Return the relative luminance of #rrggbb, from 0 to 1 (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)

"""The pictures of a regression and of a trend: points, the line through them, and the intervals around it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pyagent.core.errors import RequestError
from pyagent.logic.stats.axes import HEIGHT, WIDTH, Frame, axis
from pyagent.logic.stats.exact_numbers import Column
from pyagent.logic.stats.picture import Area, Dot, Line, Picture
from pyagent.logic.stats.regression import Curve, Prediction
from pyagent.logic.stats.trend import Trend

POINT, CURVE = "#1f6feb", "#bc4c00"
_MAX_POINTS = 3_000
_NUM_STEPS = 160


def regression_picture(curve: Curve, predictors: Sequence[Column], explained: Column) -> Picture:
    """Return the fitted curve with its intervals; of several predictors the values as they are against as fitted."""
    if len(predictors) > 1:
        return _as_fitted(curve, predictors, explained)
    x, ys, fit = predictors[0], explained.values, curve.fit
    xs = x.values
    steps = _steps(curve, x)
    heights = [each.value for each in steps]
    low, high = min(ys), max(ys)
    spread = high - low or 1.0
    inside = [value for value in heights if low - spread <= value <= high + spread]
    ends = [end for each in steps for end in (each.low, each.high) if low - spread / 2 <= end <= high + spread / 2]
    frame = Frame(
        axis([*xs, *(each.at[x.name] for each in steps)], x.name), axis([*ys, *inside, *ends], explained.name)
    )
    picture = Picture(WIDTH, HEIGHT, f"{fit.equation}; {len(ys):,} points")
    share = f"{fit.confidence * 100:g} %"
    below = f"R^2 {fit.r_squared:.5g} · {share} intervals of the curve and of a new point{_thinned(len(ys))}"
    frame.draw(picture, fit.equation, below)
    places = [each.at[x.name] for each in steps]
    for bottoms, tops, opacity in (
        ([each.low for each in steps], [each.high for each in steps], 0.10),
        ([each.curve_low for each in steps], [each.curve_high for each in steps], 0.22),
    ):
        edge = [frame.place(at, top) for at, top in zip(places, tops, strict=True)]
        back = [frame.place(at, bottom) for at, bottom in zip(places, bottoms, strict=True)]
        picture.shapes.append(Area(_within([*edge, *reversed(back)]), CURVE, opacity))
    _dots(picture, frame, xs, ys)
    points = _within([frame.place(at, value) for at, value in zip(places, heights, strict=True)])
    picture.shapes.append(Line(points, CURVE, 2))
    return picture


def _steps(curve: Curve, x: Column) -> list[Prediction]:
    """Return the curve in small steps over all of x, without places where it is beyond any number."""
    low, high = Fraction(min(x.whole), x.scale), Fraction(max(x.whole), x.scale)
    steps: list[Prediction] = []
    for at in range(_NUM_STEPS + 1):
        try:
            steps.append(curve.at({x.name: low + (high - low) * at / _NUM_STEPS}))
        except RequestError:
            continue
    if not steps:
        raise RequestError("the curve is beyond what a picture can show", param="plot")
    return steps


def _as_fitted(curve: Curve, predictors: Sequence[Column], explained: Column) -> Picture:
    coefficients = [float(each) for each in curve.solution.coefficients]
    first = coefficients[0] if curve.solution.has_constant else 0.0
    slopes = coefficients[curve.solution.has_constant :]
    columns = [each.values for each in predictors]
    fitted = [first + sum(b * x for b, x in zip(slopes, row, strict=True)) for row in zip(*columns, strict=True)]
    ys = explained.values
    both = [*fitted, *ys]
    frame = Frame(axis(both, f"{explained.name}, as fitted"), axis(both, f"{explained.name}, as it is"))
    names = ", ".join(each.name for each in predictors)
    picture = Picture(WIDTH, HEIGHT, f"{explained.name} as it is against as fitted from {names}")
    below = f"R^2 {curve.fit.r_squared:.5g} · on the line the fit is exact{_thinned(len(ys))}"
    frame.draw(picture, f"{explained.name} from {names}", below)
    ends = (min(both), max(both))
    picture.shapes.append(Line([frame.place(end, end) for end in ends], CURVE, 2))
    _dots(picture, frame, fitted, ys)
    return picture


def trend_picture(trend: Trend, x: Column, y: Column) -> Picture:
    """Return the points, and Sen's line through them."""
    xs, ys = x.values, y.values
    frame = Frame(axis(xs, x.name), axis(ys, y.name))
    heading = f"{y.name}: {'no trend' if trend.direction == 'none' else trend.direction}, p {trend.p:.3g}"
    picture = Picture(WIDTH, HEIGHT, f"{heading}; {len(ys):,} points")
    slope = "" if trend.slope is None else f" · Sen's slope {trend.slope:.5g}"
    frame.draw(picture, heading, f"tau-b {trend.tau_b:.4g}{slope}{_thinned(len(ys))}")
    _dots(picture, frame, xs, ys)
    if trend.slope is not None and trend.intercept is not None:
        ends = [frame.place(at, trend.intercept + trend.slope * at) for at in (min(xs), max(xs))]
        picture.shapes.append(Line(_within(ends), CURVE, 2))
    return picture


def _dots(picture: Picture, frame: Frame, xs: Sequence[float], ys: Sequence[float]) -> None:
    step = max(1, -(-len(xs) // _MAX_POINTS))
    radius, opacity = (3.5, 0.8) if len(xs) <= 200 else (2.0, 0.5)
    picture.shapes += [
        Dot(*frame.place(x, y), radius, POINT, opacity) for x, y in zip(xs[::step], ys[::step], strict=True)
    ]


def _thinned(num_points: int) -> str:
    step = max(1, -(-num_points // _MAX_POINTS))
    return "" if step == 1 else f" · each {step}th of {num_points:,} points"


def _within(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return points moved to the frame's edge where they are above or below it."""
    return [(x, min(max(y, 56.0), HEIGHT - 60.0)) for x, y in points]

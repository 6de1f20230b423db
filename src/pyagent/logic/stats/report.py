"""What a regression or a trend came to, as programs and people read it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pyagent.logic.stats.exact_numbers import shown
from pyagent.logic.stats.regression import Coefficient, Fit, Prediction
from pyagent.logic.stats.trend import MAX_SLOPE_POINTS, Trend


class Regression(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `fit` or a `trend`, of which columns. `left_out` has the first 100 of the rows that lack a number."""

    x: list[str]
    y: str
    fit: Fit | None = None
    trend: Trend | None = None
    num_left_out: int = 0
    left_out: list[int] = []
    picture: str | None = None

    def __str__(self) -> str:
        lines = _fit_lines(self.fit) if self.fit else []
        lines += _trend_lines(self.trend, self.x[0], self.y) if self.trend else []
        if self.num_left_out:
            some = ", ".join(map(str, self.left_out[:8]))
            more = ", ..." if self.num_left_out > len(self.left_out[:8]) else ""
            lines.append(f"left out, as a number is missing: {self.num_left_out:,} rows ({some}{more})")
        lines += [f"picture: {self.picture}"] if self.picture else []
        return "\n".join(lines)


def _fit_lines(fit: Fit) -> list[str]:
    free = f"{fit.num_free:,} degree{'' if fit.num_free == 1 else 's'} of freedom"
    kind = f"{fit.model} of degree {fit.degree}" if fit.model == "polynomial" else fit.model
    lines = [
        fit.equation,
        f"{kind}, {fit.num_points:,} points; R² {_share(fit.r_squared)}, adjusted {_share(fit.adjusted_r_squared)}; "
        f"residual standard error {shown(fit.residual_std_error)} on {free}",
    ]
    if fit.f is not None and fit.f_p is not None:
        aicc = "" if fit.aicc is None else f"; AICc {fit.aicc:.6g}"
        bic = "" if fit.bic is None else f"; BIC {fit.bic:.6g}"
        lines.append(f"F {fit.f:.6g}, p {_p(fit.f_p)}{aicc}{bic}")
    lines += [f"R² of the values themselves {fit.r_squared_of_y:.6g}"] if fit.r_squared_of_y is not None else []
    lines += _coefficient_lines(fit.coefficients, fit.confidence)
    lines += [_prediction_line(each, fit.confidence) for each in fit.predictions]
    lines += [fit.choice] if fit.choice else []
    return lines + [f"({note})" for note in fit.notes]


def _coefficient_lines(coefficients: Sequence[Coefficient], confidence: float) -> list[str]:
    has_inflation = any(each.inflation is not None for each in coefficients)
    head = ["", "estimate", "std. error", "t", "p", f"{confidence * 100:g} % interval"]
    rows = [head + (["inflation"] if has_inflation else [])]
    for each in coefficients:
        row = [each.name, shown(each.estimate), shown(each.std_error)]
        row += ["-" if each.t is None else f"{each.t:.4g}", "-" if each.p is None else _p(each.p)]
        row += [f"{shown(each.low)} to {shown(each.high)}"]
        row += ["" if each.inflation is None else f"{each.inflation:.4g}"] if has_inflation else []
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _prediction_line(each: Prediction, confidence: float) -> str:
    place = ", ".join(f"{name} = {shown(value)}" for name, value in each.at.items())
    of_points, of_curve = (
        f"{shown(each.low)} to {shown(each.high)}",
        f"{shown(each.curve_low)} to {shown(each.curve_high)}",
    )
    return f"at {place}: {shown(each.value)}; {confidence * 100:g} % of new points {of_points}, the curve {of_curve}"


def _trend_lines(trend: Trend, x: str, y: str) -> list[str]:
    verdict = "no trend is shown" if trend.direction == "none" else f"{y} is {trend.direction} with {x}"
    ties = f", {trend.num_tied_values:,} of them tied" if trend.num_tied_values else ""
    lines = [
        f"{verdict} (Mann-Kendall, p {_p(trend.p)}, {trend.p_method})",
        f"S {trend.s:,}, variance {shown(trend.variance)}, z {trend.z:.4g}, tau-b {trend.tau_b:.4g}; "
        f"{trend.num_points:,} points{ties}",
    ]
    if trend.slope is None or trend.slope_low is None or trend.slope_high is None:
        return [*lines, f"(Sen's slope is computed for at most {MAX_SLOPE_POINTS:,} points)"]
    interval = f"{trend.confidence * 100:g} % interval {shown(trend.slope_low)} to {shown(trend.slope_high)}"
    return [*lines, f"Sen's slope {shown(trend.slope)} for each unit of {x}, {interval}"]


def _share(value: float) -> str:
    """Return six digits, or as many as tell a share from 1."""
    return f"{value:.6g}" if round(value, 6) < 1 or value == 1 else f"{value:.12g}"


def _p(value: float) -> str:
    return "< 1e-300" if value < 1e-300 else f"{value:.3g}"

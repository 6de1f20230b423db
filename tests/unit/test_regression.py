"""Regression and trends: NIST's certified values (StRD, linear least squares), definitions, and pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from fractions import Fraction
from math import exp
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyagent.core.errors import RequestError
from pyagent.logic.stats.axes import axis
from pyagent.logic.stats.charts import regression_picture, trend_picture
from pyagent.logic.stats.distributions import fisher_tail, student_quantile, student_tail
from pyagent.logic.stats.exact_numbers import Column, column_of, read_number
from pyagent.logic.stats.picture import Picture, Words, to_png, to_svg
from pyagent.logic.stats.regression import Curve, Fit, Wanted, regress
from pyagent.logic.stats.table import read_data, read_file
from pyagent.logic.stats.trend import mann_kendall

_NIST = Path(__file__).parents[1] / "data/nist"
_ALL = ("deflator", "gnp", "unemployed", "armed_forces", "population", "year")


def _columns(name: str, y: str, x: tuple[str, ...]) -> list[Column]:
    return read_file(name, (_NIST / name).read_text()).numbers([*x, y])[0]


def _certified(name: str, wanted: Wanted, y: str = "y", x: tuple[str, ...] = ("x",)) -> Fit:
    *predictors, explained = _columns(name, y, x)
    return regress(predictors, explained, wanted).fit


def _column(name: str, values: list[float]) -> Column:
    return column_of(name, enumerate((repr(value) for value in values), 1))


def _curve(x: list[float], y: list[float], wanted: Wanted = Wanted()) -> Curve:  # noqa: B008 - frozen
    return regress([_column("x", x)], _column("y", y), wanted)


_ESTIMATES: dict[str, tuple[str, Wanted, list[float], list[float], float, float]] = {
    "norris": (
        "norris.csv",
        Wanted(),
        [-0.262323073774029, 1.00211681802045],
        [0.232818234301152, 0.429796848199937e-03],
        0.884796396144373,
        0.999993745883712,
    ),
    "pontius": (
        "pontius.csv",
        Wanted("polynomial", 2),
        [0.673565789473684e-03, 0.732059160401003e-06, -0.316081871345029e-14],
        [0.107938612033077e-03, 0.157817399981659e-09, 0.486652849992036e-16],
        0.205177424076185e-03,
        0.999999900178537,
    ),
    "noint1": (
        "noint1.csv",
        Wanted(has_constant=False),
        [2.07438016528926],
        [0.165289256198347e-01],
        3.56753034006338,
        0.999365492298663,
    ),
    "filip": (
        "filip.csv",
        Wanted("polynomial", 10),
        [
            -1467.48961422980,
            -2772.17959193342,
            -2316.37108160893,
            -1127.97394098372,
            -354.478233703349,
            -75.1242017393757,
            -10.8753180355343,
            -1.06221498588947,
            -0.670191154593408e-01,
            -0.246781078275479e-02,
            -0.402962525080404e-04,
        ],
        [
            298.084530995537,
            559.779865474950,
            466.477572127796,
            227.204274477751,
            71.6478660875927,
            15.2897178747400,
            2.23691159816033,
            0.221624321934227,
            0.142363763154724e-01,
            0.535617408889821e-03,
            0.896632837373868e-05,
        ],
        0.334801051324544e-02,
        0.996727416185620,
    ),
}


@pytest.mark.parametrize("name", _ESTIMATES)
def test_certified_values_come_out_to_the_last_digit(name: str) -> None:
    """Estimates, standard errors, residual error and R² are NIST's, to all 15 digits that are certified."""
    file, wanted, estimates, errors, residual, r_squared = _ESTIMATES[name]
    fit = _certified(file, wanted)
    assert [each.estimate for each in fit.coefficients] == pytest.approx(estimates, rel=2e-14)
    assert [each.std_error for each in fit.coefficients] == pytest.approx(errors, rel=2e-14)
    assert (fit.residual_std_error, fit.r_squared) == pytest.approx((residual, r_squared), rel=2e-14)


def test_longley_is_certified_and_its_collinearity_told() -> None:
    """Six predictors that move together: certified digits, and a note on those that cannot be told apart."""
    fit = _certified("longley.csv", Wanted(), "employed", _ALL)
    estimates = [
        -3482258.63459582,
        15.0618722713733,
        -0.358191792925910e-01,
        -2.02022980381683,
        -1.03322686717359,
        -0.511041056535807e-01,
        1829.15146461355,
    ]
    errors = [890420.383607373, 84.9149257747669, 0.0334910077722432, 0.488399681651699, 0.214274163161675]
    assert [each.estimate for each in fit.coefficients] == pytest.approx(estimates, rel=2e-14)
    assert [each.std_error for each in fit.coefficients[:5]] == pytest.approx(errors, rel=2e-14)
    assert (fit.residual_std_error, fit.f) == pytest.approx((304.854073561965, 330.285339234588), rel=2e-14)
    assert [round(each.inflation or 0, 2) for each in fit.coefficients] == [
        0,
        135.53,
        1788.51,
        33.62,
        3.59,
        399.15,
        758.98,
    ]
    assert fit.notes[0].endswith("apart well: deflator, gnp, unemployed, population, year")


@pytest.mark.parametrize(("y", "scale"), [("y3", 1), ("y4", 100), ("y5", 10_000)])
def test_wampler_noise_grows_and_the_estimates_stay(y: str, scale: int) -> None:
    """Errors a hundred times as large leave every estimate at exactly 1."""
    fit = _certified("wampler.csv", Wanted("polynomial", 5), y)
    assert [each.estimate for each in fit.coefficients] == [1.0] * 6
    errors = [
        2152.32624678170,
        2363.55173469681,
        779.343524331583,
        101.475507550350,
        5.64566512170752,
        0.112324854679312,
    ]
    assert [each.std_error for each in fit.coefficients] == pytest.approx([each * scale for each in errors], rel=2e-14)


@pytest.mark.parametrize(("y", "estimates"), [("y1", [1.0] * 6), ("y2", [1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001])])
def test_exact_fit_has_no_error_and_no_tests(y: str, estimates: list[float]) -> None:
    """Points on the curve have residuals of exactly 0; t, p and F are not made up."""
    fit = _certified("wampler.csv", Wanted("polynomial", 5), y)
    assert [each.estimate for each in fit.coefficients] == estimates
    assert [(each.std_error, each.t, each.p) for each in fit.coefficients] == [(0.0, None, None)] * 6
    assert (fit.residual_std_error, fit.f, fit.aicc, fit.r_squared) == (0.0, None, None, 1.0)
    assert "every point is on the curve" in fit.notes[0]


def test_adjusted_r_squared_counts_what_is_fitted() -> None:
    """1 - (1 - R²) (n - 1) / (n - p), and n in place of n - 1 through the origin (Theil 1961)."""
    for has_constant in (True, False):
        fit = _curve([1, 2, 3, 4, 5], [2, 4, 5, 4, 5], Wanted(has_constant=has_constant)).fit
        counted = 1 - (1 - fit.r_squared) * (5 - has_constant) / (4 - has_constant)
        assert fit.adjusted_r_squared == pytest.approx(counted, rel=1e-12)
        assert fit.adjusted_r_squared < fit.r_squared


def test_degree_is_chosen_with_the_reason() -> None:
    """The least AICc or BIC wins and the others are told; the lowest exact fit goes before all."""
    fit = _certified("pontius.csv", Wanted("polynomial"))
    assert (fit.degree, fit.choice.split(",")[0]) == (2, "degree 2 has the least AICc")
    assert _certified("wampler.csv", Wanted("polynomial"), "y1").choice == "degree 5 is the lowest that fits exactly"
    noisy = _curve(
        [1, 2, 3, 4, 5, 6, 7, 8], [2.1, 3.9, 6.2, 7.8, 10.1, 12.2, 13.8, 16.1], Wanted("polynomial", None, "bic")
    )
    assert (noisy.fit.degree, "BIC" in noisy.fit.choice) == (1, True)


def test_predictions_have_two_intervals() -> None:
    """A textbook line (Montgomery, 2.1 worked by hand): the new point's interval is the wider one."""
    curve = _curve([1, 2, 3, 4, 5], [2, 4, 5, 4, 5])
    at = curve.at({"x": Fraction(3)})
    assert at.value == 4.0
    t, s = 3.182446305284263, (2.4 / 3) ** 0.5
    assert at.curve_high - 4 == pytest.approx(t * s * (1 / 5) ** 0.5, rel=1e-12)
    assert at.high - 4 == pytest.approx(t * s * (1 + 1 / 5) ** 0.5, rel=1e-12)


def test_models_of_logarithms_give_back_their_curve() -> None:
    """Exact exponential, power and logarithmic data are found as such, in their usual formulas."""
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert _curve(x, [3 * exp(0.5 * each) for each in x], Wanted("exponential")).fit.equation == "y = 3 e^(0.5 x)"
    assert _curve(x, [2 * each**1.5 for each in x], Wanted("power")).fit.equation == "y = 2 x^(1.5)"
    doubling = _curve([1, 2, 3, 4], [1, 2, 4, 8], Wanted("exponential"))
    assert (doubling.fit.r_squared, doubling.fit.f) == (1.0, None)
    assert doubling.at({"x": Fraction(10)}).value == pytest.approx(512, rel=1e-12)
    assert _curve([1, 10, 100, 1000], [0, 1, 2, 3.5], Wanted("logarithmic")).fit.coefficients[1].name == "b"


@pytest.mark.parametrize(
    ("x", "y", "wanted", "fault"),
    [
        ([1, 1, 1], [1, 2, 3], Wanted(), "x is the same in each row"),
        ([1, 2, 3], [2, 2, 2], Wanted(), "y is the same in each row"),
        ([1, 2], [1, 2], Wanted(), "2 coefficients need at least 3 points, and there are 2"),
        ([1], [1], Wanted(), "2 coefficients need at least 3 points, and there is 1"),
        ([1, 2, 3, 1, 2, 3], [1, 2, 3, 4, 5, 6], Wanted("polynomial", 3), "x\\^3 is collinear"),
        ([1, 2, 3], [1, 2, 3], Wanted("polynomial", 13), "degree from 1 to 12"),
        ([1, 2, 3, 4], [1, 2, 3, 4], Wanted("polynomial"), "at least 5 points"),
        ([1, 2, 3], [1, -2, 3], Wanted("exponential"), "y is -2 in point 2"),
        ([0, 2, 3], [1, 2, 3], Wanted("power"), "x is 0 in point 1"),
        ([1e-99, 2e-99, 3e-99, 4e-99, 5e-99], [1e99, 2e99, 3e99, 4e99, 6e99], Wanted("polynomial", 3), "other units"),
        ([0, 0, 0], [1, 2, 3], Wanted(has_constant=False), "x is the same in each row"),
    ],
)
def test_what_cannot_be_fitted_is_refused(x: list[float], y: list[float], wanted: Wanted, fault: str) -> None:
    """One sentence says why, and which column."""
    with pytest.raises(RequestError, match=fault):
        _curve(x, y, wanted)


def test_collinear_decimals_are_found() -> None:
    """Tenths are tenths: a column that is another one in other units is told, though floats would differ."""
    celsius = [0.1, 0.2, 0.3, 21.7, 35.5]
    table = read_data({"c": celsius, "f": [32.18, 32.36, 32.54, 71.06, 95.9], "y": [1, 2, 3, 4, 6]})
    *x, y = table.numbers(["c", "f", "y"])[0]
    with pytest.raises(RequestError, match="f is collinear: it can be computed from the constant, c"):
        regress(x, y, Wanted())


def test_work_is_bounded() -> None:
    """A degree that takes minutes on so many long numbers is refused before it is tried."""
    x = Column("x", [10**90 + place for place in range(200_000)], 1)
    with pytest.raises(RequestError, match="take too long"):
        regress([x], x, Wanted("polynomial", 12))


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=3, max_size=12))
def test_residuals_are_orthogonal(points: list[tuple[int, int]]) -> None:
    """Exactly: residuals sum to 0, also times x; and their squares are what the fit says."""
    try:
        curve = regress([Column("x", [x for x, _ in points], 1)], Column("y", [y for _, y in points], 1), Wanted())
    except RequestError:
        assert len({x for x, _ in points}) == 1 or len({y for _, y in points}) == 1
        return
    residuals = [y - curve.solution.value([Fraction(1), Fraction(x)]) for x, y in points]
    assert sum(residuals) == 0
    assert sum(x * each for (x, _), each in zip(points, residuals, strict=True)) == 0
    assert sum(each * each for each in residuals) == curve.solution.residual_squares


def test_distributions_are_those_of_the_tables() -> None:
    """Student's and Fisher's tables, and tails beyond them."""
    assert student_quantile(0.95, 9) == pytest.approx(2.262157162798205, rel=1e-13)
    assert student_quantile(0.99, 1_000_000) == pytest.approx(2.5758342, rel=1e-7)
    assert student_tail(12.706204736174698, 1) == pytest.approx(0.05, rel=1e-13)
    assert fisher_tail(4.256494729093748, 2, 9) == pytest.approx(0.05, rel=1e-13)
    assert student_tail(1e9, 30) == pytest.approx(3.9e-245, rel=0.5)
    assert (student_tail(0.0, 5), fisher_tail(0.0, 2, 5)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("12", (12, 0)),
        ("-1.50", (-150, -2)),
        ("+.5", (5, -1)),
        ("2e-3", (2, -3)),
        ("\N{MINUS SIGN}7.", (-7, 0)),
        ("0e99", (0, 0)),
    ],
)
def test_numbers_are_read_as_written(cell: str, number: tuple[int, int]) -> None:
    """No digit is rounded."""
    assert read_number(cell) == number


@pytest.mark.parametrize("cell", ["", "1,5", "0x10", "1e400", "1e-400", "inf", "nan", "1_000", "1" * 61, "٣", "=1+1"])
def test_what_is_no_number_is_refused(cell: str) -> None:
    """What people read in two ways, and what no float holds."""
    with pytest.raises(ValueError, match=r"expected a number|beyond"):
        read_number(cell)


def _pictures() -> list[Picture]:
    x, y = _columns("norris.csv", "y", ("x",))
    *several, employed = _columns("longley.csv", "employed", _ALL)
    return [
        regression_picture(regress([x], y, Wanted()), [x], y),
        regression_picture(regress(several, employed, Wanted()), several, employed),
        trend_picture(mann_kendall(x, y, 0.95), x, y),
    ]


def test_pictures_are_well_formed_and_hold_every_point() -> None:
    """SVG that a strict parser reads, with a dot for each point inside the frame, and PNG of twice its size."""
    for picture, points in zip(_pictures(), (36, 16, 36), strict=True):
        root = ET.fromstring(to_svg(picture))
        dots = root.findall("{http://www.w3.org/2000/svg}circle")
        assert len(dots) == points
        assert all(84 <= float(dot.get("cx", "")) <= 696 and 56 <= float(dot.get("cy", "")) <= 420 for dot in dots)
        png = to_png(picture)
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1440, 960)


@pytest.mark.parametrize(
    "name", ['"><script>alert(1)</script>', "]]>&amp;<!--", "\x00\x1b[31m\u202e", "\ud800 \ufffe", "=HYPERLINK(1)"]
)
def test_names_of_columns_do_nothing_in_a_picture(name: str) -> None:
    """Whatever a column is called is text, and nothing that XML forbids."""
    x, y = _column(name, [1, 2, 3, 4]), _column("y", [1, 2, 3, 5])
    svg = to_svg(regression_picture(regress([x], y, Wanted()), [x], y))
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "rect", "polyline", "polygon", "circle", "text"}
    to_png(Picture(100, 50, name, [Words(10, 20, name)]))


def test_many_points_are_thinned() -> None:
    """A picture of 20,000 points has at most 3,000, and says so."""
    x = Column("x", list(range(20_000)), 1)
    y = Column("y", [(place * 7) % 100 + place for place in range(20_000)], 1)
    picture = regression_picture(regress([x], y, Wanted()), [x], y)
    svg = to_svg(picture)
    assert svg.count("<circle") <= 3_000
    assert "each 7th of 20,000 points" in svg


@given(st.floats(-1e90, 1e90), st.floats(1e-90, 1e90))
@example(3.1234498077883412e16, 18.0)  # of which floats tell every fourth whole number
def test_ticks_are_in_order_and_told_apart(low: float, width: float) -> None:
    """Any range has an axis whose ticks rise, lie in it, and read unlike each other."""
    found = axis([low, low + width], "x")
    assert found.low < found.high
    assert list(found.ticks) == sorted(set(found.ticks))
    assert all(found.low <= tick <= found.high for tick in found.ticks)
    if width > abs(low) * 1e-6:
        assert len({found.text(tick) for tick in found.ticks}) == len(found.ticks)


def test_years_have_no_comma() -> None:
    """Numbers from ten thousand on have one, as people read them."""
    assert [axis([1947, 1962], "year").text(tick) for tick in axis([1947, 1962], "year").ticks][:2] == ["1948", "1950"]
    assert axis([0, 60_000], "x").text(20_000) == "20,000"


def test_number_too_long_for_python_is_told() -> None:
    """A whole number that Python would not write out is no cell, and is named by its size."""
    with pytest.raises(RequestError, match=r"row 1: expected a number .*16,610 bits"):
        read_data({"a": [10**5000]}).numbers(["a"])

"""The map of a claim without any run: axes, margins, the adaptive survey and the line."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.when_toys import CLAIM, Bill, Plan, price_of

from orrery.base.errors import ClaimError, OrreryError, StoreError, UsageError
from orrery.lab.cells import Runner
from orrery.lab.checking import Trial
from orrery.lab.claims import Claim, Verdict
from orrery.lab.store import Store
from orrery.lab.when import Map
from orrery.lab.when.axes import Axis, find_parameter, make_axis, parse_axis, with_values
from orrery.lab.when.book import Book
from orrery.lab.when.contour import in_values, lines
from orrery.lab.when.draw import axis_ticks, characters
from orrery.lab.when.points import Point, margin, point_of
from orrery.lab.when.survey import Survey

UNIT = {"owner": "problem", "lo": 0.0, "hi": 1.0}
X, Y = Axis(name="x", **UNIT), Axis(name="y", **UNIT)


def sampled(good, x=X, y=Y, **options):
    """A survey of a function: positive where the claim holds, None where nothing is known."""
    asked: list[tuple[float, float]] = []

    def judge(at_x, at_y):
        asked.append((at_x, at_y))
        score = good(at_x, at_y)
        if score is None:
            return Point(x=at_x, y=at_y, verdict="inconclusive")
        word = "holds" if score > 0 else "not here"
        return Point(x=at_x, y=at_y, verdict=word, measured=score, margin=score,
                     margin_lo=score - 1e-9, margin_hi=score + 1e-9)  # fmt: skip

    found = Survey(x, y, judge, **{"grid": 5, "depth": 3, "budget": 400, **options}).run()
    assert len(asked) == len(set(asked)) == len(found.values), "no point is judged twice"
    return found, asked


def mapped(survey):
    return Map(id="toy", n=0, claim=CLAIM, survey=survey)


# -- the line


def test_the_line_is_where_the_closed_form_puts_it():
    load = Axis(owner="problem", name="load", lo=10.0, hi=1000.0, log=True)
    price = Axis(owner="problem", name="price", lo=0.05, hi=5.0, log=True)
    survey, _ = sampled(lambda x, y: math.log(y / price_of(x)), load, price)
    (line,) = lines(survey)
    finest, _ = survey.finest()
    assert finest == 1 / 32
    for u, v in line:
        x = load.value(u)
        assert abs(v - price.share(price_of(x))) < finest
    # It runs through the whole map, from side to side, without a gap wider than a cell.
    across = sorted(u for u, _ in line)
    assert across[0] == 0.0 and across[-1] == 1.0
    assert max(b - a for a, b in itertools.pairwise(across)) <= finest + 1e-9
    values = in_values(survey, line)
    assert all(abs(math.log(y / price_of(x))) < 0.2 for x, y in values)


def test_points_gather_at_the_line():
    survey, asked = sampled(lambda x, y: y - 0.3 - 0.4 * x)
    near = [1 for x, y in asked if abs(y - 0.3 - 0.4 * x) < 0.125]
    assert len(near) > 0.6 * len(asked)
    assert len(asked) < 0.5 * 33 * 33, "the full grid of the finest step has 1089 points"
    assert survey.complete


def test_a_region_that_is_not_monotone_has_two_lines():
    survey, _ = sampled(lambda x, y: 0.2 - abs(y - 0.5 - 0.2 * math.sin(3 * x)))
    found = lines(survey)
    assert len(found) == 2
    for line in found:
        for u, v in line:
            assert abs(abs(v - 0.5 - 0.2 * math.sin(3 * u)) - 0.2) < 1 / 32


def test_a_region_in_two_parts_has_two_closed_lines():
    centres = ((0.26, 0.27), (0.73, 0.74))

    def good(x, y):
        return max(0.18 - math.hypot(x - a, y - b) for a, b in centres)

    survey, _ = sampled(good)
    found = lines(survey)
    assert len(found) == 2
    for line in found:
        assert line[0] == line[-1], "closed"
        assert all(abs(good(u, v)) < 1 / 32 for u, v in line)
    assert survey.shares()["yes"] == pytest.approx(2 * math.pi * 0.18**2, abs=0.03)


def test_a_hole_is_found():
    survey, _ = sampled(lambda x, y: math.hypot(x - 0.5, y - 0.5) - 0.2)
    (line,) = lines(survey)
    assert line[0] == line[-1]


def test_a_saddle_is_taken_apart_without_crossing():
    survey, _ = sampled(lambda x, y: (x - 0.49) * (y - 0.52))
    found = lines(survey)
    assert len(found) == 2
    ends = [end for line in found for end in (line[0], line[-1])]
    assert all(min(u, v, 1 - u, 1 - v) < 1e-9 for u, v in ends), "every line ends at a side"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_lines_end_only_at_the_sides_of_the_map(numbers):
    a, b, c, d, e, f, g, h, i = numbers

    def good(x, y):
        waves = a * math.sin(7 * x) + b * math.cos(6 * y) + c * math.sin(9 * x * y)
        return waves + d * x + e * y + f * x * y + g * (x - h) ** 2 + i / 3

    survey, _ = sampled(good, depth=2)
    for line in lines(survey):
        for u, v in (line[0], line[-1]):
            assert line[0] == line[-1] or min(u, v, 1 - u, 1 - v) < 1e-9
    assert len("".join(characters(mapped(survey), 20, 8))) > 160


def test_where_it_holds_everywhere_there_is_no_line():
    survey, asked = sampled(lambda x, y: 1.0)
    assert lines(survey) == []
    assert len(asked) == 25
    assert survey.complete
    assert survey.shares() == {"yes": 1.0, "no": 0.0, "open": 0.0}
    assert "holds at every point" in mapped(survey).sentence()


def test_no_line_is_drawn_towards_what_nobody_measured():
    survey, _ = sampled(lambda x, y: None if y > 0.7 else 1.0)
    assert lines(survey) == []
    assert survey.shares()["open"] > 0.2
    survey, _ = sampled(lambda x, y: None if y > 0.7 else x - 0.5)
    (line,) = lines(survey)
    assert all(abs(u - 0.5) < 1 / 32 for u, v in line if v < 0.65)


def test_a_verdict_without_a_figure_puts_the_line_in_the_middle():
    def judge(x, y):
        return Point(x=x, y=y, verdict="holds" if x > 0.5 else "not here")

    survey = Survey(X, Y, judge, grid=2, depth=0, budget=4).run()
    assert lines(survey) == [[(0.5, 0.0), (0.5, 1.0)]]


def test_a_gain_that_is_not_from_the_mechanism_does_not_hold():
    point = Point(x=0, y=0, verdict="gain not from the mechanism", margin=0.5)
    assert (point.state, point.score, point.measured_score) == ("no", -0.5, False)
    point = Point(x=0, y=0, verdict="holds in part", margin=-0.5)
    assert (point.state, point.score) == ("yes", 0.5)


# -- budget, order, refinement


@pytest.mark.parametrize("budget", [25, 26, 30, 47, 60])
def test_the_budget_is_kept_and_a_larger_one_only_adds(budget):
    def good(x, y):
        return y - x * x - 0.1

    _, asked = sampled(good, budget=budget)
    _, more = sampled(good, budget=budget + 40)
    assert len(asked) <= budget
    assert more[: len(asked)] == asked


def test_what_straddles_break_even_is_refined():
    def judge(x, y):
        score = x - 0.5
        return Point(x=x, y=y, verdict="holds", margin=0.4, margin_lo=score, margin_hi=1.0)

    survey = Survey(X, Y, judge, grid=3, depth=2, budget=200).run()
    assert len(survey.values) > 9
    assert all(cell.size == 4 for cell in survey.cells if cell.i >= 4 + 4), "the firm half is not"


def test_firm_disagreement_comes_before_what_is_open():
    def good(x, y):
        return None if x < 0.4 else y - 0.5

    _, asked = sampled(good, budget=40)
    # The cells left of 0.25 are wholly open, and none of them is touched.
    assert all(x >= 0.25 for x, _ in asked[25:])


def test_whole_numbers_are_judged_once_each():
    units = Axis(owner="problem", name="units", lo=1.0, hi=6.0, whole=True)
    survey, asked = sampled(lambda x, y: x - 3.5 + y / 9, units, Y, depth=5)
    assert {x for x, _ in asked} <= {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    (line,) = lines(survey)
    for u, v in line:
        x = 1 + 5 * u
        assert abs(x - 3.5 + v / 9) < 0.5


# -- axes


def test_axes_are_read():
    assert parse_axis("a.b=1:2") == ("a.b", 1.0, 2.0, "")
    assert parse_axis("load = 1e-3..5 ") == ("load", 1e-3, 5.0, "")
    assert parse_axis("load=1..50:lin").scale == "linear"
    assert parse_axis("x=-2:-1").lo == -2.0


@pytest.mark.parametrize("text", ["", "x", "x=", "x=1", "x=1:", "x=:2", "x=2:1", "x=1:1", "x=a:b",
                                  "x=nan:1", "x=0:inf", "=1:2", "x=1:2:cubic", "x=1:2:log:lin",
                                  "x=1...5"])  # fmt: skip
def test_bad_axes_are_refused(text):
    with pytest.raises(UsageError, match="axis"):
        parse_axis(text)


@pytest.fixture
def trial(tmp_path):
    return Trial(CLAIM, Plan, Bill(), Runner(Store(tmp_path)))


def test_parameters_find_their_owner(trial):
    assert find_parameter("load", trial) == ("problem", "load")
    assert find_parameter("fixed", trial) == ("ours", "fixed")
    assert find_parameter("network.latency_s", trial) == ("world", "network.latency_s")
    assert find_parameter("world.network.drop", trial) == ("world", "network.drop")
    assert make_axis(parse_axis("groups.node.count=1:9"), trial).whole
    assert make_axis(parse_axis("units=1:9"), trial).whole
    assert make_axis(parse_axis("load=1:1000"), trial).log
    assert not make_axis(parse_axis("load=1:1000:lin"), trial).log


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lod=1:2", 'did you mean "load"'), ("problem.nope=1:2", "no such knob"),
        ("network.nope=1:2", "unknown field"), ("label=1:2", "no number"),
        ("ours.trick=0:1", "no number"), ("units=1.5:2", "whole"), ("load=0:5:log", "above 0"),
        ("rival.fixed=1:2", "names no rival"), ("both.nope=1:2", "no such knob"),
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_axes_are_refused(trial, text, says):
    with pytest.raises(OrreryError, match=says):
        make_axis(parse_axis(text), trial)


def test_a_claim_is_changed_only_where_it_is_asked_to():
    changed = with_values(CLAIM, {("world", "network.drop"): 0.1, ("both", "fixed"): 3.0})
    assert (changed.world_set, changed.ours) == ({"network.drop": 0.1}, {"fixed": 3.0})
    assert changed.rival_knobs == {"fixed": 3.0}
    assert CLAIM.world_set == {} and CLAIM.ours == {}
    with pytest.raises(ClaimError, match="mechanism"):
        with_values(CLAIM, {("ours", "trick"): True})
    swept = Claim(metric="m", form="exponent", sweep={"problem.load": [1, 2]})
    with pytest.raises(ClaimError, match="sweeps"):
        with_values(swept, {("problem", "load"): 1.0})


# -- margins


@pytest.mark.parametrize(
    ("claim", "value", "expected"),
    [
        (Claim(metric="m", form="direction", better="higher"), 2.0, math.log(2 / 1.01)),
        (Claim(metric="m", form="direction", better="lower"), 2.0, -math.log(2 * 1.01)),
        (Claim(metric="m", form="ratio", says_lo=5.0, better="higher"), 1.01, 0.0),
        (Claim(metric="m", form="ratio", says_lo=1.01, better="higher"), 1.005, 0.0),
        (Claim(metric="m", form="ratio", says_lo=1.0, better="higher"), 0.99, 0.0),
        (Claim(metric="m", form="ratio", says_hi=0.5), 0.0, 20.0),
        (Claim(metric="m", form="direction", better="higher"), math.inf, 20.0),
        (Claim(metric="m", form="direction", better="higher"), 0.0, -20.0),
        (Claim(metric="m", form="absolute", says_hi=10.0, better="lower"), 5.0, 0.6),
        (Claim(metric="m", form="absolute", says_lo=10.0, better="higher"), 5.0, -0.4),
        (Claim(metric="m", form="absolute", says_lo=1.0, says_hi=2.0), 1.5, 0.35),
        (Claim(metric="m", form="exponent", says_hi=1.0, better="lower"), 1.0, 0.1),
        (Claim(metric="m", form="property"), 0.0, None),
        (Claim(metric="m", form="absolute"), 1.0, None),
        (Claim(metric="m", form="direction"), None, None),
        (Claim(metric="m", form="direction"), math.nan, None),
    ],
)
def test_margins(claim, value, expected):
    found = margin(claim, value)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_a_point_keeps_the_interval_on_the_right_side():
    claim = Claim(metric="m", form="direction", better="lower")
    point = point_of(1.0, 2.0, Verdict(claim=claim, verdict="holds", measured=0.5, lo=0.4, hi=0.8))
    assert point.margin_lo == pytest.approx(math.log(1 / 0.8 / 1.01))
    assert point.margin_hi == pytest.approx(math.log(1 / 0.4 / 1.01))
    assert not point.straddles
    inside = Claim(metric="m", form="absolute", says_lo=1.0, says_hi=2.0)
    point = point_of(0, 0, Verdict(claim=inside, verdict="holds", measured=1.5, lo=1.1, hi=1.9))
    assert point.margin_lo <= point.margin == point.margin_hi
    wild = point_of(0, 0, Verdict(claim=claim, verdict="inconclusive", lo=-math.inf, hi=math.inf))
    assert (wild.lo, wild.hi, wild.margin) == (None, None, None)


# -- the book


def test_a_torn_line_is_skipped_and_closed(tmp_path):
    book = Book({"q": 1}, tmp_path)
    book.put(Point(x=1.0, y=2.0, verdict="holds", margin=0.1))
    with book.path.open("ab") as file:
        file.write(b'{"x": 3.0, "y"')
    again = Book({"q": 1}, tmp_path)
    assert list(again.points) == [(1.0, 2.0)]
    again.put(Point(x=5.0, y=6.0, verdict=None))
    last = Book({"q": 1}, tmp_path)
    assert sorted(last.points) == [(1.0, 2.0), (5.0, 6.0)]
    assert last.points[(1.0, 2.0)] == book.points[(1.0, 2.0)]
    assert Book({"q": 2}, tmp_path).points == {}


def test_a_book_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be"):
        Book({"q": 1}, tmp_path / "file" / "in").put(Point(x=0.0, y=0.0, verdict=None))


# -- pictures


def test_the_picture_is_whole_and_tells_in_words():
    survey, _ = sampled(lambda x, y: None if x > 0.8 else y - 0.4)
    found = mapped(survey)
    text = found.svg()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "break-even" in text
    assert "holds on" in "".join(root.itertext())


def test_nothing_in_a_picture_is_markup_from_outside():
    survey, _ = sampled(lambda x, y: 1.0)
    found = Map(id="<b>", n=0, survey=survey,
                claim=Claim(metric="<script>x</script>", says='"&<'))  # fmt: skip
    ElementTree.fromstring(found.svg())
    assert "<script>" not in found.svg()


def test_the_characters_show_the_sides():
    survey, _ = sampled(lambda x, y: y - 0.5)
    told = characters(mapped(survey), 20, 9)
    rows = [line.split("|")[1] for line in told if "|" in line]
    assert set(rows[0]) == {"#"} and set(rows[-1]) == {"."} and set(rows[4]) == {"*"}
    assert all(len(row) == 20 for row in rows)


def test_ticks():
    wide = Axis(owner="world", name="x", lo=1e-6, hi=1e6, log=True)
    assert 4 <= len(axis_ticks(wide)) <= 14
    assert axis_ticks(Axis(owner="world", name="x", lo=1.0, hi=4.0, whole=True)) == [1, 2, 3, 4]

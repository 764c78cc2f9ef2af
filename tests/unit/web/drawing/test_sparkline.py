"""The small lines beside numbers: they stay in their picture, and show gaps as gaps."""

import re
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from muster.web.drawing.sparkline import HEIGHT, WIDTH, sparkline
from tests.properties import cheap

VALUES = st.lists(st.none() | st.floats(0, 1e13), min_size=1, max_size=60)


@cheap
@given(VALUES, st.floats(0, 1e12))
def test_a_line_stays_in_its_picture_and_breaks_at_each_gap(values, most):
    picture = sparkline([(2.0 * at, value) for at, value in enumerate(values)], most, "<CPU>")
    path = ET.fromstring(picture).find("path").get("d")
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    assert all(0 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    known = [value is not None for value in values]
    runs = sum(now and not before for before, now in zip([False, *known], known, strict=False))
    assert path.count("M") == runs
    assert path.count("M") + path.count("L") == sum(known)


def test_higher_values_are_drawn_higher_and_the_newest_at_the_right():
    picture = sparkline([(0, 1.0), (60, 2.0)], 2.0, "CPU")
    (left, low), (right, high) = re.findall(r"([\d.]+) ([\d.]+)", re.search(r' d="([^"]+)"', picture)[1])
    assert float(high) < float(low)
    assert (float(left), float(right)) == (0, WIDTH)


def test_there_is_no_picture_of_nothing():
    assert sparkline([], 1.0, "CPU") == ""

"""The heat map of attention shows every number at its row and column."""

import re
import xml.etree.ElementTree as ET

from bertkit.extensions.generation.heat_map import heat_map


def test_heat_map_has_a_square_per_value() -> None:
    cells = [[0.0, 0.25, 1.0], [0.5, 0.5, 0.0]]
    svg = ET.fromstring(
        heat_map(["a", "<b>"], ["x", "y & z", "</s>"], cells, x="read", y="written")
    )
    squares = [path for path in svg.iter("path") if path.attrib["class"] == "cell"]
    assert [float(path.attrib["fill-opacity"]) for path in squares] == [
        n for row in cells for n in row
    ]
    titles = [title.text for title in svg.iter("title")]
    assert titles[1] == "a y & z 0.250"
    assert titles[3] == "<b> x 0.500"
    starts = [tuple(map(float, re.findall(r"[\d.]+", path.attrib["d"])[:2])) for path in squares]
    assert starts[0][1] == starts[2][1] < starts[3][1]
    assert starts[0][0] == starts[3][0] < starts[1][0]
    assert {text.text for text in svg.iter("text")} == {
        "a",
        "<b>",
        "x",
        "y & z",
        "</s>",
        "read",
        "written",
    }

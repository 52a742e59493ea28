"""A result in a notebook: valid, escaped, and small."""

from __future__ import annotations

from xml.etree import ElementTree

from xmclab.python.html import POINTS, curves_as_html, paragraphs, table_as_html


def test_a_table_has_the_best_of_each_column_in_bold() -> None:
    table = ElementTree.fromstring(table_as_html("<one> & two", {"de": {"P@1": 5.0}, "a<b": {"P@1": 7.126}}))
    assert "".join(table.find("caption").itertext()) == "<one> & two"  # type: ignore[union-attr]
    assert [th.text for th in table.iterfind("tbody/tr/th")] == ["de", "a<b"]
    assert [bold.text for bold in table.iter("b")] == ["7.13"]


def test_what_is_bold_can_be_said() -> None:
    table = ElementTree.fromstring(table_as_html("one", {"a": {"P@1": 5.0}, "b": {"P@1": 7.0}}, {("a", "P@1")}))
    assert [bold.text for bold in table.iter("b")] == ["5.00"]


def test_a_curve_goes_from_the_first_loss_to_the_last() -> None:
    drawn = ElementTree.fromstring(curves_as_html([0, 1, 2], [3.0, 2.0, 1.0]))
    points = next(drawn.iter("polyline")).attrib["points"].split()
    heights = [float(point.partition(",")[2]) for point in points]
    assert heights == sorted(heights), "y grows downwards, and the loss falls"
    assert drawn.findtext("div") == "loss 3 to 1, 3 steps"
    assert curves_as_html([0], [1.0]) == ""


def test_long_and_flat_curves_are_drawn_too() -> None:
    drawn = curves_as_html(range(100_000), [0.5] * 100_000)
    assert len(next(ElementTree.fromstring(drawn).iter("polyline")).attrib["points"].split()) <= POINTS


def test_paragraphs_are_escaped() -> None:
    assert paragraphs(["a < b"]) == "<p>a &lt; b</p>"

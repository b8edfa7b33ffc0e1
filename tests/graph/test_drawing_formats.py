from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from suture import layers as sl
from suture import select
from suture.graph import Graph, Input, plot, trace
from suture.graph.drawing.dot import escaped, folded, quoted
from suture.graph.drawing.graphviz import render
from suture.graph.drawing.page import asset, frame
from tests.graph.drawn import TOKENS, decoder, traced

X = Input("x", shape=(None, 4))
HOSTILE = "</script ><!--<script><b onload=\"alert('x')\">\\N & ]]>"

needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="the program `dot` is not installed")


class Hostile(sl.Linear):
    """A layer that says such things of itself."""

    def extra_repr(self) -> str:
        return HOSTILE


def named(name: str) -> Graph:
    """A graph in which everything that can have any name has this one."""
    kind = type(name, (Hostile if name == HOSTILE else sl.Linear,), {})
    x = Input("x", shape=(None, 4))
    made = trace(kind(4, 4), x)
    return Graph(inputs={name: x}, outputs={name: made.outputs}, source=made.root)


def data(page: str) -> Any:
    """The picture that a page holds."""
    (found,) = re.findall(r'<script type="application/json" id="picture">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(found)


class Elements(HTMLParser):
    """The elements of a page, and every address in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [each for each in attrs if each[0] in ("src", "href", "srcset", "data", "action")]


# dot


def test_dot_names_clusters_by_path_and_folds_repeats() -> None:
    text = plot(traced(decoder(12))).dot
    assert "x12" in text
    assert text.count("<B>query</B>") == 1
    assert text.count("{") == text.count("}")


def test_dot_colours_what_was_added() -> None:
    model = sl.Chain(up=sl.Linear(4, 4))
    before = trace(model, X)
    select(model, "up").insert_after(sl.ReLU())
    (line,) = [line for line in plot(model, inputs=X, compared_with=before).dot.splitlines() if "<B>ReLU</B>" in line]
    assert 'color="#1a7f37"' in line


def test_dot_text_ends_no_string_and_no_label() -> None:
    assert quoted('a"b\\') == '"a\\"b\\\\"'
    assert escaped('<b>&"') == "&lt;b&gt;&amp;&quot;"
    assert escaped("\x00\x1b") == "��"


def test_captions_break_after_commas() -> None:
    assert folded("ScaledDotProductAttention(causal=True, scale=0.5)") == [
        "ScaledDotProductAttention(causal=True,",
        "scale=0.5)",
    ]
    assert folded("Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))") == [
        "Conv2d(3, 8, kernel_size=(3, 3),",
        "stride=(1, 1))",
    ]
    assert folded("") == []


@needs_graphviz
def test_graphviz_reads_every_name(tmp_path: Path) -> None:
    plot(named(HOSTILE), tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert text.count("&lt;/script &gt;") >= 2
    assert "<b onload" not in text


@needs_graphviz
def test_png_and_svg_are_such(tmp_path: Path) -> None:
    for name, start in (("x.png", b"\x89PNG"), ("x.svg", b"<?xml")):
        assert plot(sl.Linear(4, 2), tmp_path / name, inputs=X).path == tmp_path / name
        assert (tmp_path / name).read_bytes().startswith(start)


def test_without_graphviz_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"apt install graphviz.*html or \.dot, which need nothing"):
        plot(sl.Linear(4, 2), tmp_path / "x.svg", inputs=X)
    assert not (tmp_path / "x.svg").exists()
    plot(sl.Linear(4, 2), tmp_path / "x.html", inputs=X)
    plot(sl.Linear(4, 2), tmp_path / "x.dot", inputs=X)


def test_an_error_of_graphviz_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "dot"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such format')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no such format"):
        render("digraph {}", "svg")


# The page


def test_the_page_holds_the_whole_picture() -> None:
    page = plot(traced(decoder(12))).html
    boxes = data(page)["boxes"]
    assert sum(box["name"] == "query" for box in boxes) == 12
    assert [box["turns"] for box in boxes if box["role"] == "repeat"] == [12]
    # The page counts on this: what is inside of a box follows it.
    assert all(box["parent"] is None or box["parent"] < number for number, box in enumerate(boxes))


def test_the_page_loads_nothing() -> None:
    page = plot(traced(decoder(2))).html
    elements = Elements(page)
    assert elements.addresses == []
    assert {"link", "img", "iframe", "base"}.isdisjoint(elements.tags)
    assert "default-src 'none'" in page
    assert "sourceMappingURL" not in page


def test_names_are_text_in_the_page() -> None:
    page, plain = plot(named(HOSTILE)).html, plot(named("plain")).html
    assert Elements(page).tags == Elements(plain).tags
    # Python's parser is not as eager to end a script as browsers are.
    assert page.count("</script") == plain.count("</script")
    assert HOSTILE in {box["name"] for box in data(page)["boxes"]}


def test_the_page_has_the_licence_of_the_library_in_it() -> None:
    page = plot(sl.Linear(4, 2), inputs=X).html
    assert "Permission is hereby granted, free of charge" in page
    assert asset("dagre-3.1.3.LICENSE.txt") in page


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    made = plot(sl.Linear(4, 2), inputs=X)
    html = made._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html == frame(made.html)
    assert Elements(html).tags == ["iframe"]
    assert 'sandbox="allow-scripts"' in html


# plot


def test_the_ending_of_the_file_says_the_format(tmp_path: Path) -> None:
    plot(sl.Linear(4, 2), tmp_path / "a.dot", inputs=X)
    plot(sl.Linear(4, 2), str(tmp_path / "a.HTML"), inputs=X)
    assert (tmp_path / "a.dot").read_text().startswith("digraph {")
    assert (tmp_path / "a.HTML").read_text().startswith("<!DOCTYPE html>")


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.html, \.dot.*x\.pdf"):
        plot(sl.Linear(4, 2), tmp_path / "x.pdf", inputs=X)


def test_a_tree_that_does_not_know_its_inputs_needs_them() -> None:
    with pytest.raises(TypeError, match="inputs="):
        plot(sl.Linear(4, 2))


def test_a_backbone_knows_its_inputs() -> None:
    assert repr(plot(decoder(1))) == repr(plot(decoder(1), inputs=TOKENS))


def test_a_graph_with_a_cache_is_drawn_with_it() -> None:
    state, x = Input("state", shape=(None, 4)), Input("x", shape=(None, 4))
    graph = Graph(inputs={"x": x, "state": state}, outputs=(x * 2, state + x))
    cached = graph.with_cache(lambda batch, length: torch.zeros(batch, 4), inputs="state")
    assert [box["name"] for box in data(plot(cached).html)["boxes"] if box["cache"]] == ["state", "output 1"]

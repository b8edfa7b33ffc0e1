"""`diff` says what an edit changed, as paths and as a tree."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
from torch import nn

from suture import diff, select
from suture import layers as sl


def block(width: int = 4) -> sl.Chain:
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(width, eps=1e-6), query=sl.Linear(width, width, bias=False)),
        feedforward=sl.Residual(norm=sl.RMSNorm(width, eps=1e-6), up=sl.Linear(width, width), act=sl.SiLU()),
    )


@pytest.fixture
def model() -> sl.Chain:
    return sl.Chain(embedding=sl.Embedding(10, 4), blocks=sl.Stack(*(block() for _ in range(4))), head=sl.Linear(4, 10))


@pytest.fixture
def before(model: sl.Chain) -> sl.Chain:
    return copy.deepcopy(model)


def lines(found: object) -> list[str]:
    return str(found).splitlines()


class TestPaths:
    def test_equal_trees(self, model: sl.Chain, before: sl.Chain) -> None:
        found = diff(before, model)
        assert not found
        assert (found.added, found.removed, found.changed) == ((), (), ())
        assert str(found) == "No difference."

    def test_what_was_put_around_a_layer_leaves_it_the_same(self, model: sl.Chain, before: sl.Chain) -> None:
        edit = select(model, "1.attention.query").wrap(lambda linear: sl.Sum(linear, low=sl.Linear(4, 4)))
        found = diff(before, model)
        assert found.added == ("blocks.1.attention.query+Sum", "blocks.1.attention.query+Sum.low")
        assert (found.removed, found.changed) == ((), ())
        back = diff(model, before)
        assert (back.added, back.removed, back.changed) == ((), found.added, ())
        edit.undo()
        assert not diff(before, model)

    def test_inserted_removed_replaced(self, model: sl.Chain, before: sl.Chain) -> None:
        select(model, "2.feedforward.act").replace(sl.GELU())
        select(model, "0.feedforward").remove()
        select(model, "blocks.1").insert_after(lambda _: sl.Dropout(0.1))
        found = diff(before, model)
        assert found.added == ("blocks.Dropout",)
        assert found.removed == tuple(f"blocks.0.feedforward{name}" for name in ("", ".norm", ".up", ".act"))
        assert found.changed == ("blocks.2.feedforward.act",)

    def test_another_root(self, model: sl.Chain) -> None:
        assert diff(sl.Chain(a=sl.ReLU()), sl.Residual(a=sl.ReLU())).changed == ("",)

    def test_weights_that_are_frozen_or_cast_or_of_another_shape(self, model: sl.Chain, before: sl.Chain) -> None:
        class Shift(nn.Module):
            def __init__(self, size: int) -> None:
                super().__init__()
                self.shift = nn.Parameter(torch.zeros(size))

        select(model, "embedding").freeze()
        model.layer("head").to(torch.bfloat16)
        before.append(Shift(3))
        model.append(Shift(4))
        assert diff(before, model).changed == ("embedding", "head", "Shift")
        shown = str(diff(before, model))
        assert all(note in shown for note in ("(was trained)", "(was float32)", "(was (3,))"))

    def test_a_composite_with_weights_of_its_own(self) -> None:
        class Shifted(sl.Chain):
            def __init__(self, *layers: nn.Module) -> None:
                super().__init__(*layers)
                self.shift = nn.Parameter(torch.zeros(3))

        before, after = sl.Chain(Shifted(sl.Linear(2, 2))), sl.Chain(Shifted(sl.Linear(2, 2)))
        after.layer("Shifted.Linear").requires_grad_(False)
        assert diff(before, after).changed == ("Shifted.Linear",)
        after.requires_grad_(False)
        assert diff(before, after).changed == ("Shifted", "Shifted.Linear")

    def test_weights_that_were_tied_or_untied(self) -> None:
        untied = sl.Chain(embedding=sl.Embedding(10, 4), head=sl.Linear(4, 10, bias=False))
        tied = copy.deepcopy(untied)
        tied.layer("head", sl.Linear).weight = tied.layer("embedding", sl.Embedding).weight
        assert diff(untied, tied).changed == diff(tied, untied).changed == ("head",)
        assert "(was not tied, tied to embedding)" in str(diff(untied, tied))
        assert "(was tied to embedding)" in str(diff(tied, untied))

    def test_values_are_not_compared(self, model: sl.Chain, before: sl.Chain) -> None:
        nn.init.zeros_(model.layer("head", sl.Linear).weight)
        assert not diff(before, model)

    def test_another_order(self) -> None:
        a, b, c = sl.Linear(2, 2), sl.ReLU(), sl.GELU()
        found = diff(sl.Chain(a=a, b=b, c=c), sl.Chain(b=b, c=c, a=a))
        assert (found.added, found.removed, found.changed) == ((), (), ("a",))

    def test_plain_modules(self) -> None:
        inner = nn.Sequential(nn.ReLU())
        after = nn.Sequential(nn.Linear(2, 2), inner)
        before = copy.deepcopy(after)
        select(after, ".0").wrap(lambda linear: sl.Sum(linear, low=sl.Linear(2, 2)))
        inner.append(nn.GELU())
        assert diff(before, after).added == ("0+Sum", "0+Sum.low", "1.1")


class TestPrinted:
    def test_the_second_tree_with_marks(self, model: sl.Chain, before: sl.Chain) -> None:
        select(model, "query").wrap(lambda linear: sl.Sum(linear, low=sl.Linear(4, 4, bias=False)))
        select(model, "2.feedforward.act").replace(sl.GELU())
        select(model, "1.feedforward.up").remove()
        assert lines(diff(before, model)) == [
            "  Chain                  8 added, 1 removed, 1 changed",
            "  ├─ … embedding",
            "  ├─ blocks: Stack                                 220",
            "  │  ├─ 0: Chain                                    60",
            "  │  │  ├─ attention: Residual                      36",
            "  │  │  │  ├─ … norm",
            "+ │  │  │  └─ query+Sum: Sum                        32",
            "  │  │  │     ├─ … query",
            "+ │  │  │     └─ low: Linear(4 → 4, bias=False)     16",
            "  │  │  └─ … feedforward",
            "  │  ├─ 1: Chain                                    40",
            "▹ │  │  ├─ attention: Residual  (like 0.attention)  36",
            "  │  │  └─ feedforward: Residual                     4",
            "  │  │     ├─ … norm",
            "- │  │     ├─ up: Linear(4 → 4)                     20",
            "  │  │     └─ … act",
            "  │  ├─ 2: Chain                                    60",
            "▹ │  │  ├─ attention: Residual  (like 0.attention)  36",
            "  │  │  └─ feedforward: Residual                    24",
            "  │  │     ├─ … norm, up",
            "~ │  │     └─ act: GELU  (was SiLU)",
            "▹ │  └─ 3: Chain  (like 0)                          60",
            "  └─ … head",
        ]

    def test_what_was_removed_stands_where_it_stood(self) -> None:
        layers = {name: sl.ReLU() for name in "abcdef"}
        before, after = sl.Chain(layers), sl.Chain({name: layers[name] for name in "bcf"})
        shown = [line.split("─ ")[1].strip("… ").split(":")[0] for line in lines(diff(before, after))[1:]]
        assert shown == ["a", "b, c", "d", "e", "f"]

    def test_a_removed_composite_shows_what_left_with_it(self) -> None:
        inner = sl.Linear(2, 2)
        before = sl.Chain(outer=sl.Chain(kept=inner, gone=sl.ReLU()))
        after = sl.Chain(kept=inner)
        assert [line[:2] + line[2:].strip("├└─│ ").split("  ")[0] for line in lines(diff(before, after))[1:]] == [
            "- outer: Chain",
            "- kept: Linear(2 → 2)",
            "- gone: ReLU",
            "+ kept: Linear(2 → 2)",
        ]

    def test_the_models_stay_as_they_are(self, model: sl.Chain, before: sl.Chain) -> None:
        shown = repr(model), repr(before)
        select(model, "act").replace(lambda _: sl.GELU())
        str(diff(before, model))
        diff(model, before)
        assert repr(before) == shown[1]
        assert diff(before, model).changed == tuple(f"blocks.{number}.feedforward.act" for number in range(4))

    def test_coloured_by_rich(self, model: sl.Chain, before: sl.Chain) -> None:
        from rich.console import Console

        del model["head"]
        file = io.StringIO()
        found = diff(before, model)
        Console(file=file, force_terminal=True, width=60, color_system="standard").print(found)
        assert "\x1b[1;31m- " in file.getvalue()
        assert re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).rstrip().splitlines() == lines(found)

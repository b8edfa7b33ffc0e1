from __future__ import annotations

import io
import re
import time

import pytest
import torch
from torch import Tensor, nn

from suture import layers as sl
from suture import select
from suture.layers.label import amount, label
from suture.layers.printing import drawing, excerpt, tree


def block(width: int = 4) -> sl.Chain:
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(width, eps=1e-6), query=sl.Linear(width, width, bias=False)),
        feedforward=sl.Residual(norm=sl.RMSNorm(width, eps=1e-6), up=sl.Linear(width, width), act=sl.SiLU()),
    )


@pytest.fixture
def model() -> sl.Chain:
    embedding, head = sl.Embedding(10, 4), sl.Linear(4, 10, bias=False)
    head.weight = embedding.weight
    return sl.Chain(embedding=embedding, blocks=sl.Stack(*(block() for _ in range(6))), head=head)


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_the_whole_tree(model: sl.Chain) -> None:
    assert lines(tree(model, width=80)) == [
        "Chain                                 304 float32 parameters",
        "├─ embedding: Embedding(10, 4)                            40",
        "├─ blocks: Stack                                         264",
        "│  └─ 0..5 (x6): Chain                                6 x 44",
        "│     ├─ attention: Residual                              20",
        "│     │  ├─ norm: RMSNorm(4, eps=1e-06)                    4",
        "│     │  └─ query: Linear(4 → 4, bias=False)              16",
        "│     └─ feedforward: Residual                            24",
        "│        ├─ norm: RMSNorm(4, eps=1e-06)                    4",
        "│        ├─ up: Linear(4 → 4)                             20",
        "│        └─ act: SiLU",
        "└─ head: Linear(4 → 10, bias=False)  (tied to embedding)  40",
    ]


def test_repr_is_the_tree(model: sl.Chain) -> None:
    assert repr(model) == tree(model)


def test_an_unnamed_layer_goes_by_its_class() -> None:
    assert lines(tree(sl.Chain(sl.ReLU(), sl.GELU(), sl.ReLU()))) == ["Chain", "├─ ReLU", "├─ GELU", "└─ ReLU_2: ReLU"]


def test_consecutive_unnamed_layers_fold() -> None:
    assert lines(tree(sl.Chain(*(sl.ReLU() for _ in range(3))))) == ["Chain", "└─ ReLU..ReLU_3 (x3): ReLU"]


def test_different_names_do_not_fold() -> None:
    assert len(lines(tree(sl.Parallel(query=sl.Linear(2, 2), key=sl.Linear(2, 2))))) == 3


@pytest.mark.parametrize("other", [sl.Dropout(0.2), sl.Identity(), sl.Chain(sl.Dropout(0.1))])
def test_what_prints_differently_does_not_fold(other: nn.Module) -> None:
    shown = lines(tree(sl.Stack(sl.Dropout(0.1), sl.Dropout(0.1), other, sl.Dropout(0.1))))
    assert shown[1] == "├─ 0..1 (x2): Dropout(p=0.1)"
    assert shown[-1].endswith(": Dropout(p=0.1)")


def test_names_that_do_not_count_on_do_not_fold(model: sl.Chain) -> None:
    blocks = model.layer("blocks", sl.Stack)
    blocks.remove(blocks[2])
    blocks.insert(1, block())
    shown = [line.split(":")[0] for line in lines(tree(blocks)) if "Chain" in line]
    assert shown == ["├─ 0", "├─ 6", "├─ 1", "└─ 3..5 (x3)"]


def test_the_mode_and_training_do_not_matter_for_folding(model: sl.Chain) -> None:
    model.layer("blocks.3").eval().requires_grad_(False)
    assert "0..5 (x6)" in tree(model)


def test_what_is_like_an_earlier_sibling_is_not_repeated(model: sl.Chain) -> None:
    model.layer("blocks.2", sl.Chain).append(sl.Dropout(0.1))
    query = model.layer("blocks.4.attention.query")
    model.layer("blocks.4.attention", sl.Residual).replace(query, sl.Sum(query, sl.Lambda(torch.relu)))
    assert lines(tree(model.layer("blocks", sl.Stack)))[9:] == [
        "├─ 2: Chain                                                         44",
        "│  ├─ attention: Residual                                           20",
        "│  │  ├─ norm: RMSNorm(4, eps=1e-06)                                 4",
        "│  │  └─ query: Linear(4 → 4, bias=False)                           16",
        "│  ├─ feedforward: Residual  (like 0.feedforward)                   24",
        "│  └─ Dropout(p=0.1)",
        "├─ 3: Chain  (like 0)                                               44",
        "├─ 4: Chain                                                         44",
        "│  ├─ attention: Residual                                           20",
        "│  │  ├─ norm: RMSNorm(4, eps=1e-06)                                 4",
        "│  │  └─ query+Sum: Sum                                             16",
        "│  │     ├─ query: Linear(4 → 4, bias=False)  (owned by attention)  16",
        "│  │     └─ Lambda(relu)",
        "│  └─ feedforward: Residual  (like 0.feedforward)                   24",
        "└─ 5: Chain  (like 0)                                               44",
    ]


def test_what_is_like_an_earlier_branch_deeper_in_is_not_repeated() -> None:
    def outer(*more: nn.Module) -> sl.Chain:
        same = sl.Chain(sl.ReLU(), sl.GELU(), sl.SiLU())
        return sl.Chain(outer=sl.Chain(middle=sl.Chain(sl.Chain(same=same), *more)))

    assert lines(tree(sl.Stack(outer(), outer(sl.Identity()))))[-2:] == [
        "         ├─ Chain  (like 0.outer.middle.Chain)",
        "         └─ Identity",
    ]


def test_a_home_that_is_no_longer_wired_is_named_by_its_path() -> None:
    model = sl.Chain(heads=sl.Chain(query=sl.Linear(2, 2), other=sl.Linear(2, 2)))
    heads = model.layer("heads", sl.Chain)
    model.replace(heads, sl.Residual(heads[0]))
    assert lines(tree(model)) == [
        "Chain                      6 float32 parameters",
        "└─ heads+Residual: Residual                   6",
        "   └─ query: Linear(2 → 2)  (owned by heads)  6",
    ]


def test_a_structural_copy_says_whose_weights_it_has(model: sl.Chain) -> None:
    blocks = model.layer("blocks", sl.Stack)
    before = sum(parameter.numel() for parameter in model.parameters())
    blocks.insert_after(blocks[3], blocks.layer("3", sl.Chain).structural_copy())
    shown = tree(model)
    assert "6: Chain  (tied to 3)" in shown
    assert f"{before} float32 parameters" in shown


def test_copies_of_one_block_fold() -> None:
    first = block()
    shown = lines(tree(sl.Stack(first, *(first.structural_copy() for _ in range(3)))))
    assert shown[1].split() == ["└─", "0..3", "(x4):", "Chain", "(tied", "to", "one", "another)", "44"]
    assert len(shown) == 9


def test_a_copy_does_not_fold_with_independent_blocks() -> None:
    first, second = block(), block()
    shown = tree(sl.Stack(first, second, second.structural_copy(), block()))
    assert [line.strip("├─└│ ").split("  ")[0] for line in lines(shown) if "Chain" in line] == [
        "0..1 (x2): Chain",
        "2: Chain",
        "3: Chain",
    ]
    assert "(tied to 1)" in shown


def test_a_copy_of_one_of_several_does_not_fold_with_them() -> None:
    first = block()
    assert (
        len([line for line in lines(tree(sl.Stack(first, block(), first.structural_copy()))) if "Chain" in line]) == 2
    )


def test_what_is_tied_to_different_layers_does_not_fold() -> None:
    tables = [sl.Embedding(5, 4), sl.Embedding(5, 4)]
    blocks = [sl.Chain(norm=sl.RMSNorm(4), head=sl.Linear(4, 5, bias=False)) for _ in tables]
    for one, table in zip(blocks, tables, strict=True):
        one.layer("head", sl.Linear).weight = table.weight
    shown = tree(sl.Chain(*tables, heads=sl.Stack(*blocks)))
    assert "(tied to Embedding)" in shown
    assert "(tied to Embedding_2)" in shown


def test_how_many_parameters_are_trained(model: sl.Chain) -> None:
    model.layer("blocks").requires_grad_(False)
    assert lines(tree(model))[0].endswith("304 float32 parameters, 40 trainable")


def test_the_dtype_is_said_where_there_is_one(model: sl.Chain) -> None:
    assert "304 bfloat16 parameters" in tree(model.to(torch.bfloat16))
    model.layer("head").to(torch.float64)
    assert "304 parameters" in tree(model)


def test_parameters_of_a_composite_count_once() -> None:
    class Shifted(sl.Chain):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__(inner)
            self.shift = nn.Parameter(torch.zeros(3))

    assert lines(tree(sl.Chain(Shifted(sl.Linear(2, 2))))) == [
        "Chain  9 float32 parameters",
        "└─ Shifted                9",
        "   └─ Linear(2 → 2)       6",
    ]


def test_plain_modules_are_entered() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ModuleDict({"inner": sl.Chain(nn.Linear(2, 2))}))
    assert lines(tree(sl.Chain(plain))) == [
        "Chain           18 float32 parameters",
        "└─ Sequential                      18",
        "   ├─ 0..1 (x2): Linear(2 → 2)  2 x 6",
        "   └─ 2: ModuleDict                 6",
        "      └─ inner: Chain               6",
        "         └─ Linear(2 → 2)           6",
    ]


def test_a_plain_module_as_the_root() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert lines(tree(model)) == [
        "Sequential  6 float32 parameters",
        "├─ 0: Linear(2 → 2)            6",
        "└─ 1: ReLU",
    ]


def test_layers_of_different_owners_do_not_fold() -> None:
    model = sl.Chain(sl.Linear(2, 2))
    model.replace(model[0], sl.Sum(model[0], sl.Linear(2, 2)))
    assert [line.rpartition("  ")[0].strip() for line in lines(tree(model))[2:]] == [
        "├─ Linear(2 → 2)  (owned by the root)",
        "└─ Linear_2: Linear(2 → 2)",
    ]


def test_what_was_put_into_a_plain_module_stands_beside() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())
    edit = select(model, "0").wrap(lambda linear: sl.Sum(linear, sl.Linear(2, 2, bias=False)))
    assert [line.rpartition("  ")[0].rstrip() for line in lines(tree(model))[1:3]] == [
        "├─ 0+Sum: Sum",
        "│  ├─ 0: Linear(2 → 2, bias=False)  (owned by the root)",
    ]
    edit.undo()


def test_a_plain_module_at_two_places_has_its_layers_once() -> None:
    shared = nn.Sequential(nn.Linear(2, 2))
    assert lines(tree(nn.ModuleList([shared, shared]))) == [
        "ModuleList  6 float32 parameters",
        "├─ 0: Sequential               6",
        "│  └─ 0: Linear(2 → 2)         6",
        "└─ 1: Sequential  (tied to 0)  6",
    ]


# In colours


def coloured(shown: object, width: int = 60, terminal: bool = True) -> str:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, force_terminal=terminal, width=width, color_system="standard" if terminal else None).print(shown)
    return file.getvalue()


def test_rich_prints_a_composite_in_colours(model: sl.Chain) -> None:
    shown = coloured(model)
    assert "\x1b[1mblocks: \x1b[0m\x1b[36mStack\x1b[0m" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines() == lines(tree(model, width=60))


def test_rich_prints_plain_text_where_there_are_no_colours(model: sl.Chain) -> None:
    assert coloured(model, terminal=False).splitlines() == lines(tree(model, width=60))


def test_a_selection_is_printed_in_colours(model: sl.Chain) -> None:
    selection = select(model, "embedding")
    shown = coloured(selection)
    assert "\x1b[1;35m▸ \x1b[0m" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines() == lines(repr(selection))
    assert lines(repr(selection))[-1] == "1 of 51 layers selected"


def test_repr_and_str_are_plain_text_on_a_terminal(model: sl.Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in repr(model) + str(model) + repr(drawing(model))


@pytest.mark.parametrize("width", [40, 47, 60])
def test_a_coloured_line_is_cut_and_never_broken(model: sl.Chain, width: int) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", coloured(model, width=width)).splitlines()
    assert shown == lines(tree(model, width=width))
    assert max(map(len, shown)) <= width


def test_a_terminal_too_narrow_for_a_tree_gets_a_line_for_each_line(model: sl.Chain) -> None:
    assert len(coloured(model, width=20).splitlines()) == len(lines(tree(model)))


def test_markup_in_a_name_is_text() -> None:
    class Wordy(nn.Module):
        def extra_repr(self) -> str:
            return "[bold]x[/bold]"

    assert "Wordy([bold]x[/bold])" in coloured(sl.Chain(Wordy()), terminal=False)


def test_the_terminal_says_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sl.Chain(sl.Lambda(print), sl.Conv2d(3, 4, (3, 3), padding=1, padding_mode="circular", dtype=torch.float32))
    model.append(sl.Chain(sl.Chain(sl.Chain(sl.Chain(sl.Conv2d(3, 4, (3, 3), padding=1, padding_mode="circular"))))))
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, lines(repr(model)))) == 50
    monkeypatch.delenv("COLUMNS")
    assert repr(model) == tree(model, width=120)


def test_lazy_parameters_have_no_size_yet() -> None:
    assert lines(tree(sl.Chain(nn.LazyLinear(3))))[1] == "└─ LazyLinear(0 → 3)"


def test_depth_closes_what_is_below(model: sl.Chain) -> None:
    assert [line.rpartition("  ")[0].rstrip() for line in lines(tree(model, depth=2, width=60))[2:4]] == [
        "├─ blocks: Stack",
        "│  └─ 0..5 (x6): Chain …",
    ]
    assert lines(tree(model, depth=0)) == ["Chain …  304 float32 parameters"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_said(width: int) -> None:
    layer: nn.Module = sl.Chain(a_long_name_for_a_small_layer=sl.Linear(4, 4), b=sl.Conv2d(3, 4, (3, 3), padding=1))
    for _ in range(8):
        layer = sl.Chain(inner=layer)
    assert isinstance(layer, sl.Chain)
    assert max(map(len, lines(tree(layer, width=width)))) <= width


def test_a_note_outlives_the_text_before_it() -> None:
    query = sl.Linear(4096, 4096, bias=False)
    model = sl.Chain(projections=sl.Chain(query=query))
    model.layer("projections", sl.Chain).replace(query, sl.Sum(query, sl.Identity()))
    line = lines(tree(model, width=60))[3]
    assert line == "      ├─ query: Linear(4096 …  (owned by projections)  16.8M"


def test_marks_show_what_leads_to_them(model: sl.Chain) -> None:
    marked = {f"blocks.{n}.feedforward.act" for n in range(4)} | {"embedding"}
    assert lines(tree(model, marked=marked)) == [
        "  Chain       304 float32 parameters",
        "▸ ├─ embedding: Embedding(10, 4)  40",
        "  ├─ blocks: Stack               264",
        "  │  ├─ 0..3 (x4): Chain      4 x 44",
        "  │  │  ├─ … attention",
        "  │  │  └─ feedforward: Residual  24",
        "  │  │     ├─ … norm, up",
        "▸ │  │     └─ act: SiLU",
        "  │  └─ … 4..5",
        "  └─ … head",
    ]


def test_marks_in_what_is_not_repeated_show_as_inside(model: sl.Chain) -> None:
    marked = {f"blocks.{n}.attention.query" for n in (0, 1, 3)} | {f"blocks.{n}.attention.norm" for n in (0, 1, 3)}
    assert any(line.startswith("▹ │  ├─ 3: Chain  (like 0)") for line in lines(tree(model, marked=marked)))


def test_the_model_is_not_called() -> None:
    class Untouchable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError

    assert "Untouchable" in tree(sl.Chain(Untouchable()))


def test_thirty_blocks_print_fast() -> None:
    with torch.device("meta"):
        model = sl.Chain(blocks=sl.Stack(*(sl.Chain(block(), block(), block()) for _ in range(30))))
    tree(model)
    started = time.process_time()
    tree(model)
    assert time.process_time() - started < 0.1


# The part around a failing layer


def test_an_excerpt_around_a_leaf(model: sl.Chain) -> None:
    assert lines(excerpt(model, "blocks.3.feedforward.up")) == [
        "  blocks.3: Chain",
        "  ├─ … attention",
        "  └─ feedforward: Residual",
        "     ├─ norm: RMSNorm(4, eps=1e-06)",
        "▸    ├─ up: Linear(4 → 4)",
        "     └─ act: SiLU",
    ]


def test_an_excerpt_around_a_block(model: sl.Chain) -> None:
    assert lines(excerpt(model, "blocks.3")) == [
        "  Chain",
        "  ├─ … embedding",
        "  ├─ blocks: Stack",
        "  │  ├─ 0..2 (x3): Chain …",
        "▸ │  ├─ 3: Chain …",
        "  │  └─ 4..5 (x2): Chain …",
        "  └─ … head",
    ]


def test_an_excerpt_around_a_child_of_the_root(model: sl.Chain) -> None:
    assert lines(excerpt(model, "head")) == [
        "  Chain",
        "  ├─ embedding: Embedding(10, 4)",
        "  ├─ blocks: Stack …",
        "▸ └─ head: Linear(4 → 10, bias=False)  (tied to embedding)",
    ]


def test_an_excerpt_is_short_and_marks_one_layer() -> None:
    wide = sl.Chain(*(sl.Chain(*(nn.Linear(2, width) for width in range(1, 30))) for _ in range(20)))
    for place in list(wide.places())[::47]:
        shown = lines(excerpt(wide, place.path))
        assert len(shown) <= 12
        assert [line for line in shown if line.startswith("▸")] == [line for line in shown if "▸" in line]
        assert sum(line.startswith("▸") for line in shown) == 1


def test_an_excerpt_of_nothing_is_an_error(model: sl.Chain) -> None:
    with pytest.raises(LookupError, match=r"Chain has no layer at 'blocks.9'"):
        excerpt(model, "blocks.9")


# Labels


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Linear(3, 4), "Linear(3 → 4)"),
        (nn.Linear(3, 4, bias=False), "Linear(3 → 4, bias=False)"),
        (nn.LayerNorm(4), "LayerNorm(4, eps=1e-05)"),
        (nn.LayerNorm([4, 5]), "LayerNorm((4, 5), eps=1e-05)"),
        (nn.Conv2d(3, 4, 3), "Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))"),
        (nn.Dropout(0.1), "Dropout(p=0.1)"),
        (nn.GELU(), "GELU"),
        (nn.GELU("tanh"), "GELU(approximate='tanh')"),
        (nn.ReLU(inplace=True), "ReLU(inplace=True)"),
        (nn.Sequential(nn.ReLU()), "Sequential"),
    ],
)
def test_labels(layer: nn.Module, text: str) -> None:
    assert label(layer) == text


def test_a_label_is_one_line() -> None:
    class Wordy(nn.Module):
        def extra_repr(self) -> str:
            return "first,\n  second={'a': 1, 'b': 2}"

    assert label(Wordy()) == "Wordy(first, second={'a': 1, 'b': 2})"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (999_949, "999.9K"),
        (999_960, "1.0M"),
        (7_241_732_096, "7.2B"),
        (10**12, "1.0T"),
    ],
)
def test_amounts(number: int, text: str) -> None:
    assert amount(number) == text

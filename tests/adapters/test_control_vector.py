from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.fx import GraphModule

import suture
from suture import CausalLM, ControlVector, SelectionError
from suture import layers as sl
from suture.adapters import Steer

WORDS = ["<s>", "good", "bad", "day", "night", "very", "so"]


def tiny_lm(blocks: int = 3, dim: int = 8) -> CausalLM:
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    stack = sl.Stack(*(sl.Chain(sl.Residual(sl.Linear(dim, dim))) for _ in range(blocks)))
    return CausalLM(
        sl.Chain(embedding=sl.Embedding(len(WORDS), dim), blocks=stack), sl.Linear(dim, len(WORDS)), tokenizer
    )


def outputs(lm: CausalLM, path: str, text: str) -> Tensor:
    """What the block at `path` returns for the last token of a text, run by hand."""
    assert lm.tokenizer is not None
    x = lm.backbone.layer("embedding")(torch.tensor([lm.tokenizer.encode(text)]))
    for number, block in enumerate(lm.backbone.layer("blocks", sl.Stack)):
        x = block(x)
        if path.endswith(f".{number}"):
            break
    return x[0, -1].detach()


def test_mean_is_the_difference_of_the_mean_outputs() -> None:
    lm = tiny_lm()
    vector = ControlVector.fit(lm, ["good day", "so good"], ["bad night"], "blocks.1-2", last=1)
    assert list(vector) == ["backbone.blocks.1", "backbone.blocks.2"]
    for path in vector:
        wanted = (outputs(lm, path, "good day") + outputs(lm, path, "so good")) / 2 - outputs(lm, path, "bad night")
        torch.testing.assert_close(vector[path], wanted)


def test_last_tokens_are_averaged() -> None:
    lm = tiny_lm()
    embedding = lm.backbone.layer("embedding", sl.Embedding).weight
    vector = ControlVector.fit(lm, ["very good day"], ["bad"], "embedding", last=2)
    ids = [WORDS.index(word) for word in ("good", "day", "bad")]
    torch.testing.assert_close(vector["backbone.embedding"], embedding[ids[:2]].mean(0) - embedding[ids[2]])


def test_pca_finds_the_common_direction_of_the_differences() -> None:
    lm = tiny_lm()
    weight = lm.backbone.layer("embedding", sl.Embedding).weight
    axis = nn.functional.one_hot(torch.tensor(0), 8).float()
    with torch.no_grad():
        for word, length, aside in (("good", 3.0, 0.1), ("very", 5.0, -0.1), ("bad", -3.0, 0.1), ("night", -5.0, 0.0)):
            weight[WORDS.index(word)] = length * axis + aside * axis.roll(1)
    vector = ControlVector.fit(lm, ["good", "very"], ["bad", "night"], "embedding", method="pca")
    torch.testing.assert_close(vector["backbone.embedding"], 8 * axis, atol=0.2, rtol=0)


def test_fit_leaves_the_model_as_it_was() -> None:
    lm = tiny_lm()
    before = (repr(lm), list(lm.state_dict()), [id(module) for module in lm.modules()])
    ControlVector.fit(lm, ["good"], ["bad"], "blocks.*")
    assert (repr(lm), list(lm.state_dict()), [id(module) for module in lm.modules()]) == before


def test_fit_takes_its_recorders_out_when_the_model_fails() -> None:
    lm = tiny_lm()
    before = repr(lm)
    lm.backbone.layer("embedding", sl.Embedding).weight.data = torch.zeros(1, 8)
    with pytest.raises(IndexError):
        ControlVector.fit(lm, ["good"], ["bad"], "blocks.*")
    assert [type(block) for block in lm.backbone.layer("blocks", sl.Stack)] == [sl.Chain] * 3
    assert repr(lm).count("\n") == before.count("\n")


def test_on_adds_the_scaled_direction_behind_the_layer() -> None:
    lm, ids = tiny_lm(), torch.tensor([[1, 3]])
    direction = torch.arange(8.0)
    bare = lm.backbone(ids)
    with ControlVector({"backbone.blocks.2": direction}).on(lm, scale=0.5):
        steered = lm.backbone(ids)
    torch.testing.assert_close(steered, bare + 0.5 * direction)


def test_on_is_out_again_at_the_end_of_its_block() -> None:
    lm, ids = tiny_lm(), torch.tensor([[1, 3]])
    bare, shown = lm(ids), repr(lm)
    vector = ControlVector({"backbone.blocks.0": torch.ones(8)})
    with pytest.raises(ZeroDivisionError), vector.on(lm):
        raise ZeroDivisionError
    assert torch.equal(lm(ids), bare)
    assert repr(lm) == shown


def test_scale_can_be_changed_while_it_is_in() -> None:
    lm, ids = tiny_lm(), torch.tensor([[1, 3]])
    vector = ControlVector({"backbone.blocks.2": torch.ones(8)})
    bare = lm.backbone(ids)
    steering = vector.on(lm, scale=1)
    steering.scale = -2.0
    torch.testing.assert_close(lm.backbone(ids), bare - 2)
    assert steering.scale == -2.0
    steering.eject()


def test_in_the_tree_it_is_a_layer_with_its_own_keys() -> None:
    lm = tiny_lm()
    keys = list(lm.state_dict())
    with ControlVector({"backbone.blocks.2": torch.ones(8)}).on(lm):
        assert set(lm.state_dict()) - set(keys) == {
            "backbone.blocks.2+Steered.steer.direction",
            "backbone.blocks.2+Steered.steer.scale",
        }
        assert "Steer(scale=1)" in repr(lm)
        assert lm.to(torch.bfloat16).layers(Steer)[0].direction.dtype == torch.bfloat16


def test_direction_takes_the_dtype_of_the_model() -> None:
    lm = tiny_lm().to(torch.bfloat16)
    with ControlVector({"backbone.blocks.2": torch.ones(8)}).on(lm):
        assert lm(torch.tensor([[1]])).dtype == torch.bfloat16


def test_two_vectors_go_out_in_any_order() -> None:
    lm, ids = tiny_lm(), torch.tensor([[1, 3]])
    bare = lm(ids)
    one = ControlVector({"backbone.blocks.1": torch.ones(8)}).on(lm)
    two = ControlVector({"backbone.blocks.1": torch.arange(8.0)}).on(lm)
    one.eject()
    two.eject()
    assert torch.equal(lm(ids), bare)


def test_a_layer_that_is_not_there_leaves_nothing_behind() -> None:
    lm = tiny_lm()
    shown = repr(lm)
    with pytest.raises(SelectionError, match="blocks"):
        ControlVector({"backbone.blocks.1": torch.ones(8), "backbone.blocks.7": torch.ones(8)}).on(lm)
    assert repr(lm) == shown


def test_arithmetic() -> None:
    one = ControlVector({"0": torch.tensor([1.0]), "1": torch.tensor([2.0])})
    two = ControlVector({"1": torch.tensor([10.0]), "2": torch.tensor([3.0])})
    mixed = 2 * one - two / 2
    assert {path: mixed[path].item() for path in mixed} == {"0": 2.0, "1": -1.0, "2": -1.5}
    assert (-one)["0"].item() == -1.0


def test_save_and_load(tmp_path: Path) -> None:
    vector = ControlVector({"backbone.blocks.2": torch.randn(8), "backbone.blocks.1": torch.randn(8)})
    vector.save(tmp_path / "joy.safetensors")
    loaded = ControlVector.load(tmp_path / "joy.safetensors")
    assert set(loaded) == set(vector)
    assert all(torch.equal(loaded[path], vector[path]) for path in vector)
    assert [path.name for path in tmp_path.iterdir()] == ["joy.safetensors"]


def test_load_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.safetensors"):
        ControlVector.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("these are no tensors at all")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        ControlVector.load(tmp_path / "text")
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"format None, where 'suture\.control_vector'"):
        ControlVector.load(tmp_path / "other")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "strong", True])
def test_a_scale_is_a_finite_number(scale: Any) -> None:
    with pytest.raises(ValueError, match="finite number"):
        ControlVector({"backbone.blocks.1": torch.ones(8)}).on(tiny_lm(), scale=scale)


def test_fit_refuses_what_makes_no_sense() -> None:
    lm = tiny_lm()
    with pytest.raises(ValueError, match="both kinds"):
        ControlVector.fit(lm, [], ["bad"], "blocks.*")
    with pytest.raises(ValueError, match="in pairs"):
        ControlVector.fit(lm, ["good", "so"], ["bad"], "blocks.*", method="pca")
    with pytest.raises(ValueError, match="'mean' or 'pca'"):
        ControlVector.fit(lm, ["good"], ["bad"], "blocks.*", method=cast("Any", "median"))
    with pytest.raises(ValueError, match="at least 1"):
        ControlVector.fit(lm, ["good"], ["bad"], "blocks.*", last=0)
    with pytest.raises(SelectionError):
        ControlVector.fit(lm, ["good"], ["bad"], "nowhere")
    with pytest.raises(ValueError, match="at least one layer"):
        ControlVector({})
    with pytest.raises(ValueError, match="one dimension"):
        ControlVector({"0": torch.zeros(2, 2)})


def test_five_strengths_compile_once() -> None:
    lm, ids = tiny_lm(), torch.tensor([[1, 3]])
    compilations: list[GraphModule] = []

    def count(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    steering = ControlVector({"backbone.blocks.1": torch.ones(8)}).on(lm)
    compiled = torch.compile(lm.backbone, fullgraph=True, backend=count)
    for scale in (0.1, 0.2, -0.3, 4.0, 0.0):
        steering.scale = scale
        torch.testing.assert_close(compiled(ids), lm.backbone(ids))
    assert len(compilations) == 1
    steering.eject()


def test_a_vector_is_exported_by_name() -> None:
    assert suture.ControlVector is ControlVector


@pytest.mark.parametrize("width", [1, 7, 9])
def test_a_direction_of_another_width_is_refused(width: int) -> None:
    lm = tiny_lm(dim=8)
    with (
        ControlVector({"blocks.1": torch.ones(width)}).on(lm),
        pytest.raises(ValueError, match=f"width {width} cannot"),
    ):
        lm(torch.tensor([[1, 2]]))


def test_fit_takes_lists_of_prompts_that_say_something() -> None:
    lm = tiny_lm()
    with pytest.raises(TypeError, match="lists of prompts"):
        ControlVector.fit(lm, "good", ["bad"], layers="blocks.1")  # else each letter would be a prompt
    with pytest.raises(ValueError, match="A prompt is empty"):
        ControlVector.fit(lm, ["good"], [""], layers="blocks.1")


def test_only_vectors_are_added() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        ControlVector({"blocks.1": torch.ones(2)}) + 3  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]

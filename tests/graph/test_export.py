"""Exported graphs: programs of torch.export and of ONNX that run without Suture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.utils import _pytree as pytree

from suture import layers as sl
from suture.adapters import LoRA
from suture.graph import Graph, Input, trace
from suture.models.backbone import Backbone, TokenEmbedding
from tests.models.decoders import VOCABULARY, decoder

X = torch.linspace(-1, 1, 12).reshape(3, 4)
THERE = torch.tensor([[False, True, True], [True, True, True]])

RUNNING = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "suture":
            raise ImportError("There is no Suture here.")

sys.meta_path.insert(0, Blocked())
import torch

program = torch.export.load(sys.argv[1])
args, kwargs = torch.load(sys.argv[2])
torch.save(program.module()(*args, **kwargs), sys.argv[3])
assert "suture" not in sys.modules
"""


def small_graph() -> Graph:
    shift = sl.Sum(sl.Identity(), sl.UseContext("side", "shift", default=0.5))
    tree = sl.Chain(up=sl.Linear(4, 8), act=sl.SiLU(), down=sl.Linear(8, 4), shift=shift)
    return trace(tree, Input("x", shape=(None, 4)))


def ids(length: int, rows: int = 2) -> Tensor:
    return torch.arange(rows * length).reshape(rows, length) * 7 % VOCABULARY


def run_elsewhere(program: torch.export.ExportedProgram, folder: Path, *args: Any, **kwargs: Any) -> Any:
    """What a saved program gives in a process that cannot import Suture."""
    paths = [folder / "program.pt2", folder / "given.pt", folder / "result.pt"]
    torch.export.save(program, paths[0])
    torch.save((args, kwargs), paths[1])
    subprocess.run([sys.executable, "-c", RUNNING, *map(str, paths)], check=True, cwd=folder, timeout=300)
    return torch.load(paths[2])


def test_an_exported_graph_runs_where_there_is_no_suture(tmp_path: Path) -> None:
    backbone = decoder(blocks=1).eval()
    graph = trace(backbone, *backbone.graph_inputs())
    program = graph.export(["token_ids", "padding_mask"], examples={"token_ids": ids(3), "padding_mask": THERE})
    longer = torch.ones(3, 6, dtype=torch.bool)
    longer[2, :4] = False
    result = run_elsewhere(program, tmp_path, ids(6, rows=3), padding_mask=longer)
    torch.testing.assert_close(result, backbone(ids(6, rows=3), padding_mask=longer))


def test_it_has_the_keys_of_the_graph_and_computes_the_same() -> None:
    graph = small_graph()
    program = graph.export()
    assert set(program.state_dict) == set(graph.state_dict())
    for rows in (1, 2, 3, 7):
        torch.testing.assert_close(program.module()(torch.ones(rows, 4)), graph(torch.ones(rows, 4)))


def test_which_optional_inputs_there_are_is_a_part_of_it() -> None:
    graph = small_graph()
    shift = torch.full((4,), 2.0)
    program = graph.export(inputs=["shift"], examples={"shift": shift})
    torch.testing.assert_close(program.module()(X, shift=shift), graph(X, shift=shift))
    with pytest.raises(ValueError, match="keyword mismatch"):
        program.module()(X)
    with pytest.raises(ValueError, match="keyword mismatch"):
        graph.export().module()(X, shift=shift)


def test_an_input_that_says_no_shape_needs_an_example() -> None:
    with pytest.raises(ValueError, match=r"'shift' says no shape.*examples=\{'shift'"):
        small_graph().export(inputs=["shift"])


def test_an_input_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no input 'shifted'\. It takes: x, shift"):
        small_graph().export(inputs=["shifted"])
    with pytest.raises(ValueError, match="no input 'y'"):
        small_graph().export(dynamic={"y": {0: Dim.AUTO}})


def test_structures_are_restored() -> None:
    one, two, three = (Input(name, shape=(None, 4)) for name in ("one", "two", "three"))
    outputs = {"sums": (one + two, [two + three]), "size": one.shape[0]}
    graph = Graph(inputs={"one": one, "rest": (two, {"three": three})}, outputs=outputs)
    result = graph.export().module()(X, (2 * X, {"three": 3 * X}))
    wanted = graph(X, (2 * X, {"three": 3 * X}))
    assert pytree.tree_structure(result) == pytree.tree_structure(wanted)
    assert result["size"] == 3
    assert torch.equal(result["sums"][1][0], 2 * X + 3 * X)


def test_open_dimensions_are_open_and_equal_names_equal_sizes() -> None:
    one, other = Input("one", shape=(None, "length")), Input("other", shape=("length", 2))
    module = Graph(inputs=[one, other], outputs=one @ other).export().module()
    assert module(torch.ones(5, 9), torch.ones(9, 2)).shape == (5, 2)
    with pytest.raises(AssertionError, match=r"length|shape|size"):
        module(torch.ones(5, 9), torch.ones(8, 2))


def test_a_dimension_that_is_said_to_be_fixed_is() -> None:
    module = small_graph().export(dynamic={"x": None}, examples={"x": X}).module()
    assert module(X).shape == (3, 4)
    with pytest.raises(AssertionError, match=r"shape|size"):
        module(torch.ones(4, 4))


def test_a_window_is_exported_for_lengths_on_both_sides_of_it() -> None:
    attention = sl.SelfAttention(8, causal=True, attend=sl.ScaledDotProductAttention(causal=True, window=6))
    backbone = Backbone(embedding=TokenEmbedding(VOCABULARY, 8), attention=attention)
    module = trace(backbone, *backbone.graph_inputs()).export(["token_ids"]).module()
    for length in (2, 6, 7, 15):
        torch.testing.assert_close(module(ids(length)), backbone(ids(length)))


def test_edits_of_the_graph_are_exported() -> None:
    graph = small_graph()
    bare = graph(X)
    lora = LoRA.on(graph, "up", rank=2)
    for parameter in lora.parameters():
        torch.nn.init.normal_(parameter)
    result = graph.export().module()(X)
    torch.testing.assert_close(result, graph(X))
    assert not torch.allclose(result, bare)


def test_a_compiled_graph_is_exported_too() -> None:
    graph = small_graph().compile(backend="eager")
    torch.testing.assert_close(graph.export().module()(X), graph(X))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's own, of itself
def test_onnx_of_a_backbone_computes_the_same(tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    backbone = decoder(blocks=1).eval()
    graph = trace(backbone, *backbone.graph_inputs())
    path = tmp_path / "backbone.onnx"
    graph.to_onnx(
        path,
        ["token_ids", "padding_mask"],
        examples={"token_ids": ids(3), "padding_mask": THERE},
        verbose=False,
    )
    session: Any = InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["token_ids", "padding_mask"]
    for length, rows in ((3, 2), (6, 3)):
        mask = torch.ones(rows, length, dtype=torch.bool)
        mask[0, :2] = False
        (result,) = session.run(None, {"token_ids": ids(length, rows).numpy(), "padding_mask": mask.numpy()})
        wanted = backbone(ids(length, rows), padding_mask=mask).detach().numpy()
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


def test_onnx_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def found(name: str) -> None:
        """Finds nothing."""

    monkeypatch.setattr("suture.graph.exporting.find_spec", found)
    with pytest.raises(ImportError, match=r"pip install suture\[onnx\]"):
        small_graph().to_onnx(tmp_path / "graph.onnx")

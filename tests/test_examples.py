from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

SAYS = {
    "control_vectors": ["12 vectors were added, such as backbone.blocks.8+ControlVectorLayer.direction"],
    "exported": ["def forward(x, ", "+ 0.5", "the program differs from the graph by"],
    "functional_cache": ["GPT-2: ", "Gemma 2: ", "the same"],
    "parts_of_a_model": ["after block 29: ' Paris'", "35,400,960 weights, shared", "gives the same: True"],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_says_what_it_shows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location(f"examples.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    said = capsys.readouterr().out
    for part in SAYS[path.stem]:
        assert part in said
    assert "NOT the same" not in said

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from suture import CausalLM, ControlVector
from suture.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command with arguments; gives its exit status and what it printed."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["suture", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.fixture
def folder(tiny_llama_folder: Callable[..., Path]) -> Path:
    return tiny_llama_folder()


def test_tree_prints_the_model(run: Run, folder: Path) -> None:
    status, printed, _ = run("tree", folder)
    assert status == 0
    assert printed.startswith("CausalLM")
    assert "query: Linear" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_tree_marks_what_a_pattern_selects(run: Run, folder: Path) -> None:
    _, printed, _ = run("tree", folder, "query")
    assert [line.split(": ")[0][-5:] for line in printed.splitlines() if line.startswith("▸")] == ["query"]
    assert "layers selected" in printed


def test_plot_writes_a_picture(run: Run, folder: Path, tmp_path: Path) -> None:
    status, printed, _ = run("plot", folder, tmp_path / "x.html")
    assert (status, printed) == (0, f"Wrote {tmp_path / 'x.html'}\n")
    assert "blocks.0.attention" in (tmp_path / "x.html").read_text()


def test_plot_says_which_files_it_writes(run: Run, folder: Path, tmp_path: Path) -> None:
    status, _, said = run("plot", folder, tmp_path / "x.pdf")
    assert status == 2
    assert ".html" in said


def test_generate_prints_what_the_model_says(run: Run, folder: Path) -> None:
    _, printed, _ = run("generate", folder, "the cat", "--max-new-tokens", 5)
    assert printed == CausalLM.from_pretrained(folder).generate("the cat", max_new_tokens=5) + "\n"


def test_generate_steers(run: Run, folder: Path, tmp_path: Path) -> None:
    lm = CausalLM.from_pretrained(folder)
    width = lm.backbone(torch.tensor([[0]])).shape[-1]
    vector = ControlVector({"backbone.blocks.0": torch.randn(width)})
    vector.save(tmp_path / "mood.safetensors")
    _, printed, _ = run(
        "generate", folder, "the cat", "--max-new-tokens", 5, "--steer", f"{tmp_path}/mood.safetensors:8"
    )
    bare = lm.generate("the cat", max_new_tokens=5)
    with vector.on(lm, scale=8):
        assert printed == lm.generate("the cat", max_new_tokens=5) + "\n"
    assert printed != bare + "\n"


def test_sampling_is_repeatable(run: Run, folder: Path) -> None:
    options = ("--max-new-tokens", 8, "--temperature", 2, "--seed", 3)
    assert run("generate", folder, "the", *options)[1] == run("generate", folder, "the", *options)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tree", "{folder}/nothing"), "no model"),
        (("tree", "{empty}"), "config.json"),
        (("tree", "{folder}", "qeury"), "Near to it: 'query'"),
        (("tree", "{folder}", "blocks.{"), "malformed"),
        (("generate", "{folder}", "hi", "--steer", "joy"), "--steer takes a file and a strength"),
        (("generate", "{folder}", "hi", "--steer", "joy.safetensors:1"), "no file"),
        (("generate", "{folder}", "the cat sat on the mat " * 400), "positions"),
        (("generate", "{folder}", "hi", "--max-new-tokens", "-1"), "max-new-tokens"),
    ],
)
def test_a_mistake_is_said_in_a_paragraph(
    run: Run, folder: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    filled = [each.replace("{folder}", str(folder)).replace("{empty}", str(tmp_path)) for each in arguments]
    status, printed, complaint = run(*filled)
    assert status == 2
    assert said in complaint
    assert "Traceback" not in complaint
    assert printed == ""


def edit_config(folder: Path, copy: Path, **changes: object) -> Path:
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "bert"),
        ({"surprising_factor": 3}, "surprising_factor"),
    ],
)
def test_a_model_it_does_not_understand_is_named(
    run: Run, folder: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    status, _, complaint = run("tree", edit_config(folder, tmp_path / "changed", **changes))
    assert status == 2
    assert said in complaint


def test_files_that_are_not_whole(run: Run, folder: Path, tmp_path: Path, smollm2_path: Path) -> None:
    with smollm2_path.open("rb") as whole:
        (tmp_path / "cut.gguf").write_bytes(whole.read(5_000_000))
    status, _, complaint = run("tree", tmp_path / "cut.gguf")
    assert (status, "cut.gguf" in complaint) == (2, True)
    without_weights = edit_config(folder, tmp_path / "copy")
    for weights in without_weights.glob("*.safetensors"):
        weights.unlink()
    status, _, complaint = run("tree", without_weights)
    assert (status, "safetensors" in complaint) == (2, True)


def test_without_arguments_it_says_what_it_can_do(run: Run) -> None:
    _, printed, complaint = run()
    assert all(command in printed + complaint for command in ("demo", "tree", "generate"))

"""The README's programs run, and print what it says they print."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from pathlib import Path
from typing import Any

import torch

import suture
from suture import layers as sl
from tests.adapters.test_control_vector import tiny_lm

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", README, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]


def test_the_first_program_prints_what_the_readme_says(smollm2_path: Path) -> None:
    assert smollm2_path.exists()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(blocks("python")[0], {})
    assert printed.getvalue() == blocks("text")[0]


def test_the_block_and_the_adapter_work() -> None:
    block, adapter, _ = blocks("python")[1:]
    names: dict[str, Any] = {"torch": torch}
    exec(block, names)
    model: sl.Chain = names["block"]
    x = torch.randn(1, 7, 64)
    bare = model(x)
    exec(adapter, names)
    assert not torch.equal(model(x, patches=names["patches"]), bare)
    for each in names["adapters"]:
        each.eject()
    assert torch.equal(model(x), bare)


def test_the_recording_works() -> None:
    lm = tiny_lm(blocks=8)
    names: dict[str, Any] = {"torch": torch, "lm": lm, "select": suture.select}
    exec(blocks("python")[3], names)
    assert names["third"].shape == names["seventh"].shape
    assert not torch.equal(names["third"], names["seventh"])
    assert "Record" not in repr(lm)


def test_the_first_program_is_short() -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 20

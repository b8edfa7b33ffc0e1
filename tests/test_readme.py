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
    block, adapter = blocks("python")[1:]
    x, picture = torch.randn(1, 3, 64), torch.randn(1, 3, 32)
    names: dict[str, Any] = {"sl": sl, "Adapter": suture.Adapter, "x": x, "picture": picture}
    exec(block + "\nmodel = sl.Chain(block)\nbare = model(x)\n" + adapter, names)
    model: sl.Chain = names["model"]
    assert not torch.equal(model(x, context={"side": {"x": picture}}), names["bare"])
    exec("for adapter in adapters: adapter.eject()", names)
    assert torch.equal(model(x), names["bare"])


def test_the_first_program_is_short() -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 20

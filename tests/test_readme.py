"""The README's programs run, and print what it says they print."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import suture
from suture import layers as sl
from suture.adapters import LoRA
from suture.models import TransformerBlock
from tests.adapters.test_control_vector import tiny_lm
from tests.models.decoders import VOCABULARY, WIDTH, decoder
from tests.plain_models import tiny_gpt2

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
    block, adapter = blocks("python")[1:3]
    names: dict[str, Any] = {"torch": torch}
    exec(block, names)
    model: sl.Chain = names["block"]
    x = torch.randn(1, 7, 64)
    bare = model(x)
    exec(adapter, names)
    assert not torch.equal(model(x, patches=names["patches"]), bare)
    names["adapters"].eject()
    assert torch.equal(model(x), bare)


def test_looking_inside_works() -> None:
    shapes: list[torch.Size] = []
    names: dict[str, Any] = {"lm": tiny_lm(blocks=8), "suture": suture, "print": shapes.append}
    exec(blocks("python")[3], names)
    assert shapes[0][-2] > 4


def test_rewiring_works() -> None:
    lm = suture.CausalLM(decoder(), sl.Linear(WIDTH, VOCABULARY))
    names: dict[str, Any] = {
        "lm": lm,
        "suture": suture,
        "TransformerBlock": TransformerBlock,
        "CausalLM": suture.CausalLM,
        "ids": (ids := torch.tensor([[1, 2]])),
    }
    # This small model has no tokenizer.
    exec(blocks("python")[4].replace('"Once upon a time"', "ids"), names)
    assert torch.equal(names["louder"](ids), lm.head(names["graph"](ids)))


def test_the_plain_model_works() -> None:
    gpt2 = tiny_gpt2()
    names: dict[str, Any] = {"LoRA": LoRA, "select": suture.select, "ids": torch.tensor([[3, 1, 4]])}

    def made(config: object) -> Any:
        return gpt2

    names |= {"transformers": SimpleNamespace(GPT2LMHeadModel=made), "config": gpt2.config}
    keys = list(gpt2.state_dict())
    exec(blocks("python")[5], names)
    assert list(gpt2.state_dict()) == keys


def test_the_first_program_is_short() -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 20

"""The stations of the demo, in the order in which they are shown. What each does is what a user would have typed."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from inspect import getsource
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from suture.adapters import ControlVector
from suture.demo.moods import DESPAIRING, JOYFUL, QUESTIONS
from suture.demo.words import write_words
from suture.generation import CausalLM
from suture.layers import Chain, Composite, Linear, Sum
from suture.layers.printing import tree
from suture.surgery.adapter import Adapter
from suture.surgery.selection import select

if TYPE_CHECKING:
    from rich.console import Console

MODEL = "smollm2"
QUESTION = "What is the capital of France?"
MOOD = "Tell me about your day."


class LowRank(Sum, Adapter[nn.Linear]):
    """A linear layer with a low-rank branch beside it."""

    def __init__(self, target: nn.Linear, rank: int) -> None:
        down = Linear(target.in_features, rank, bias=False)
        up = Linear(rank, target.out_features, bias=False)
        with self.setup_adapter(target):
            super().__init__(target, low_rank=Chain(down=down, up=up))


def run(console: Console) -> None:
    """Shows everything; takes a minute or two on two cores."""
    lm = load(console)
    look(console, lm)
    ask(console, lm)
    steer(console, lm)
    cut(console, lm)
    adapt(console, lm)
    finish(console, lm)


def load(console: Console) -> CausalLM:
    """Reads the embedded model."""
    with waiting(console, "Reading SmolLM2-135M-Instruct, a 93 MB GGUF file that pip installed"):
        start = time.perf_counter()
        lm = CausalLM.from_pretrained(MODEL)
        seconds = time.perf_counter() - start
    console.print(f'lm = CausalLM.from_pretrained("{MODEL}")  [dim]# {seconds:.1f} s[/]', highlight=False)
    return lm


def look(console: Console, lm: CausalLM) -> None:
    """Prints the model."""
    heading(console, "1. The model is a tree of layers", "print(lm)")
    console.print(repr(lm), highlight=False, markup=False)
    remark(
        console, "The names down to a layer are its key in the checkpoint. No edit changes the key of another layer."
    )


def ask(console: Console, lm: CausalLM) -> None:
    """Has it answer as it is."""
    heading(console, "2. It answers", f'lm.generate([{{"role": "user", "content": "{QUESTION}"}}])')
    answer(console, lm, QUESTION, 24)


def steer(console: Console, lm: CausalLM) -> None:
    """Fits a control vector and answers at three strengths."""
    heading(
        console,
        "3. A control vector steers it",
        'vector = ControlVector.fit(lm, joyful, despairing, "blocks.8-19")',
        "with vector.on(lm, scale=0.25):",
        f'    lm.generate([{{"role": "user", "content": "{MOOD}"}}])',
    )
    prompts = len(QUESTIONS) * len(JOYFUL)
    with waiting(console, f"Reading the hidden states of {prompts} joyful and {prompts} despairing prompts"):
        vector = ControlVector.fit(lm, openings(lm, JOYFUL), openings(lm, DESPAIRING), "blocks.8-19")
    for scale, mood in ((-0.25, "towards despair"), (0.0, "as it is"), (0.25, "towards joy")):
        with vector.on(lm, scale=scale):
            answer(console, lm, MOOD, 32, f"scale={scale:+.2f}, {mood}")
    remark(console, "Look at the mood: one question, one model, which takes the likeliest word each time.")


def cut(console: Console, lm: CausalLM) -> None:
    """Repeats a block and leaves one out."""
    heading(
        console,
        "4. A block repeated, a block left out",
        'block = select(lm, "blocks.12")',
        "edit = block.insert_after(lambda block: block.structural_copy())",
        "edit.undo()",
        "edit = block.remove()",
        "edit.undo()",
    )
    block = select(lm, "blocks.12")
    edit = block.insert_after(lambda block: block.structural_copy())
    answer(console, lm, QUESTION, 16, "block 12 twice, with one set of weights")
    edit.undo()
    edit = block.remove()
    answer(console, lm, QUESTION, 16, "without block 12")
    edit.undo()
    remark(console, "Each place has its own slot in the cache, and nothing was renumbered. Try block 0 for contrast.")


def adapt(console: Console, lm: CausalLM) -> None:
    """Puts adapters in and takes them out again."""
    heading(
        console,
        "5. An adapter in every block, and out again",
        *getsource(LowRank).splitlines(),
        "",
        "edit = select(lm, 'query', 'value').adapt(lambda linear: LowRank(linear, 8))",
        "edit.undo()",
    )
    ids = torch.tensor([lm.tokenizer.encode(QUESTION)]) if lm.tokenizer is not None else torch.zeros(1, 1).long()
    before, keys = logits(lm, ids), list(lm.state_dict())
    edit = select(lm, "query", "value").adapt(lambda linear: LowRank(linear, rank=8))
    console.print(tree(lm.backbone.layer("blocks.0.attention", Composite)), highlight=False, markup=False)
    during = logits(lm, ids)
    added = len(lm.state_dict()) - len(keys)
    facts(
        console,
        "with 60 adapters",
        f"logits differ by up to {(during - before).abs().max():.2f}, as these are untrained",
    )
    facts(console, "keys of the model", f"{len(keys)} unchanged, {added} added")
    edit.undo()
    after = logits(lm, ids)
    facts(
        console,
        "after undo",
        f"logits bit-equal: {torch.equal(before, after)}; keys equal: {keys == list(lm.state_dict())}",
    )


def finish(console: Console, lm: CausalLM) -> None:
    """Says how fast it is and how to go on."""
    heading(console, "6. And how to go on")
    start = time.perf_counter()
    with waiting(console, "Counting tokens per second"):
        ids = lm.generate(list(range(100, 132)), max_new_tokens=48, stop_ids=[])
    speed = (len(ids) - 32) / (time.perf_counter() - start)
    facts(console, "speed", f"{speed:.0f} tokens per second, float32, {torch.get_num_threads()} threads")
    console.print(
        "\n  . .venv/bin/activate\n"
        "  suture tree smollm2 attention      where a pattern matches\n"
        '  suture generate smollm2 "Once upon a time"\n'
        "  README.md                          the same as a program",
        highlight=False,
        markup=False,
    )


# Helpers of the stations


def openings(lm: CausalLM, starts: Iterable[str]) -> list[str]:
    """Every question as the model sees a chat, with every opening of an answer."""
    if lm.tokenizer is None:
        raise ValueError("The demo needs a model with a tokenizer.")
    asked = [lm.tokenizer.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    return [chat + start for chat in asked for start in starts]


def logits(lm: CausalLM, ids: Tensor) -> Tensor:
    """The logits (1, T, V) of a prompt."""
    with torch.no_grad():
        return lm(ids)


def answer(console: Console, lm: CausalLM, question: str, tokens: int, label: str | None = None) -> None:
    """Streams an answer, so that there is always something to see."""
    console.print(f"  [bold cyan]{label or question}[/]", highlight=False)
    write_words(console, lm.stream([{"role": "user", "content": question}], max_new_tokens=tokens), margin=4)


def heading(console: Console, title: str, *code: str) -> None:
    """A station, and what a user would type for it."""
    console.print(f"\n[bold]{title}[/]", highlight=False)
    for line in code:
        console.print(f"  {line}", style="green", highlight=False, markup=False)
    console.print()


def remark(console: Console, text: str) -> None:
    """What to look at."""
    console.print(f"\n[italic]{text}[/]", highlight=False)


def facts(console: Console, name: str, value: str) -> None:
    """One measured value."""
    console.print(f"  [bold cyan]{name}[/]: {value}", highlight=False)


@contextmanager
def waiting(console: Console, what: str) -> Generator[None]:
    """Says what is going on while it takes a while."""
    with console.status(f"{what} ..."):
        yield

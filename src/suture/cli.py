"""The command line: `suture demo`, `suture tree`, `suture plot`, `suture generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from suture.generation import CausalLM

app = typer.Typer(
    help="Model surgery for PyTorch: read a model as a tree, cut it, steer it, generate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Source = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a .gguf file, a hub id, or 'smollm2'.")]


@app.command()
def demo() -> None:
    """See what it does, on the embedded model, in a minute or two."""
    from suture.demo import run

    run(_console())


@app.command()
def tree(
    model: Source,
    pattern: Annotated[
        str | None,
        typer.Argument(help="Marks layers by the end of their path: 'query', 'blocks.3-7', 'blocks.**.{query,value}'."),
    ] = None,
) -> None:
    """Print a model as a tree; with PATTERN, show where it matches."""
    from suture import select

    lm = _load(model)
    _console().print(lm if pattern is None else select(lm, pattern))


@app.command()
def plot(
    model: Source,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: .html, .svg, .png or .dot.")],
) -> None:
    """Draw what a model does, as a page to open in a browser or as a picture."""
    from suture import plot as draw

    draw(_load(model).backbone, path)
    _console().print(f"Wrote {path}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def generate(
    model: Source,
    prompt: Annotated[str, typer.Argument(help="The text to continue; with --chat, what the user says.")],
    steer: Annotated[
        list[str] | None, typer.Option(metavar="FILE:SCALE", help="A control vector to steer by; can be repeated.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask through the model's chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="The most tokens to add.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token, always.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Samples from the likeliest tokens only.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
) -> None:
    """Continue a prompt, printed as it is made."""
    from suture.generation import TopP

    vectors = [_vector(given) for given in steer or []]
    lm = _load(model)
    for vector, scale in vectors:
        vector.on(lm, scale=scale)
    asked: Any = [{"role": "user", "content": prompt}] if chat else prompt
    sampler = TopP(top_p, temperature=temperature) if temperature > 0 else None
    pieces = lm.stream(asked, max_new_tokens=max_new_tokens, sampler=sampler, seed=seed)
    if not chat:
        sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def main() -> None:
    """Runs the command; a mistake of the user's is said in a paragraph, without a traceback, and exits with 2."""
    try:
        app()
    except (ValueError, LookupError, TypeError, OSError) as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        sys.stderr.write(f"suture: {message}\n")
        raise SystemExit(2) from None


def _load(model: str) -> CausalLM:
    from suture import CausalLM

    with _console(stderr=True).status(f"Reading {model} ..."):
        return CausalLM.from_pretrained(model)


def _vector(given: str) -> tuple[Any, float]:
    from suture import ControlVector

    path, separator, scale = given.rpartition(":")
    try:
        strength = float(scale) if separator else None
    except ValueError:
        strength = None
    if strength is None:
        raise ValueError(f"--steer takes a file and a strength, such as joy.safetensors:0.25. Received: {given!r}.")
    return ControlVector.load(Path(path)), strength


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr)
    # Trees are laid out for 80 columns; a pipe has no width of its own.
    return console if console.is_terminal else Console(stderr=stderr, width=80)

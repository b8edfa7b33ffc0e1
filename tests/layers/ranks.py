"""What two processes do with an adapted tree and a bare one, for `test_ownership.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load  # pyright: ignore[reportUnknownVariableType]
from torch.distributed.checkpoint.state_dict_saver import save  # pyright: ignore[reportUnknownVariableType]
from torch.distributed.fsdp import fully_shard

from suture import layers as sl
from suture.surgery.adapter import Adapter
from suture.surgery.selection import select

WIDTH = 8


class Branch(sl.Sum, Adapter[nn.Module]):
    """Adds a branch, which changes the output, beside its target."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(target, branch=sl.Chain(down=sl.Linear(WIDTH, 2), up=sl.Linear(2, WIDTH)))


def bare() -> sl.Chain:
    """Two blocks and a head, before any edit."""
    blocks = [
        sl.Residual(norm=sl.LayerNorm(WIDTH), inner=sl.Chain(query=sl.Linear(WIDTH, WIDTH), act=sl.GELU()))
        for _ in range(2)
    ]
    return sl.Chain(blocks=sl.Stack(*blocks), head=sl.Linear(WIDTH, 3))


def adapted() -> sl.Chain:
    """The same with adapters in one another, around a leaf, a composite and a layer of the root, and a plain edit."""
    model = bare()
    select(model, "query").adapt(Branch)
    select(model, "blocks.1").adapt(Branch)
    select(model, "branch.up").adapt(lambda layer: Scaled(layer))
    select(model, "blocks").insert_after(sl.Linear(WIDTH, WIDTH))
    return model


class Scaled(sl.Chain, Adapter[nn.Module]):
    """Scales what its target gives."""

    def __init__(self, target: nn.Module) -> None:
        with self.setup_adapter(target):
            super().__init__(
                target, scale=sl.LayerNorm(target.out_features if isinstance(target, nn.Linear) else WIDTH)
            )


def input_of() -> Tensor:
    return torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


def rank(number: int, folder: str) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    shard_and_train()
    save_adapted_and_load_bare(Path(folder, "from-adapted"))
    save_bare_and_load_adapted(Path(folder, "from-bare"))
    dist.barrier()
    # All went well. Taking gloo down aborts a process now and then, when the other is gone first: so neither does.
    os._exit(0)


def seeded(make: Any, seed: int) -> sl.Chain:
    torch.manual_seed(seed)
    return make()


def sharded(model: sl.Chain) -> sl.Chain:
    for block in model.layer("blocks", sl.Stack):
        fully_shard(block)
    fully_shard(model)
    return model


def whole(model: nn.Module) -> dict[str, Tensor]:
    return {
        key: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for key, tensor in model.state_dict().items()
    }


def check_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key


def shard_and_train() -> None:
    """FSDP2 shards an adapted tree, under its own keys, and trains it as it is trained in one process."""
    one, several = seeded(adapted, 0), sharded(seeded(adapted, 0))
    check_equal(whole(several), whole(one))
    assert set(bare().state_dict()) < set(several.state_dict())
    for model in (one, several):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(input_of()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found, expected = whole(several), whole(one)
    assert list(found) == list(expected)
    for key, tensor in found.items():
        torch.testing.assert_close(tensor, expected[key], msg=key)
    torch.testing.assert_close(several(input_of()), one(input_of()))


def save_adapted_and_load_bare(folder: Path) -> None:
    """A distributed checkpoint of an adapted tree, sharded over two processes, is loaded into a bare one."""
    model, into = sharded(seeded(adapted, 1)), seeded(bare, 2)
    save(get_model_state_dict(model), checkpoint_id=folder)
    state = get_model_state_dict(into)
    load(state, checkpoint_id=folder)
    set_model_state_dict(into, state)
    saved = whole(model)
    check_equal(whole(into), {key: saved[key] for key in into.state_dict()})


def save_bare_and_load_adapted(folder: Path) -> None:
    """And a checkpoint of the bare tree into an adapted, sharded one, whose adapters stay what they are."""
    model, into = seeded(bare, 3), sharded(seeded(adapted, 4))
    save(get_model_state_dict(model), checkpoint_id=folder)
    before = whole(into)
    state = {key: tensor for key, tensor in get_model_state_dict(into).items() if key in model.state_dict()}
    assert list(state) == list(model.state_dict())
    load(state, checkpoint_id=folder)
    check_equal(whole(into), before | whole(model))

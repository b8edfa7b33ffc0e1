"""Every family beside transformers, on the same files: whole and in pieces, padded and not, loaded and saved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from suture import CausalLM, models
from suture import layers as sl
from tests.parity.families import EXAMPLES, PLAIN, VOCABULARY, Example, Reference, left_padded

ROWS = [[5, 9, 31], [7, 40, 12, 8, 99], [3, 17, 250, 61, 20, 33, 300, 44]]
NEW = 16
PIECES = [(13,), (1,) * 13, (2, 2, 2, 2, 2, 2, 1), (3, 3, 3, 3, 1), (5, *[1] * 8), (11, 2)]

every_example = pytest.mark.parametrize("name", EXAMPLES)
every_family = pytest.mark.parametrize("name", PLAIN)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an example; it is made once, so treat it as read-only."""
    root = tmp_path_factory.mktemp("families")
    return lambda name: EXAMPLES[name].save(root / name.replace(",", "").replace(" ", "-"))


def some_ids(*shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def logits(lm: CausalLM, ids: Tensor | None, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return cast("Tensor", lm(ids, **inputs))


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@every_example
def test_logits_equal_those_of_transformers(folder_of: Callable[[str], Path], name: str) -> None:
    ids = some_ids(2, 48)

    theirs = Reference(folder_of(name)).logits(ids)

    assert theirs.std(dim=1).mean() > 0.1  # a model that says the same whatever it sees would prove nothing
    close(logits(CausalLM.from_pretrained(folder_of(name)), ids), theirs)


@every_example
def test_a_saved_model_is_loaded_by_transformers_with_equal_logits(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    lm, ids = CausalLM.from_pretrained(folder_of(name)), some_ids(2, 48)

    lm.save_pretrained(tmp_path)

    close(Reference(tmp_path).logits(ids), logits(lm, ids))
    again = CausalLM.from_pretrained(tmp_path)
    assert again.description is not None
    assert lm.description is not None
    assert again.description.config == lm.description.config
    assert lm.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in lm.state_dict().items())


@every_example
def test_greedy_tokens_equal_those_of_transformers_for_rows_of_unequal_length(
    folder_of: Callable[[str], Path], name: str
) -> None:
    ids, real = left_padded(ROWS)
    lm = CausalLM.from_pretrained(folder_of(name))

    padded = lm.generate(ROWS, max_new_tokens=NEW, stop_ids=[], strip_prompt=True)
    alone = [lm.generate(row, max_new_tokens=NEW, stop_ids=[], strip_prompt=True) for row in ROWS]

    assert padded == Reference(folder_of(name)).greedy(ids, real, NEW).tolist()
    assert alone == padded
    assert len({token for row in padded for token in row}) > 3


@pytest.mark.parametrize("padded", [False, True])
@every_example
def test_logits_in_pieces_equal_those_of_transformers(
    folder_of: Callable[[str], Path], name: str, padded: bool
) -> None:
    lm, ids = CausalLM.from_pretrained(folder_of(name)), some_ids(3, 13)
    real = torch.arange(13) >= torch.tensor([[8], [5], [0]]) if padded else torch.ones(3, 13, dtype=torch.bool)
    given: dict[str, Tensor] = {"padding_mask": real} if padded else {}

    theirs = Reference(folder_of(name)).logits(ids, real)[real]

    close(logits(lm, ids, **given)[real], theirs)
    for sizes in PIECES:
        cache = lm.init_cache(batch=3, length=13)
        ends = list(itertools.accumulate(sizes))
        spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        pieces = [
            logits(lm, ids[:, at], cache=cache, **{key: mask[:, at] for key, mask in given.items()}) for at in spans
        ]
        close(torch.cat(pieces, dim=1)[real], theirs)


@every_family
def test_positions_are_those_that_are_given(folder_of: Callable[[str], Path], name: str) -> None:
    ids, positions = some_ids(2, 9), torch.arange(9).expand(2, -1) * 3 + torch.tensor([[0], [7]])
    # Without a mask, transformers takes gaps for the borders of documents.
    theirs = Reference(folder_of(name)).logits(ids, position_ids=positions, attention_mask=torch.ones(2, 9))

    close(logits(CausalLM.from_pretrained(folder_of(name)), ids, positions=positions), theirs)


@pytest.mark.parametrize("heads", [False, True])
@every_family
def test_a_token_attends_to_what_the_attention_mask_allows(
    folder_of: Callable[[str], Path], name: str, heads: bool
) -> None:
    ids = some_ids(2, 12)
    allowed = torch.rand(2, 4 if heads else 1, 12, 12, generator=torch.Generator().manual_seed(2)) > 0.4
    allowed |= torch.eye(12, dtype=torch.bool)

    theirs = Reference(folder_of(name)).masked_logits(ids, allowed, EXAMPLES[name].window)

    lm = CausalLM.from_pretrained(folder_of(name))
    close(logits(lm, ids, attention_mask=allowed if heads else allowed[:, 0]), theirs)


@every_family
def test_embeddings_take_the_place_of_ids(folder_of: Callable[[str], Path], name: str) -> None:
    embeddings = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(3))

    theirs = Reference(folder_of(name)).logits(inputs_embeds=embeddings)

    close(logits(CausalLM.from_pretrained(folder_of(name)), None, embeddings=embeddings), theirs)


@every_family
def test_embeddings_made_by_the_model_equal_its_ids(folder_of: Callable[[str], Path], name: str) -> None:
    lm, ids = CausalLM.from_pretrained(folder_of(name)), some_ids(2, 7)

    embeddings = lm.backbone.layer("embedding", models.TokenEmbedding)(ids)

    assert torch.equal(logits(lm, None, embeddings=embeddings), logits(lm, ids))


@every_family
def test_a_bfloat16_model_rounds_its_embeddings_as_transformers_does(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    lm, ids = CausalLM.from_pretrained(folder_of(name), dtype=torch.bfloat16), some_ids(2, 48)
    reference = Reference(folder_of(name), dtype=torch.bfloat16)

    lm.save_pretrained(tmp_path)

    embedded = lm.backbone.layer("embedding", models.TokenEmbedding)(ids)
    assert torch.equal(embedded, reference.model.get_input_embeddings()(ids))
    assert (logits(lm, ids).float() - reference.logits(ids).float()).abs().mean() < 0.1
    assert Reference(tmp_path).model.dtype == torch.bfloat16


@pytest.mark.parametrize("edit", ["drop the first", "repeat the second", "turn round"])
@every_family
def test_a_model_with_other_blocks_is_loaded_by_transformers_with_equal_logits(
    folder_of: Callable[[str], Path], tmp_path: Path, name: str, edit: str
) -> None:
    lm, ids = CausalLM.from_pretrained(folder_of(name)), some_ids(2, 48)
    blocks = lm.backbone.layer("blocks", sl.Stack)
    if edit == "drop the first":
        blocks.pop(0)
    elif edit == "repeat the second":
        blocks.insert(2, blocks.layer("1", models.TransformerBlock).structural_copy())
    else:
        blocks.insert(2, cast("Any", blocks.pop(0).layers[0]))

    lm.save_pretrained(tmp_path)

    theirs = Reference(tmp_path).logits(ids)
    close(logits(lm, ids), theirs)
    close(logits(CausalLM.from_pretrained(tmp_path), ids), theirs)


@every_example
def test_every_linear_layer_has_its_canonical_name(folder_of: Callable[[str], Path], name: str) -> None:
    lm = CausalLM.from_pretrained(folder_of(name))
    canonical = {"query", "key", "value", "output", "gate", "up", "down", "head", "projection"}

    linear = {place.path.split(".")[-1] for place in lm.places() if isinstance(place.layer, nn.Linear)}

    assert linear <= canonical
    assert {"query", "key", "value", "output", "up", "down"} <= linear
    backbone = lm.backbone
    for path in ("embedding", "norm", "blocks.0.attention.norm", "blocks.2.feedforward.norm"):
        assert isinstance(backbone.layer(path), (nn.Embedding, nn.LayerNorm, nn.RMSNorm))
    assert isinstance(backbone.layer("blocks.1.attention.heads.attend"), sl.ScaledDotProductAttention)
    assert all(part.islower() or part.isdecimal() for key in lm.state_dict() for part in key.split("."))


def test_the_examples_differ() -> None:
    """An example that equals another one would test nothing."""
    seen: list[Example] = []
    for example in EXAMPLES.values():
        assert example not in seen
        seen.append(example)

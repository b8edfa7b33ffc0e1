from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from suture import CausalLM
from suture import layers as sl
from suture.adapters import CrossAttention
from tests.adapters.trained import facts
from tests.models.decoders import VOCABULARY, WIDTH, decoder

TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


def lm() -> CausalLM:
    return CausalLM(decoder(), sl.Linear(WIDTH, VOCABULARY, bias=False)).eval()


def attending(model: CausalLM) -> list[CrossAttention]:
    """Cross-attentions in all blocks, as training would leave them."""
    torch.manual_seed(1)
    group = CrossAttention.on(model, "blocks.#", num_heads=4, sequence_dim=6)
    with torch.no_grad():
        for parameter in group.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return list(group)


def sequence(rows: int = 1, length: int = 7) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(rows, length, 6) * 3


def test_it_changes_nothing_at_the_start_and_the_gate_has_a_gradient() -> None:
    model = lm()
    bare = model(TOKENS)
    group = CrossAttention.on(model, "blocks.#", num_heads=4, sequence_dim=6)
    out = model(TOKENS, sequence=sequence())
    assert torch.equal(out, bare)
    out.square().sum().backward()
    gates = [parameter for name, parameter in model.named_parameters() if name.endswith("gate.gate")]
    assert len(gates) == len(group) == 3
    assert all(gate.grad is not None and gate.grad.abs() > 0 for gate in gates)


def test_after_a_step_all_of_it_has_a_gradient() -> None:
    model = lm()
    group = CrossAttention.on(model, "blocks.#", num_heads=4, sequence_dim=6)
    optimizer = torch.optim.SGD(list(group.parameters()), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(TOKENS, sequence=sequence()).square().mean().backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in group.parameters())


def test_it_is_what_a_residual_branch_before_the_block_computes() -> None:
    model = lm()
    first = attending(model)[0]
    x = torch.randn(1, 5, WIDTH)
    added = first.layer("cross", sl.Residual)(x, sequence=sequence())
    torch.testing.assert_close(first(x, sequence=sequence()), first.target(added))
    assert not torch.allclose(added, x)


def test_cached_generation_equals_an_uncached_loop_with_the_sequence_in_a_block() -> None:
    model = lm()
    bare = model.generate(TOKENS, max_new_tokens=12, stop_ids=[])
    attending(model)
    with model.context(cross_attention={"sequence": sequence()}):
        ids = TOKENS
        for _ in range(12):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=-1)
        assert torch.equal(model.generate(TOKENS, max_new_tokens=12, stop_ids=[]), ids)
    assert not torch.equal(bare, ids)


def test_padding_of_the_sequence_is_not_seen() -> None:
    model = lm()
    attending(model)
    padded = torch.cat([sequence(), 50 * torch.ones(1, 2, 6)], dim=1)
    mask = torch.arange(9)[None] < 7
    wanted = model(TOKENS, sequence=sequence())
    got = model(TOKENS, context={"cross_attention": {"sequence": padded, "padding_mask": mask}})
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(TOKENS, sequence=padded), wanted, atol=1e-2)


def test_each_row_attends_to_its_own_sequence() -> None:
    model = lm()
    attending(model)
    both = sequence(rows=2)
    got = model(TOKENS.expand(2, -1), sequence=both)
    for row in range(2):
        torch.testing.assert_close(
            got[row : row + 1], model(TOKENS, sequence=both[row : row + 1]), atol=1e-4, rtol=1e-4
        )
    assert not torch.allclose(got[0], got[1], atol=1e-2)


def test_it_reads_the_context_while_it_is_in_and_no_longer_after() -> None:
    model = lm()
    before, bare = facts(model), model(TOKENS)
    with CrossAttention.on(model, "blocks.1", sequence_dim=6, context="image", key="patches"):
        assert ("image", "patches") in [(read.scope, read.key) for read in model.context_inputs]
        with pytest.raises(LookupError, match="patches"):
            model(TOKENS)
    assert facts(model) == before
    assert torch.equal(model(TOKENS), bare)
    with pytest.raises(TypeError, match="patches"):
        model(TOKENS, patches=sequence())


@pytest.mark.parametrize("training", [True, False])
def test_it_takes_the_dtype_and_the_mode_of_its_place(training: bool) -> None:
    model = lm().to(torch.bfloat16).train(training)
    group = CrossAttention.on(model, "blocks.#", sequence_dim=6)
    assert {parameter.dtype for parameter in group.parameters()} == {torch.bfloat16}
    assert {module.training for module in model.modules()} == {training}
    assert model(TOKENS, sequence=sequence().bfloat16()).dtype == torch.bfloat16


def test_keys_of_the_base_stay() -> None:
    model = lm()
    keys = set(model.state_dict())
    CrossAttention.on(model, "blocks.#", sequence_dim=6, name="image")
    added = set(model.state_dict()) - keys
    assert keys < set(model.state_dict())
    assert "backbone.blocks.2+CrossAttention.image.gate.gate" in added
    assert all("+CrossAttention.image." in key for key in added)


def test_a_width_that_cannot_be_seen_is_asked_for() -> None:
    tree = sl.Chain(act=nn.Tanh())
    with pytest.raises(ValueError, match="embedding_dim"):
        CrossAttention.on(tree, "act")
    CrossAttention.on(tree, "act", embedding_dim=4)
    assert tree(torch.ones(1, 2, 4), sequence=torch.ones(1, 3, 4)).shape == (1, 2, 4)

"""Checkpointing changes what is kept, and nothing that is computed (case 49)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint  # type: ignore[reportUnknownVariableType]

from suture import Context, select
from suture import layers as sl
from suture.layers import printing
from suture.models.backbone import Backbone, TokenEmbedding

IDS = torch.tensor([[3, 1, 4, 1, 5]])


class LowRank(sl.Chain):
    """What LoRA adds, in train mode: dropout and two small matrices."""

    def __init__(self, width: int) -> None:
        super().__init__(sl.Dropout(0.3), sl.Linear(width, 2, bias=False), sl.Linear(2, width, bias=False))


def block(width: int = 8) -> sl.Chain:
    attention = sl.SelfAttention(width, num_heads=2, causal=True, rotary=sl.Rotary(head_dim=width // 2))
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(width), heads=attention),
        feedforward=sl.Residual(norm=sl.RMSNorm(width), gated=sl.GatedFeedForward(width, 16), dropout=sl.Dropout(0.2)),
    )


def decoder() -> Backbone:
    return Backbone(embedding=TokenEmbedding(10, 8), blocks=sl.Stack(*(block() for _ in range(3))), norm=sl.RMSNorm(8))


def with_checkpoints(model: sl.Composite) -> sl.Composite:
    copied = copy.deepcopy(model)
    select(copied, "blocks.*").wrap(lambda inner: sl.Checkpoint(inner))
    return copied


def gradients(model: nn.Module, call: Callable[[], Any]) -> list[Tensor | None]:
    torch.manual_seed(0)
    model.zero_grad()
    call().pow(2).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def recomputed(model: nn.Module, x: Tensor, **options: Any) -> Tensor:
    """torch's own checkpointing around a whole tree."""
    return cast("Tensor", checkpoint(model, x, use_reentrant=False, **options))


def assert_equal(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    assert len(found) == len(expected)
    assert any(gradient is not None for gradient in expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


class TestGradients:
    @pytest.mark.parametrize("entries", [{}, {"padding_mask": torch.tensor([[False, True, True, True, True]])}])
    def test_bit_for_bit_with_dropout_and_context(self, entries: dict[str, Any]) -> None:
        model = decoder()
        checkpointed = with_checkpoints(model)
        assert_equal(
            gradients(checkpointed, lambda: checkpointed(IDS, **entries)),
            gradients(model, lambda: model(IDS, **entries)),
        )

    @pytest.mark.parametrize("kind", ["composite", "torch's around the tree"])
    def test_low_rank_on_a_frozen_base_whose_input_needs_none(self, kind: str) -> None:
        model = decoder().requires_grad_(False)
        select(model, "query", "up").wrap(
            lambda linear: sl.Sum(linear, low=sl.Chain(sl.Linear(8, linear.out_features)))
        )
        select(model, "blocks.*").insert_after(lambda _: sl.Residual(low_rank=LowRank(8)))
        expected = gradients(model, lambda: model(IDS))
        if kind == "composite":
            checkpointed = with_checkpoints(model)
            found = gradients(checkpointed, lambda: checkpointed(IDS))
        else:
            found = gradients(model, lambda: recomputed(model, IDS))
        assert_equal(found, expected)

    def test_torchs_around_the_tree_with_entries_of_the_call(self) -> None:
        model = decoder()
        entries = {"inputs": {"positions": torch.tensor([[0, 2, 4, 6, 8]])}}
        assert_equal(
            gradients(model, lambda: recomputed(model, IDS, context=entries)),
            gradients(model, lambda: model(IDS, context=entries)),
        )

    def test_of_the_inputs(self) -> None:
        layers = [sl.Linear(4, 8), sl.SiLU(), sl.Linear(8, 4)]
        x = torch.randn(2, 4, requires_grad=True)
        (expected,) = torch.autograd.grad(sl.Chain(*layers)(x).sum(), x)
        (found,) = torch.autograd.grad(sl.Checkpoint(*layers)(x).sum(), x)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("depth", [2, 4])
    def test_in_one_another(self, depth: int) -> None:
        inner = sl.Chain(sl.Linear(4, 4), sl.Dropout(0.5), sl.SetContext("side", "h"), sl.SiLU(), sl.Linear(4, 4))
        outer: sl.Chain = inner
        for _ in range(depth):
            outer = sl.Checkpoint(outer, sl.UseContext("side", "h"), sl.Linear(4, 4), sl.SetContext("side", "h"))
        plain = as_plain_chains(outer)
        x = torch.randn(2, 4)
        assert_equal(gradients(outer, lambda: outer(x)), gradients(plain, lambda: plain(x)))


def as_plain_chains(model: sl.Chain) -> sl.Chain:
    """The same tree and the same weights without checkpoints."""
    copied = copy.deepcopy(model)
    for layer in copied.modules():
        if isinstance(layer, sl.Checkpoint):
            object.__setattr__(layer, "__class__", sl.Chain)
    return copied


class Counts(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class TestWhatIsKept:
    def test_nothing_of_the_inside(self) -> None:
        layers = [sl.Linear(4, 64), sl.SiLU(), sl.Linear(64, 4)]
        assert kept(lambda: sl.Chain(*layers)(torch.ones(2, 4))) > kept(
            lambda: sl.Checkpoint(*layers)(torch.ones(2, 4))
        )

    def test_it_is_computed_again_once_and_only_where_gradients_are_on(self) -> None:
        counts = Counts()
        model = sl.Checkpoint(sl.Linear(2, 2), counts, sl.SiLU())
        model(torch.ones(1, 2)).sum().backward()
        assert counts.calls == 2
        with torch.no_grad():
            model(torch.ones(1, 2))
        assert counts.calls == 3


def kept(call: Callable[[], Tensor]) -> int:
    """How many values autograd keeps for backward."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = call()
    assert result.requires_grad
    return sum(sizes)


class TestContext:
    def test_what_is_written_inside_is_read_outside(self) -> None:
        writer = sl.Checkpoint(sl.Linear(4, 4), sl.SetContext("side", "h"), sl.SiLU())
        model = sl.Chain(writer, sl.Product(sl.Identity(), sl.UseContext("side", "h")))
        plain = as_plain_chains(model)
        x = torch.randn(2, 4)
        assert torch.equal(model(x), plain(x))
        assert_equal(gradients(model, lambda: model(x)), gradients(plain, lambda: plain(x)))

    def test_it_is_computed_again_with_what_was_there_then(self) -> None:
        scaled = sl.Product(sl.Linear(4, 4), sl.UseContext("side", "scale"))
        model = sl.Chain(
            sl.Passthrough(sl.Lambda(doubled), sl.SetContext("side", "scale")),
            sl.Checkpoint(scaled, sl.SiLU()),
            sl.Passthrough(sl.Lambda(torch.zeros_like), sl.SetContext("side", "scale")),
        )
        plain = as_plain_chains(model)
        x = torch.randn(2, 4)
        assert_equal(gradients(model, lambda: model(x)), gradients(plain, lambda: plain(x)))

    @pytest.mark.parametrize("default", [{}, {"default": torch.ones(1)}])
    def test_a_tree_in_a_plain_module_finds_the_blocks_that_were_open(self, default: dict[str, Any]) -> None:
        class Gated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gate = sl.Product(sl.Linear(2, 2), sl.UseContext("side", "gate", **default))

            def forward(self, x: Tensor) -> Tensor:
                return self.gate(x)

        gated = Gated()
        plain, checkpointed = sl.Chain(gated), sl.Chain(sl.Checkpoint(gated))
        entries: dict[str, Any] = {"side": {"gate": torch.full((1,), 3.0)}}
        for given in [entries, {}] if default else [entries]:
            found: list[list[Tensor | None]] = []
            for model in (plain, checkpointed):
                model.zero_grad()
                with model.context(given):
                    y = model(torch.ones(1, 2))
                with model.context(side={"gate": torch.full((1,), 5.0)}):
                    y.sum().backward()
                found.append([parameter.grad for parameter in model.parameters()])
            assert_equal(found[1], found[0])

    def test_what_it_overwrites_itself_is_there_again(self) -> None:
        model = sl.Checkpoint(
            sl.Product(sl.Linear(4, 4), sl.UseContext("side", "scale")), sl.SetContext("side", "scale"), sl.SiLU()
        )
        plain = as_plain_chains(model)
        x, scale = torch.randn(2, 4), torch.tensor(2.0)
        assert_equal(
            gradients(model, lambda: model(x, context={"side": {"scale": scale}})),
            gradients(plain, lambda: plain(x, context={"side": {"scale": scale}})),
        )

    def test_the_callers_context_gets_what_the_first_computation_wrote(self) -> None:
        model = sl.Checkpoint(sl.Linear(4, 4), sl.SetContext("side", "h"), sl.SiLU())
        context = Context({"side": {}})
        result = model(torch.randn(2, 4), context=context)
        written = context.get("side", "h")
        result.sum().backward()
        assert context.get("side", "h") is written

    def test_a_derived_value_is_computed_once_in_forward_for_inside_and_outside(self) -> None:
        calls: list[str] = []

        def derive(x: Tensor) -> Tensor:
            calls.append("")
            return x * 3

        def derived() -> sl.Chain:
            return sl.Chain(Scale(sl.Derived(derive, reads={"x": ("side", "x")})), sl.Linear(4, 4))

        model = sl.Chain(sl.Checkpoint(derived()), sl.Checkpoint(derived()), derived())
        plain, x = as_plain_chains(model), torch.randn(2, 4)
        result = model(torch.ones(2, 4), x=x)
        assert len(calls) == 1
        result.sum().backward()
        assert_equal(
            gradients(model, lambda: model(torch.ones(2, 4), x=x)),
            gradients(plain, lambda: plain(torch.ones(2, 4), x=x)),
        )

    def test_a_write_inside_renews_what_is_derived_from_it_outside(self) -> None:
        triple = sl.Derived(doubled, reads={"x": sl.Read("side", "x", default=1.0)})
        model = sl.Chain(
            Scale(triple), sl.Checkpoint(sl.Lambda(torch.ones_like), sl.SetContext("side", "x")), Scale(triple)
        )
        assert torch.equal(model(torch.zeros(2)), torch.full((2,), 2.0))


def doubled(x: Any) -> Any:
    return x * 2


class Scale(nn.Module):
    """Multiplies by a derived value."""

    def __init__(self, read: sl.Derived) -> None:
        super().__init__()
        self.reads = {"scale": read}

    def forward(self, x: Tensor, scale: Any) -> Tensor:
        return x * scale


class TestCache:
    def test_it_is_refused_where_it_would_be_extended_twice(self) -> None:
        model = with_checkpoints(decoder())
        assert isinstance(model, Backbone)
        cache = model.init_cache(batch=1, length=8)
        with pytest.raises(ValueError, match=r"Checkpoint at 'blocks\.0\+Checkpoint'.* extend the cache inputs\.cache"):
            model(IDS, cache=cache)
        assert cache.length == 0

    def test_it_works_without_gradients(self) -> None:
        model = decoder().eval()
        checkpointed = with_checkpoints(model)
        cache, other = model.init_cache(batch=1, length=8), model.init_cache(batch=1, length=8)
        with torch.no_grad():
            for piece in (IDS[:, :2], IDS[:, 2:]):
                assert torch.equal(checkpointed(piece, cache=cache), model(piece, cache=other))


class TestErrors:
    def test_an_error_inside_is_located(self) -> None:
        model = sl.Chain(first=sl.Checkpoint(inner=sl.Chain(up=sl.Linear(4, 4))))
        with pytest.raises(RuntimeError) as caught:
            model(torch.ones(1, 3))
        assert [note.splitlines()[0] for note in caught.value.__notes__] == [
            "In layer 'first.inner.up' (Linear), called with a (1, 3) tensor of float32 on cpu:"
        ]

    def test_the_end_of_a_recomputation_is_no_error_to_describe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        described: list[object] = []

        def excerpt(*args: object) -> str:
            described.append(args)
            return ""

        monkeypatch.setattr(printing, "excerpt", excerpt)
        sl.Chain(sl.Checkpoint(sl.Linear(4, 4), sl.SiLU(), sl.Linear(4, 4)))(torch.ones(1, 4)).sum().backward()
        assert not described


class TestCompiled:
    @pytest.fixture(autouse=True)
    def nothing_compiled_before(self) -> None:
        torch.compiler.reset()

    @pytest.mark.parametrize("kind", [sl.Chain, sl.Checkpoint])
    def test_with_lengths_that_change(self, kind: type[sl.Chain]) -> None:
        model = sl.Chain(kind(sl.SelfAttention(8, num_heads=2, causal=True)))
        compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
        for length in (5, 7, 1):
            x = torch.randn(1, length, 8, requires_grad=True)
            torch.testing.assert_close(compiled(x), model(x))

    def test_with_a_full_graph_that_still_checkpoints(self) -> None:
        model = with_checkpoints(decoder()).eval()
        model.append(sl.Checkpoint(sl.SetContext("side", "h"), sl.Linear(8, 8)), "last")
        model.append(sl.Sum(sl.Identity(), sl.UseContext("side", "h")))
        operations: list[str] = []

        def backend(graph: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
            operations.extend(str(node.target) for node in graph.graph.nodes)
            return graph.forward

        compiled = torch.compile(model, fullgraph=True, backend=backend)
        assert_equal(gradients(model, lambda: compiled(IDS)), gradients(model, lambda: model(IDS)))
        assert operations.count("tag_activation_checkpoint") == 4

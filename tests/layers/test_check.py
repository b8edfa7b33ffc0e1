"""`check` finds on shapes alone what a call would find, and leaves no trace."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import suture
from suture import Context, check, select
from suture import layers as sl
from suture.models.backbone import Backbone, TokenEmbedding


def decoder(**options: Any) -> Backbone:
    attention = sl.SelfAttention(8, num_heads=2, causal=True, rotary=sl.Rotary(head_dim=4))
    return Backbone(
        embedding=TokenEmbedding(10, 8),
        blocks=sl.Stack(sl.Residual(norm=sl.RMSNorm(8), heads=attention), sl.Residual(up=sl.FeedForward(8, 16))),
        **options,
    )


IDS = torch.tensor([[3, 1, 4, 1, 5]])


class TestWhatItGives:
    def test_the_tree_with_the_shape_that_each_layer_returns(self) -> None:
        model = sl.Chain(
            projections=sl.Parallel(query=sl.Linear(4, 6), key=sl.Linear(4, 6)),
            choose=sl.GetArg(1),
            long=Cast(torch.long),
        )
        assert str(check(model, (2, 4))).splitlines() == [
            "Chain                                       (2, 6) int64",
            "├─ projections: Parallel  (2, 6) float32, (2, 6) float32",
            "│  ├─ query: Linear(4 → 6)                (2, 6) float32",
            "│  └─ key: Linear(4 → 6)                  (2, 6) float32",
            "├─ choose: GetArg(1)                      (2, 6) float32",
            "└─ long: Cast                                     (2, 6)",
        ]

    def test_output_and_calls_are_on_meta(self) -> None:
        checked = check(decoder(), IDS)
        assert (checked.output.shape, checked.output.device.type) == ((1, 5, 8), "meta")
        calls = {call.path: call for call in checked.calls}
        assert calls["blocks.0.heads.projections.query"].output.shape == (1, 5, 8)
        assert [tuple(each.shape) for each in calls["blocks.0.heads.attend"].args] == [(1, 2, 5, 4)] * 3
        assert not any(isinstance(tensor, FakeTensor) for call in checked.calls for tensor in (*call.args, call.output))

    def test_any_result(self) -> None:
        model = sl.Chain(sl.Lambda(lambda x: {"hidden": x, "count": 3}))  # type: ignore[reportUnknownLambdaType]
        checked = check(model, (2, 4))
        assert checked.output["hidden"].shape == (2, 4)
        assert checked.output["count"] == 3
        assert "Lambda(<lambda>)  dict" in str(checked)

    def test_a_layer_at_two_places_is_two_calls(self) -> None:
        shared = nn.Flatten()
        model = sl.Chain(first=shared, view=sl.Lambda(lambda x: x.view(2, 3, 4)), second=shared)  # type: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        assert [
            (call.path, tuple(call.args[0].shape)) for call in check(model, (2, 4, 3)).calls if call.layer is shared
        ] == [
            ("first", (2, 4, 3)),
            ("second", (2, 3, 4)),
        ]

    def test_equal_blocks_are_folded(self) -> None:
        shown = str(check(sl.Stack(*(sl.Chain(sl.Linear(4, 4)) for _ in range(5))), (1, 4)))
        assert "0..4 (x5): Chain" in shown


class Cast(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


class TestInputs:
    @pytest.mark.parametrize(
        "given", [(2, 4), [2, 4], torch.Size([2, 4]), torch.ones(2, 4), torch.ones(2, 4, device="meta")]
    )
    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_of_every_kind(self, given: Any, device: str) -> None:
        assert check(sl.Chain(sl.Linear(4, 3, device=device)), given).output.shape == (2, 3)

    def test_a_shape_has_the_dtype_of_the_model(self) -> None:
        assert check(sl.Chain(sl.Linear(4, 3)).to(torch.bfloat16), (2, 4)).output.dtype == torch.bfloat16

    @pytest.mark.parametrize("layer", [sl.Linear(4, 3), sl.Linear(4, 3, bias=False), sl.Conv1d(2, 2, 1)])
    def test_another_dtype_is_a_mismatch(self, layer: nn.Module) -> None:
        given = torch.ones(1, 2, 4, dtype=torch.float64)
        with pytest.raises(RuntimeError):
            layer(given)
        with pytest.raises(RuntimeError, match=r"one dtype; received .*float64|double") as caught:
            check(sl.Chain(layer), given)
        assert caught.value.__notes__[0].startswith(f"In layer '{type(layer).__name__}'")

    def test_autocast_makes_it_one(self) -> None:
        model = sl.Chain(sl.Linear(4, 3))
        with torch.autocast("cpu", torch.bfloat16):
            assert check(model, (2, 4)).output.dtype == model(torch.ones(2, 4)).dtype == torch.bfloat16

    def test_entries_by_keyword_and_by_context(self) -> None:
        model = sl.Sum(sl.Identity(), sl.Chain(sl.UseContext("side", "x"), sl.Linear(3, 4)))
        assert check(model, (2, 4), x=(2, 3)).output.shape == (2, 4)
        assert check(model, (2, 4), context={"side": {"x": torch.ones(2, 3)}}).output.shape == (2, 4)
        with pytest.raises(RuntimeError) as caught:
            check(model, (2, 4), x=(2, 5))
        assert caught.value.__notes__[0].startswith("In layer 'Chain.Linear' (Linear), called with a (2, 5) tensor")

    def test_entries_of_an_open_block(self) -> None:
        model = sl.Sum(sl.Identity(), sl.Chain(sl.UseContext("side", "x"), sl.Linear(3, 4)))
        with model.context(side={"x": torch.ones(2, 3)}):
            assert check(model, (2, 4)).output.shape == (2, 4)

    def test_a_missing_entry_is_the_error_of_a_call(self) -> None:
        with pytest.raises(sl.MissingContextError, match="'x' of 'side'"):
            check(sl.Chain(sl.UseContext("side", "x")))

    def test_a_cache(self) -> None:
        model = decoder()
        cache = model.init_cache(batch=1, length=8)
        with torch.no_grad():
            model(IDS, cache=cache)
        assert check(model, IDS[:, :2], cache=cache).output.shape == (1, 2, 8)
        assert cache.length == 5
        with pytest.raises(ValueError, match="room for 8 tokens"):
            check(model, IDS, cache=cache)
        with torch.no_grad():
            torch.testing.assert_close(model(IDS[:, :2], cache=cache), model(torch.cat((IDS, IDS[:, :2]), 1))[:, 5:])

    def test_padding(self) -> None:
        mask = torch.tensor([[False, True, True, True, True]])
        assert check(decoder(), IDS, padding_mask=mask).output.shape == (1, 5, 8)


class TestMismatches:
    def test_the_first_is_located(self) -> None:
        model = sl.Chain(body=sl.Stack(sl.Linear(4, 8), sl.Linear(8, 4), sl.Linear(5, 4), sl.Linear(9, 9)))
        with pytest.raises(RuntimeError) as caught:
            check(model, (3, 4))
        (note,) = caught.value.__notes__
        assert note.splitlines() == [
            "In layer 'body.2' (Linear), called with a (3, 4) tensor of float32 on cpu:",
            "  Chain",
            "  └─ body: Stack",
            "     ├─ 0: Linear(4 → 8)",
            "     ├─ 1: Linear(8 → 4)",
            "▸    ├─ 2: Linear(5 → 4)",
            "     └─ 3: Linear(9 → 9)",
        ]

    def test_in_a_plain_module_too(self) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.ModuleDict({"inner": nn.Linear(4, 4)})["inner"])
        with pytest.raises(RuntimeError) as caught:
            check(nn.Sequential(nn.ReLU(), model), (3, 4))
        (note,) = caught.value.__notes__
        assert note.startswith("In layer '1.1' (Linear), called with a (3, 8) tensor of float32 on cpu:\n")
        assert "▸    └─ 1: Linear(4 → 4)" in note

    def test_torch_does_not_log_it_as_well(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG), pytest.raises(RuntimeError):
            check(sl.Chain(sl.Linear(4, 3, bias=False)), (2, 5))
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    def test_what_looks_at_values_is_explained(self) -> None:
        with pytest.raises(Exception, match="_local_scalar_dense") as caught:
            check(sl.Chain(sl.Lambda(lambda x: x if x.sum() > 0 else -x)), (2, 4))  # type: ignore[reportUnknownLambdaType, reportUnknownMemberType]
        assert caught.value.__notes__[0].startswith("In layer 'Lambda'")
        assert "looks at the values" in caught.value.__notes__[1]

    def test_another_device(self) -> None:
        class Elsewhere(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + torch.ones(4, device="cuda")

        with pytest.raises(RuntimeError, match="device"):
            check(sl.Chain(Elsewhere()), (2, 4))


class TestArity:
    def test_a_tuple_spread_over_a_layer_that_takes_one(self) -> None:
        model = sl.Chain(sl.Parallel(sl.Identity(), sl.Identity()), body=sl.Chain(up=sl.Linear(4, 4)))
        with pytest.raises(TypeError, match=r"^Linear takes 1 argument \(input\); received 2: .*sl\.GetArg") as caught:
            check(model, (2, 4))
        assert caught.value.__notes__[0].startswith("In layer 'body.up' (Linear)")

    def test_too_few(self) -> None:
        model = sl.Chain(sl.Linear(4, 4), sl.ScaledDotProductAttention())
        with pytest.raises(TypeError, match=r"takes 3 .*\(query, key, value.*\); received 1: .*as the layer before"):
            check(model, (2, 4))

    def test_none_at_all(self) -> None:
        with pytest.raises(TypeError, match=r"Linear takes 1 argument \(input\); received 0\."):
            check(sl.Chain(sl.Linear(4, 4)))

    def test_optional_arguments_count(self) -> None:
        model = sl.Chain(sl.Parallel(sl.Identity(), sl.Identity()), nn.Bilinear(4, 4, 3))
        assert check(model, (2, 4)).output.shape == (2, 3)
        with pytest.raises(TypeError, match=r"Embedding takes 1 argument \(input\); received 2"):
            check(sl.Chain(sl.Parallel(sl.Identity(), sl.Identity()), TokenEmbedding(4, 4)), IDS)

    def test_distribute(self) -> None:
        model = sl.Chain(
            two=sl.Parallel(sl.Identity(), sl.Identity()), three=sl.Distribute(*(sl.ReLU() for _ in range(3)))
        )
        with pytest.raises(TypeError, match=r"each of its 3 children\. Received 2") as caught:
            check(model, (2, 4))
        assert caught.value.__notes__[0].startswith("In layer 'three' (Distribute)")

    def test_a_sum_of_a_tuple(self) -> None:
        with pytest.raises(TypeError, match="combines one result of each branch"):
            check(sl.Sum(sl.Parallel(sl.Identity(), sl.Identity()), sl.Identity()), (2, 4))

    def test_a_wrong_keyword_of_a_plain_module_is_pythons_error(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
            check(nn.Linear(4, 4), (2, 4), mask=(2, 4))


class Keeps(nn.Module):
    """A layer that keeps what it sees, and counts in a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.last = x
        self.count.add_(1)
        self.count = self.count + 1
        return x


class TestNothingRemains:
    def test_in_the_layers(self) -> None:
        keeps, norm = Keeps(), nn.BatchNorm1d(4)
        model = sl.Chain(keeps, norm, sl.Dropout(0.5), sl.Linear(4, 4)).train()
        before = {module: dict(vars(module)) for module in model.modules()}
        tensors = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
        check(model, (2, 4))
        assert {module: dict(vars(module)) for module in model.modules()} == before
        for name, tensor in model.state_dict(keep_vars=True).items():
            assert (id(tensor), torch.equal(tensor, tensors[name][1])) == (tensors[name][0], True)
            assert not isinstance(tensor, FakeTensor)
        assert keeps.seen == []
        assert not hasattr(keeps, "last")

    @pytest.mark.parametrize("width", [4, 5])
    def test_of_hooks_gradients_and_random_numbers(self, width: int) -> None:
        model = sl.Chain(sl.Linear(4, 4), sl.Dropout(0.5))
        model(torch.ones(1, 4)).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        state = torch.random.get_rng_state()
        try:
            check(model, (2, width))
        except RuntimeError:
            assert width == 5
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(one is other.grad for one, other in zip(gradients, model.parameters(), strict=True))
        model.register_forward_hook(lambda module, args, output: None)
        assert model(torch.ones(1, 4)).shape == (1, 4)

    def test_of_what_was_set_for_the_next_call(self) -> None:
        model = sl.Chain(sl.UseContext("side", "x"), sl.Linear(4, 4))
        model.set_context("side", {"x": torch.ones(2, 4)})
        check(model)
        assert model().shape == (2, 4)

    def test_in_a_context_of_the_callers(self) -> None:
        context = Context({"side": {"x": torch.ones(2, 4)}})
        check(sl.Chain(sl.UseContext("side", "x"), sl.SetContext("side", "h")), context=context)
        assert context.get("side", "h", None) is None

    def test_tied_weights_stay_tied(self) -> None:
        model = sl.Chain(sl.Embedding(10, 4), head=sl.Linear(4, 10, bias=False))
        head, table = model.layer("head", sl.Linear), model.layer("Embedding", sl.Embedding)
        head.weight = table.weight
        check(model, IDS)
        assert head.weight is table.weight

    def test_of_a_compiled_model(self) -> None:
        model = sl.Chain(sl.Linear(4, 4), sl.SiLU())
        model.compile(backend="eager", fullgraph=True)
        expected = model(torch.ones(2, 4))
        check(model, (3, 4))
        assert torch.equal(model(torch.ones(2, 4)), expected)


class TestTrees:
    def test_an_adapted_one(self) -> None:
        model = decoder()
        select(model, "query").wrap(lambda linear: sl.Sum(linear, low=sl.Chain(sl.Linear(8, 2), sl.Linear(2, 8))))
        calls = {call.path: call.output.shape for call in check(model, IDS).calls if isinstance(call.output, Tensor)}
        assert calls["blocks.0.heads.projections.query+Sum.low.Linear"] == (1, 5, 2)
        assert calls["blocks.0.heads.projections.query"] == (1, 5, 8)

    def test_a_part_of_one(self) -> None:
        model = decoder()
        part = model.layer("blocks.1", sl.Residual)
        assert check(part, (1, 5, 8)).output.shape == (1, 5, 8)
        with pytest.raises(RuntimeError) as caught:
            check(part, (1, 5, 7))
        assert caught.value.__notes__[0].startswith("In layer 'blocks.1.up.")

    def test_a_plain_module_that_returns_a_structure(self) -> None:
        class Structured(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 3)

            def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, tuple[Tensor, None]]:
                return {"hidden": (self.inner(x) * scale, None)}

        checked = check(Structured(), (2, 4), scale=(3,))
        assert checked.output["hidden"][0].shape == (2, 3)
        assert str(checked).splitlines() == [
            "Structured                 dict",
            "└─ inner: Linear(4 → 3)  (2, 3)",
        ]

    def test_an_edited_plain_module(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        select(model, "0").insert_after(lambda _: sl.Chain(sl.Linear(4, 6)))
        checked = check(model, (2, 4))
        assert "0+Chain: Chain" in str(checked)
        assert checked.output.shape == (2, 6)

    def test_a_checkpointed_one(self) -> None:
        assert check(sl.Checkpoint(sl.Linear(4, 4), sl.SiLU()), (2, 4)).output.shape == (2, 4)

    def test_what_is_too_large_for_memory(self) -> None:
        with torch.device("meta"):
            model = sl.Chain(sl.Linear(10**6, 10**7), sl.Linear(10**7, 4))
        assert check(model, (10**6, 10**6)).output.shape == (10**6, 4)

    def test_in_another_thread(self) -> None:
        assert suture.check is check
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(str(check(sl.Chain(sl.ReLU()), (1, 2)))))
        thread.start()
        thread.join()
        assert "(1, 2)" in found[0]

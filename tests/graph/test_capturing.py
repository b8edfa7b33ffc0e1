from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suture import CausalLM, Graph, Input, SelectionError, capture, intercept, patch, rewire, trace
from suture import layers as sl
from suture.layers.frames import call_module
from suture.models import Backbone, TokenEmbedding
from tests.plain_models import ImageClassifier, tiny_gpt2

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def block() -> sl.Chain:
    return sl.Chain(
        attention=sl.Residual(norm=sl.RMSNorm(8), heads=sl.SelfAttention(8, num_heads=2, causal=True)),
        feedforward=sl.Residual(norm=sl.RMSNorm(8), gated=sl.GatedFeedForward(8, 16)),
    )


def decoder() -> Backbone:
    return Backbone(embedding=TokenEmbedding(10, 8), blocks=sl.Stack(*(block() for _ in range(3))), norm=sl.RMSNorm(8))


@pytest.fixture(params=["tree", "graph"])
def model(request: pytest.FixtureRequest) -> Any:
    tree = sl.Chain(
        up=sl.Linear(4, 8), inner=sl.Residual(norm=sl.RMSNorm(8), mix=nn.Linear(8, 8)), down=sl.Linear(8, 2)
    )
    return tree if request.param == "tree" else trace(tree, Input("x", shape=(None, 4)))


# Capturing


def test_what_layers_give_is_seen(model: Any) -> None:
    with capture(model, "up", "inner") as seen:
        model(X)
    assert list(seen) == ["up", "inner"]
    up = model.get_submodule("up")
    assert torch.equal(seen["up"], up(X))
    assert seen["inner"].shape == (3, 8)
    assert not seen["up"].requires_grad


def test_a_unique_end_of_a_path_is_enough(model: Any) -> None:
    with capture(model, "**") as seen:
        model(X)
    assert torch.equal(seen["mix"], seen["inner.mix"])
    with pytest.raises(KeyError, match="was not captured"):
        _ = seen["attention"]


def test_nothing_selected_is_an_error(model: Any) -> None:
    with pytest.raises(SelectionError), capture(model, "attention"):
        pass


def test_a_leaf_at_two_places_is_seen_at_each() -> None:
    leaf = sl.Linear(4, 4)
    tree = sl.Chain(first=leaf, then=sl.Chain(second=leaf))
    with capture(tree, "first") as seen:
        tree(X)
    assert list(seen) == ["first"]
    assert torch.equal(seen["first"], leaf(X))


def test_gradients_when_they_are_asked_for(model: Any) -> None:
    with capture(model, "inner", gradients=True) as seen:
        model(X).sum().backward()
    gradient = seen.gradient("inner")
    assert gradient is not None
    assert torch.allclose(gradient, model.get_submodule("down").weight.sum(0).expand(3, 8))
    with capture(model, "inner") as seen:
        model(X).sum().backward()
    with pytest.raises(ValueError, match="gradients=True"):
        seen.gradient("inner")


def test_prompt_and_generated_tokens_are_seen() -> None:
    tree, head = decoder(), nn.Linear(8, 10)
    for backbone in (tree, trace(tree, *tree.graph_inputs())):
        other = CausalLM(backbone, head).eval()
        with capture(other, "blocks.1") as seen:
            ids = other.generate(IDS, max_new_tokens=4, stop_ids=[])
        assert len(seen.calls("blocks.1")) == 4
        with capture(other, "blocks.1") as whole, torch.no_grad():
            other(ids[:, :-1])
        assert torch.allclose(seen["blocks.1"], whole["blocks.1"], atol=1e-5)


def test_plain_modules_are_seen_through_hooks() -> None:
    gpt2 = tiny_gpt2()
    with capture(gpt2, "h.1.mlp", "ln_f") as seen, torch.no_grad():
        gpt2(IDS)
    assert seen["h.1.mlp"].shape == (1, 5, 16)
    assert torch.allclose(gpt2.lm_head(seen["ln_f"]), gpt2(IDS).logits)
    assert not any(module._forward_hooks for module in gpt2.modules())


# Patching


def test_what_a_layer_gives_is_changed(model: Any) -> None:
    down = model.get_submodule("down")
    with patch(model, {"inner": lambda y: y * 0}):
        assert torch.allclose(model(X), down.bias.expand(3, 2))
    with patch(model, {"mix": torch.zeros(3, 8)}), capture(model, "up", "inner") as seen:
        model(X)
    assert torch.equal(seen["inner"], seen["up"])
    with pytest.raises(ValueError, match="a tensor of"), patch(model, {"mix": torch.zeros(2, 8)}):
        model(X)


def test_two_changes_of_one_layer_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="is changed by 'mix' and by"), patch(model, {"mix": abs, "inner.*": abs}):
        pass


def test_a_plain_module_is_changed_through_hooks() -> None:
    classifier = ImageClassifier().eval()
    with patch(classifier, {"layer2.1": lambda y: y * 0}):
        assert torch.allclose(classifier(torch.ones(1, 3, 8, 8)), classifier.fc.bias)


# Call functions


def test_blocks_nest_and_end_exactly(model: Any) -> None:
    def times(factor: float) -> Any:
        def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
            y = layer(*args, **kwargs)
            return y * factor if layer is model.get_submodule("down") else y

        return call

    before = model(X)
    with intercept(times(2)):
        with intercept(times(3)):
            assert torch.allclose(model(X), 6 * before)
        assert torch.allclose(model(X), 2 * before)
    assert torch.equal(model(X), before)
    assert nn.Module.__call__ is call_module


def test_a_block_ends_after_an_exception(model: Any) -> None:
    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("stop")

    before = model(X)
    with pytest.raises(RuntimeError, match="stop"), intercept(call):
        model(X)
    assert torch.equal(model(X), before)
    assert nn.Module.__call__ is call_module


def test_other_threads_are_not_concerned(model: Any) -> None:
    before, results = model(X), list[Tensor]()

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return layer(*args, **kwargs) * 0

    with intercept(call):
        thread = threading.Thread(target=lambda: results.append(model(X)))
        thread.start()
        thread.join()
    assert torch.equal(results[0], before)


def test_a_layer_may_be_called_twice_or_not_at_all_or_otherwise(model: Any) -> None:
    mix, inner = model.get_submodule("inner.mix"), []

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if layer is mix:
            return layer(layer(*args))
        if isinstance(layer, sl.RMSNorm):
            return args[0]
        inner.append(type(layer).__name__)
        return layer(*args, **kwargs)

    up, down = model.get_submodule("up"), model.get_submodule("down")
    with intercept(call):
        result = model(X)
    y = up(X)
    assert torch.allclose(result, down(y + mix(mix(y))), atol=1e-6)
    assert "Residual" in inner


def test_new_layers_of_a_call_function_run_directly(model: Any) -> None:
    seen: list[str] = []
    new = sl.Chain(sl.ReLU(), sl.Identity())

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(layer).__name__)
        y = layer(*args, **kwargs)
        return new(y) if isinstance(layer, sl.Residual) else y

    with intercept(call):
        model(X)
    assert "ReLU" not in seen
    assert "RMSNorm" in seen


def test_intercepting_is_rewiring_that_happens_now(model: Any) -> None:
    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        return torch.tanh(y) if isinstance(layer, nn.Linear) else y

    graph = model if isinstance(model, Graph) else trace(model, Input("x", shape=(None, 4)))
    with intercept(call):
        eager = model(X)
    assert torch.equal(eager, rewire(graph, call)(X))


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a call function"), intercept(None):  # pyright: ignore[reportArgumentType]
        pass


def test_compiled_code_says_that_it_cannot_be_intercepted() -> None:
    tree = sl.Chain(sl.Linear(4, 4))
    compiled = torch.compile(tree, fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="stands in for layer calls"), capture(tree, "Linear"):
        compiled(X)

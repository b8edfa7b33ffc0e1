from __future__ import annotations

import pytest
import torch

from suture.weights.names import NameTable, Rule

TABLE = NameTable(
    (
        Rule("model.layers.#.mlp.up_proj", "blocks.#.up"),
        Rule("model.layers.#.experts.#.w1", "blocks.#.expert.#.gate"),
        Rule("h.#.c_proj", "blocks.#.output", torch.t),
        Rule("lm_head", "head"),
    ),
    ignored=("model.layers.#.rotary.inv_freq",),
)


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ("model.layers.0.mlp.up_proj.weight", "blocks.0.up.weight"),
        ("model.layers.17.mlp.up_proj.bias", "blocks.17.up.bias"),
        ("model.layers.1.experts.12.w1.weight", "blocks.1.expert.12.gate.weight"),
        ("lm_head.weight", "head.weight"),
    ],
)
def test_names_go_both_ways(stored: str, key: str) -> None:
    there, back = TABLE.to_tree(stored), TABLE.to_stored(key)

    assert there is not None
    assert back is not None
    assert (there[0], back[0]) == ((key,), stored)


@pytest.mark.parametrize("name", ["model.layers.x.mlp.up_proj.weight", "xlm_head.weight", "lm_head", "model.layers"])
def test_a_name_that_no_rule_fits_has_no_other_side(name: str) -> None:
    assert TABLE.to_tree(name) is None
    assert TABLE.to_stored(name) is None


def test_dots_of_a_rule_are_dots() -> None:
    assert TABLE.to_tree("modelXlayers.0.mlp.up_proj.weight") is None


def test_ignored_names_are_known() -> None:
    assert TABLE.is_ignored("model.layers.3.rotary.inv_freq")
    assert not TABLE.is_ignored("model.layers.3.rotary.scale")


def test_a_layout_says_the_stored_shape_and_values() -> None:
    translated = TABLE.to_tree("h.0.c_proj.weight")
    assert translated is not None
    rule = translated[1]
    weight = torch.arange(6.0).view(2, 3)

    assert rule.shape([weight]) == (3, 2)
    assert torch.equal(rule.stored_values([weight]), weight.t())


def test_a_layout_of_more_dimensions_is_stored_with_those_of_the_tensor() -> None:
    rule = Rule("a", "b", lambda weight: weight.view(2, 2, 3).transpose(0, 1))
    weight = torch.arange(12.0).view(4, 3)

    assert rule.shape([weight]) == (4, 3)
    assert torch.equal(rule.stored_values([weight]), weight[[0, 2, 1, 3]])


def test_fused_layers_have_one_stored_name() -> None:
    table = NameTable((Rule("h.#.qkv", ("blocks.#.query", "blocks.#.key", "blocks.#.value"), torch.t),))

    there = table.to_tree("h.2.qkv.weight")
    assert there is not None
    assert there[0] == ("blocks.2.query.weight", "blocks.2.key.weight", "blocks.2.value.weight")
    assert [translated[0] for key in there[0] if (translated := table.to_stored(key))] == ["h.2.qkv.weight"] * 3


def test_fused_layers_are_stored_one_after_another() -> None:
    rule = Rule("qkv", ("query", "key"), torch.t)
    query, key = torch.arange(6.0).view(2, 3), torch.arange(3.0).view(1, 3)

    assert rule.shape([query, key]) == (3, 3)
    assert torch.equal(rule.stored_values([query, key]), torch.cat((query, key)).t())


def test_the_first_of_several_rules_says_how_a_layer_is_stored() -> None:
    table = NameTable((Rule("model.wte", "embedding"), Rule("wte", "embedding")))

    assert (table.to_stored("embedding.weight") or ("",))[0] == "model.wte.weight"
    assert (table.to_tree("wte.weight") or ("",))[0] == ("embedding.weight",)


def test_stored_values_may_be_greater_than_those_of_the_tree() -> None:
    assert Rule("norm", "norm", added=1.0).stored_values([torch.zeros(2)]).tolist() == [1.0, 1.0]

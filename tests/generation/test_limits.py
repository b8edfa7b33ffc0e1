from __future__ import annotations

import numpy
import pytest

from suture.generation.limits import new_token_limits


def test_both_limits_hold() -> None:
    assert new_token_limits([3, 8], max_new_tokens=4, max_length=10) == [4, 2]


def test_the_default_ends_at_the_last_position() -> None:
    assert new_token_limits([3, 100], positions=130) == [127, 30]
    assert new_token_limits([3]) == [128]


def test_a_prompt_longer_than_the_positions_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="The prompt has 65 tokens, but the model has 64 positions"):
        new_token_limits([3, 65], max_new_tokens=1, positions=64)


def test_a_prompt_that_fills_all_positions() -> None:
    assert new_token_limits([64], max_new_tokens=0, positions=64) == [0]
    with pytest.raises(ValueError, match="The prompt fills all 64 positions"):
        new_token_limits([64], positions=64)


@pytest.mark.parametrize("limits", [{"max_new_tokens": 61}, {"max_length": 65}])
def test_more_than_the_positions_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match=r"65 together, but the model has 64 positions\. Ask for at most 60 new tokens"
    ):
        new_token_limits([4], **limits, positions=64)


def test_whole_numbers_of_other_libraries_will_do() -> None:
    assert new_token_limits([4], max_new_tokens=numpy.int64(3)) == [3]  # pyright: ignore[reportArgumentType]

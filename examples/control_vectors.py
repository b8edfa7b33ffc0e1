"""A control vector put in by a call function: rewiring in three lines.

The same can be done with an edit of the tree (`ControlVector.on`); here the model becomes a graph that is steered,
and the original stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from suture import CausalLM, ControlVector, capture, rewire
from suture.models import TransformerBlock

QUESTION = [{"role": "user", "content": "Tell me about your day."}]
JOYFUL = "I feel wonderful! Life is bright and full of joy, and"
DESPAIRING = "I feel terrible. Life is dark and full of pain, and"


class ControlVectorLayer(nn.Module):
    """Adds a direction (D,) to hidden states (B, T, D)."""

    def __init__(self, direction: Tensor) -> None:
        super().__init__()
        self.direction = nn.Parameter(direction, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.direction


def main() -> None:
    """Steers SmolLM2 from blocks 8 to 19, and shows that nothing happened to the original."""
    lm = CausalLM.from_pretrained("smollm2")
    vector = ControlVector.fit(lm, [JOYFUL], [DESPAIRING], layers="blocks.8-19")
    blocks = list(lm.backbone.layers(TransformerBlock))

    def call(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        y = layer(*args, **kwargs)
        number = blocks.index(layer) if isinstance(layer, TransformerBlock) else -1
        return ControlVectorLayer(0.25 * vector[f"blocks.{number}"])(y) if 8 <= number <= 19 else y

    steered = CausalLM(rewire(lm.backbone, call), lm.head, lm.tokenizer)
    for name, model in (("as it was", lm), ("steered", steered)):
        print(f"{name}: {model.generate(QUESTION, max_new_tokens=24)}")
    added = [key for key in steered.state_dict() if "ControlVectorLayer" in key]
    print(f"{len(added)} vectors were added, such as {added[0]}")

    # What a layer gives is seen by its path, in generation too.
    with capture(steered, "blocks.19") as seen:
        steered.generate("Once upon a time", max_new_tokens=4)
    print(f"block 19 gave {tuple(seen['blocks.19'].shape)}")


if __name__ == "__main__":
    with torch.no_grad():
        main()

"""A part of a model cut out of its graph: it shares the weights, and is a model of its own.

A logit lens is made of it: what would the model say if it ended after block k?
"""

from __future__ import annotations

import torch

from suture import CausalLM, Graph, trace
from suture import layers as sl


@torch.no_grad()
def main() -> None:
    """Reads SmolLM2 after some of its blocks, and runs a part from the middle by itself."""
    lm = CausalLM.from_pretrained("smollm2")
    graph = trace(lm.backbone)
    token_ids = graph.inputs["token_ids"]
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise SystemExit("The model has no tokenizer.")
    ids = torch.tensor([tokenizer.encode("The capital of France is")])

    # One graph with several outputs: the norm of the model after every block that is looked at.
    looked_at, norm = (5, 15, 25, 29), lm.layer("backbone.norm", sl.RMSNorm)
    states = {number: graph[f"blocks.{number}"].output for number in looked_at}
    lens = Graph(inputs=token_ids, outputs=states, source=lm.backbone)
    for number, hidden in lens(ids).items():
        logits = lm.head(norm(hidden[:, -1:]))
        print(f"after block {number:2}: {tokenizer.decode(logits.argmax(-1)[0].tolist())!r}")

    # From the output of one block to that of another. What else it needs, such as positions, are inputs too.
    middle = Graph(
        inputs={"hidden": graph["blocks.9"].output, "token_ids": token_ids},
        outputs=graph["blocks.19"].output,
        source=lm.backbone,
    )
    print(f"blocks 10 to 19: {sum(parameter.numel() for parameter in middle.parameters()):,} weights, shared")
    hidden = Graph(inputs=token_ids, outputs=graph["blocks.9"].output)(ids)
    whole = Graph(inputs=token_ids, outputs=graph["blocks.19"].output)(ids)
    print(f"run by itself it gives the same: {torch.equal(middle(hidden, ids), whole)}")


if __name__ == "__main__":
    main()

"""The language model: a backbone and a head with a tokenizer, that continues text.

A model's text is made by one loop (`decoding`), which knows the model's inputs and outputs and nothing inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeGuard, Unpack, cast, overload

import torch
from torch import Tensor, nn

from suture import models
from suture.generation.chat import Message
from suture.generation.decoding import Decoding
from suture.generation.function_backbone import FunctionBackbone
from suture.generation.limits import new_token_limits
from suture.generation.next_token import LastPositions, NextToken
from suture.generation.prompts import Prompts, read_prompts
from suture.generation.sampling import Greedy, Sampler, ensure_sampler, random_numbers
from suture.generation.stopping import Reply, StopConditions
from suture.generation.text import Tokenizer, as_tokenizer
from suture.layers import Chain, Composite, Lambda, one_call
from suture.layers.symbolic import TakesContext
from suture.models import Description
from suture.weights.checkpoint import CheckpointError
from suture.weights.vocabulary import SpecialIds, Vocabulary

if TYPE_CHECKING:
    import tokenizers


class GenerationOptions(TypedDict, total=False):
    """The keyword arguments that `generate` and `stream` share; `CausalLM.generate` says what they mean."""

    max_new_tokens: int | None
    max_length: int | None
    sampler: Sampler | None
    stop: str | Sequence[str]
    stop_ids: Sequence[int] | None
    seed: int | None


class ResultOptions(GenerationOptions, total=False):
    """The keyword arguments of `generate`."""

    strip_prompt: bool
    padding_mask: Tensor | None


class CausalLM(Chain):
    """A causal language model: `lm(token_ids)` gives the logits (B, T, V) of the tokens that follow ids (B, T).

    Between `backbone` and `head` stands `last`, which keeps all positions unless told otherwise:
    `lm(token_ids, last_positions=1)` computes the logits of the last position only. What the backbone takes, the model
    takes: `lm(token_ids, padding_mask=...)`.

    Args:
        backbone: Makes hidden states (B, T, D) of ids. A tree, a graph, a module, or a function with `token_ids` and
            any of the inputs `padding_mask`, `attention_mask`, `positions`, `embeddings` and `cache`. A composite that
            has a place already is taken as its structural copy.
        head: Makes logits (B, T, V) of hidden states.
        tokenizer: A `Tokenizer`, a `tokenizers.Tokenizer`, or None for a model of ids alone.

    >>> def embed(token_ids):
    ...     return torch.nn.functional.one_hot(token_ids, 4).float()
    >>> count_on = CausalLM(embed, lambda hidden: hidden.roll(1, dims=-1))
    >>> count_on.generate([0], max_new_tokens=5)
    [0, 1, 2, 3, 0, 1]
    """

    backbone: Composite
    head: nn.Module
    tokenizer: Tokenizer | None
    special_ids: SpecialIds
    """The ids that start, end and pad a text: those of the tokenizer, or of a checkpoint that has none."""
    description: Description | None
    """What the checkpoint said besides, which saving needs; None for a model that came from none."""

    def __init__(
        self,
        backbone: Composite | Callable[..., Tensor],
        head: nn.Module | Callable[[Tensor], Tensor],
        tokenizer: Tokenizer | Vocabulary | tokenizers.Tokenizer | None = None,
    ) -> None:
        super().__init__(
            backbone=at_a_place_of_its_own(backbone if _reads_inputs(backbone) else FunctionBackbone(backbone)),
            last=LastPositions(),
            head=at_a_place_of_its_own(head if isinstance(head, nn.Module) else Lambda(head)),
        )
        self.tokenizer = as_tokenizer(tokenizer)
        self.special_ids = SpecialIds() if self.tokenizer is None else self.tokenizer.vocabulary.special_ids
        self.description = None

    @classmethod
    def from_pretrained(
        cls, source: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Self:
        """Reads a model from a checkpoint, in eval mode.

        `source` is a folder as transformers saves it, a .gguf file, the id of a repository on the Hugging Face Hub, or
        the name of an embedded model, such as "smollm2". Weights are read straight into `dtype` on `device`.

        Raises `MissingFileError` where the model is not found, and `CheckpointError` where it is damaged or not
        understood.
        """
        loaded = models.load(source, dtype=dtype, device=device)
        lm = cls(loaded.backbone, loaded.head, loaded.description.vocabulary)
        lm.special_ids, lm.description = loaded.description.special_ids, loaded.description
        return lm.eval()

    def save_pretrained(self, folder: str | Path, max_shard_size: int | str = "5GB") -> None:
        """Saves the model as a folder that transformers loads with equal logits, and `from_pretrained` too.

        Blocks may have been removed, repeated or moved. Raises `CheckpointError` where the model has become something
        that its family is not, and `ValueError` where it came from no checkpoint.
        """
        if self.description is None:
            raise ValueError(
                "save_pretrained writes a model in the form of the checkpoint that it came from, and this one came "
                "from none. Make it with CausalLM.from_pretrained, or save its state_dict()."
            )
        backbone, *between, head = self
        if backbone is not self.backbone or head is not self.head or any(map(changes_hidden_states, between)):
            raise CheckpointError(
                "Something stands beside or around the backbone and the head of this model, and a checkpoint has no "
                "place for it, so it was not saved. Take it out first (edit.undo(), adapter.eject())."
            )
        models.save(folder, self.backbone, self.head, self.description, max_shard_size)

    @property
    def device(self) -> torch.device:
        """Where the ids go: the device of the first parameter."""
        parameter = next(self.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    def init_cache(self, batch: int, length: int) -> Any:
        """An empty cache of the backbone, for `lm(token_ids, cache=cache)`."""
        return cast("Any", self.backbone).init_cache(batch, length)

    @overload
    def generate(self, prompt: str, **options: Unpack[ResultOptions]) -> str: ...
    @overload
    def generate(self, prompt: Tensor, **options: Unpack[ResultOptions]) -> Tensor: ...
    @overload
    def generate(self, prompt: list[str] | tuple[str, ...], **options: Unpack[ResultOptions]) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[Message], **options: Unpack[ResultOptions]) -> str: ...
    @overload
    def generate(self, prompt: Sequence[Sequence[Message]], **options: Unpack[ResultOptions]) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[int], **options: Unpack[ResultOptions]) -> list[int]: ...
    @overload
    def generate(self, prompt: Sequence[Sequence[int]], **options: Unpack[ResultOptions]) -> list[list[int]]: ...
    def generate(
        self,
        prompt: Any,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        seed: int | None = None,
        strip_prompt: bool = False,
        padding_mask: Tensor | None = None,
    ) -> Any:
        """Continues one prompt or a batch of prompts, of unequal lengths too.

        The result has the form of the prompt: a string for a string, ids for ids, a list for a list. It holds the
        prompt, unless `strip_prompt`. Chat messages, one conversation or a list of them, give the replies alone. In a
        tensor, rows that ended early are filled with the pad id; lists are as long as their rows became. The id that
        ends a row is one of its ids and not of its text, and text ends before a stop string. Special tokens have no
        text.

        The model runs in the mode that it is in, without gradients. The call counts as one call for contexts.

        Args:
            prompt: A string, a list of strings, chat messages (`[{"role": "user", "content": "Hello"}]`) or a list of
                conversations, ids (B, T) or (T,) in a tensor, a list of ids or a list of such lists. An empty prompt
                begins with the start token.
            max_new_tokens: The most tokens to add; 0 gives the prompt back. Without it and without `max_length`: 128,
                or as many as the model has positions for.
            max_length: The most tokens of prompt and reply together, counted for each row without its padding.
            sampler: Chooses the tokens, such as `TopP(0.9, temperature=0.7)` of `suture.generation`. None: the
                likeliest, always.
            stop: A string, or several, that end a row. One that is a special token of the model ends it as an id.
            stop_ids: The ids that end a row. None: the model's own; an empty list: none.
            seed: Of the random numbers of this call. None: another one each time. Torch's global random numbers are
                neither used nor changed.
            strip_prompt: Whether to leave the prompt out of the result.
            padding_mask: (B, T), False where a tensor prompt is padding, which must be on the left. None: all ids are
                real.

        Raises:
            TypeError: A value is of the wrong type, or the backbone returned something else than hidden states.
            ValueError: A value makes no sense, a limit leaves no room for the prompt, or the model has too few
                positions.
        """
        with one_call(self):
            prompts = read_prompts(prompt, self.tokenizer, padding_mask)
            decoding = self._begin(
                prompts,
                max_new_tokens=max_new_tokens,
                max_length=max_length,
                sampler=sampler,
                stop=stop,
                stop_ids=stop_ids,
                seed=seed,
            )
            while not decoding.done:
                decoding.step()
        return prompts.result(decoding.replies, strip_prompt, self._pad_id)

    def stream(
        self, prompt: str | Sequence[Message] | Sequence[int] | Tensor, **options: Unpack[GenerationOptions]
    ) -> Iterator[str]:
        """Continues one prompt, and gives the text of the reply piece by piece, as soon as it is certain.

        Joined, the pieces are the text that `generate` adds to the prompt. Options and errors are those of `generate`.
        Errors in the arguments are raised at once; contexts given until then hold to the end of the stream.
        """
        with one_call(self):
            prompts = read_prompts(prompt, self.tokenizer)
            if len(prompts.rows) != 1:
                raise ValueError(
                    f"stream takes one prompt, but received {len(prompts.rows)}. Use generate for several."
                )
            decoding = self._begin(prompts, streamed=True, **options)
            variables = copy_context()
        return pieces(decoding, variables)

    def _begin(
        self,
        prompts: Prompts,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        sampler: Sampler | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Sequence[int] | None = None,
        seed: int | None = None,
        streamed: bool = False,
    ) -> Decoding:
        if self.device.type == "meta":
            raise ValueError("The model is on the meta device, where weights have no values: it has nothing to say.")
        sampler = Greedy() if sampler is None else sampler
        ensure_sampler("sampler", sampler)
        rows = [self._or_start(row) for row in prompts.rows]
        limits = new_token_limits(
            [len(row) for row in rows],
            max_new_tokens=max_new_tokens,
            max_length=max_length,
            positions=getattr(self.backbone, "max_positions", None),
        )
        conditions = StopConditions(stop, self.special_ids.eos_ids if stop_ids is None else stop_ids, self.tokenizer)
        wants_text = prompts.wants_text or streamed or bool(conditions.strings)
        replies = [
            Reply(limit, conditions, prompts.detokenizer(row, self.tokenizer) if wants_text else None)
            for row, limit in enumerate(limits)
        ]
        width, limit = max(map(len, rows)), max(limits)
        padded = any(len(row) != width for row in rows)
        model = NextToken(self, batch=len(rows), length=max(width + limit - 1, 1), padded=padded)
        return Decoding(model, rows, replies, limit, sampler, random_numbers(seed, self.device), self._pad_id)

    def _or_start(self, row: list[int]) -> list[int]:
        if row:
            return row
        if self.special_ids.bos_id is None:
            raise ValueError("The prompt is empty, and the model has no start token to begin with. Give some text.")
        return [self.special_ids.bos_id]

    @property
    def _pad_id(self) -> int:
        """An id to fill with, where the vocabulary names none too: nothing looks at it."""
        pad_id, eos_ids = self.special_ids.pad_id, self.special_ids.eos_ids
        return pad_id if pad_id is not None else next(iter(eos_ids), 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # What describes the model is never changed, so copies share it.
        memo[id(self.description)] = self.description
        return super().__deepcopy__(memo)


def pieces(decoding: Decoding, variables: Variables) -> Iterator[str]:
    """The text of one reply, in pieces. Every step sees the context variables that held when the stream began."""
    while not decoding.done:
        (piece,) = variables.run(decoding.step)
        if piece:
            yield piece


def changes_hidden_states(layer: nn.Module) -> bool:
    """Whether a layer between backbone and head is more than the choice of positions."""
    return not isinstance(layer, LastPositions)


def at_a_place_of_its_own(layer: nn.Module) -> nn.Module:
    """The layer, or its structural copy where it has a place in another tree."""
    return layer.structural_copy() if isinstance(layer, Composite) and layer.parent is not None else layer


def _reads_inputs(backbone: object) -> TypeGuard[nn.Module]:
    """Whether a backbone reads what it is given from the context: a tree, or a graph of one."""
    reads_by_itself = isinstance(backbone, TakesContext) and bool(getattr(backbone, "reads", None))
    return isinstance(backbone, Composite) or reads_by_itself

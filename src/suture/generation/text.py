"""Text to ids and back: whole, or token by token as a stream needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from suture.generation.chat import ChatTemplate, Message
from suture.weights.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character, or not yet a whole one."""


class Tokenizer:
    """A model's vocabulary at work: it encodes prompts, decodes replies and writes chats as text.

    >>> import tokenizers
    >>> words = tokenizers.models.WordLevel({"<s>": 0, "one": 1, "two": 2}, unk_token="<s>")
    >>> tokenizer = Tokenizer(Vocabulary(tokenizers.Tokenizer(words)))
    >>> tokenizer.encode("two"), tokenizer.decode([1])
    ([2], 'one')
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._tokenizer = without_limits(vocabulary.tokenizer)

    def encode(self, text: str) -> list[int]:
        """The ids of a text as the model was trained to see one: where it wants a start token, with exactly one."""
        ensure_characters(text)
        ids = self._tokenizer.encode(text).ids
        start = self.vocabulary.bos_id
        if self.vocabulary.add_bos and ids[:2] == [start, start]:
            return ids[1:]
        return ids

    def encode_chat(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """The ids of a conversation. The template alone decides about start tokens: none is added to its own."""
        text = self.render_chat(messages, **variables)
        ensure_characters(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as text, with the opening of the reply at its end.

        Raises `ValueError` where the checkpoint has no chat template, or its template does not take the messages.
        """
        if self.chat_template is None:
            raise ValueError(
                "This model has no chat template, so it cannot be given chat messages. Write the prompt as a string."
            )
        return self.chat_template.render(messages, add_generation_prompt, **variables)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The checkpoint's template for chats, or None."""
        source = self.vocabulary.chat_template
        return None if source is None else ChatTemplate(source, self.vocabulary.special_tokens)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens."""
        return self._tokenizer.decode(list(ids))

    def special_id(self, text: str) -> int | None:
        """The id of the special token written `text`, or None where there is none."""
        token_id = self._tokenizer.token_to_id(text)
        added = self._tokenizer.get_added_tokens_decoder()
        return token_id if token_id is not None and token_id in added and added[token_id].special else None

    def __deepcopy__(self, memo: object) -> Tokenizer:
        return self

    def __repr__(self) -> str:
        return f"Tokenizer({self._tokenizer.get_vocab_size()} ids)"


def ensure_characters(text: str) -> None:
    """Refuses halves of surrogate pairs, which a Python string can hold and no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text holds {text[error.start]!r} at character {error.start}: half of a surrogate pair, which is no "
            f"character. Was it cut in the middle, or read with errors='surrogateescape'? Decode it again."
        ) from None


def as_tokenizer(tokenizer: object) -> Tokenizer | None:
    """What a model is given as its tokenizer, as one. Raises `TypeError` for anything else."""
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, Vocabulary):
        return Tokenizer(tokenizer)
    from tokenizers import Tokenizer as Backend

    if isinstance(tokenizer, Backend):
        return Tokenizer(Vocabulary(tokenizer))
    raise TypeError(
        f"A model's tokenizer is a suture.generation.Tokenizer, a suture.weights.Vocabulary or a tokenizers.Tokenizer, "
        f"but received {tokenizer!r:.80}. A tokenizer of transformers holds one: its `backend_tokenizer`."
    )


def without_limits(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer, or a copy that neither cuts nor fills: some files carry the limits of the training batches."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


class Detokenizer:
    """Decodes token by token: `push` gives the text that became certain, `flush` what is left.

    A character whose bytes come in several tokens appears with the last of them. `context` are ids before the first
    one, whose text is known: some decoders write the first token of a text differently.

    The stream of the tokenizers library does not serve: after a whole character, a byte that belongs to none makes it
    raise, and it has no way to ask for what is left.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._ids = list(context)
        self._settled = len(self._ids)
        self._text = self._decode(self._ids)

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain, often its own; empty in the middle of a character."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        return "" if text.endswith(REPLACEMENT) else self._settle(text)

    def flush(self) -> str:
        """The text of what was held back: the replacement character for bytes that never became one."""
        return self._settle(self._decode(self._ids)) if self._settled < len(self._ids) else ""

    def _settle(self, text: str) -> str:
        fresh = self._ids[self._settled :]
        # Bytes that are no character can change how a decoder writes the ones before them, which are already out.
        piece = text[len(self._text) :] if text.startswith(self._text) else self._decode(fresh)
        if piece:
            self._ids, self._settled, self._text = fresh, len(fresh), self._decode(fresh)
        return piece

"""A tokenizer from the metadata of a GGUF file, which has the pieces and merges but no `tokenizer.json`.

Two kinds are read: byte-level BPE (`gpt2` in GGUF's words), with the rule that cuts text into words before the merges,
and SentencePiece BPE with byte fallback (`llama`), whose merges follow from the scores of its pieces.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
Word rules: `llm_tokenizer_bpe` in https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from suture.weights.checkpoint import Checkpoint, CheckpointError
from suture.weights.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # of GGUF's kinds of piece, those that matter here

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class WordRule:
    """How a byte-level vocabulary cuts text before it merges.

    Attributes:
        words: The expression whose matches are the words; None is GPT-2's.
        single_digits: Whether every digit is a word of its own before anything else.
        whole_words: Whether a word that is a piece is taken as it is, without merging up to it.
        add_bos: Whether a text starts with the start token where the file does not say.
    """

    words: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    add_bos: bool = False


LLAMA3 = WordRule(LLAMA3_WORDS, whole_words=True, add_bos=True)
WORD_RULES = {
    "gpt-2": WordRule(),
    "smollm": WordRule(single_digits=True),
    "starcoder": WordRule(single_digits=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "tekken": WordRule(TEKKEN_WORDS, whole_words=True, add_bos=True),
    "qwen2": WordRule(QWEN2_WORDS),
}


def read_gguf_vocabulary(checkpoint: Checkpoint) -> Vocabulary:
    """The vocabulary a GGUF file carries in its metadata.

    Raises:
        CheckpointError: The file has no pieces, or its kind of tokenizer or word rule is not known; guessing would
            give other ids than the model was trained on.

    Example:
        >>> from pathlib import Path
        >>> metadata = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "c", "ab"], "merges": ["a b"]}
        >>> metadata = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
        >>> vocabulary = read_gguf_vocabulary(Checkpoint(Path("a.gguf"), "gguf", "llama", metadata, tensors={}))
        >>> vocabulary.tokenizer.encode("cab").tokens
        ['c', 'ab']
    """
    data = _Metadata(checkpoint)
    model = data.text("model")
    builders: dict[str | None, Callable[[_Metadata], tuple[Tokenizer, bool]]] = {
        "gpt2": _byte_level,
        "llama": _sentence_piece,
    }
    if model not in builders:
        raise CheckpointError(
            f"{checkpoint.path} has a tokenizer of the kind {model!r} (tokenizer.ggml.model). Known are: "
            f"{', '.join(str(name) for name in builders)}. Load a transformers folder of the model instead."
        )
    tokenizer, bos_by_default = builders[model](data)
    _add_whole_pieces(tokenizer, data)
    bos_id, pad_id = data.token_id("bos"), data.token_id("padding")
    add_bos = data.flag("add_bos_token", bos_by_default) and bos_id is not None
    eos_id = data.token_id("eos")
    add_eos = data.flag("add_eos_token", False) and eos_id is not None
    frame_text(
        tokenizer,
        data.pieces[bos_id] if add_bos and bos_id is not None else None,
        data.pieces[eos_id] if add_eos and eos_id is not None else None,
    )
    ends = [token for token in (eos_id, data.token_id("eot"), data.token_id("eom")) if token is not None]
    named = {"bos_token": bos_id, "eos_token": eos_id, "pad_token": pad_id, "unk_token": data.token_id("unknown")}
    template = checkpoint.metadata.get("tokenizer.chat_template")
    return Vocabulary(
        tokenizer=tokenizer,
        chat_template=template if isinstance(template, str) else None,
        bos_id=bos_id,
        eos_ids=tuple(dict.fromkeys(ends)),
        pad_id=pad_id,
        add_bos=add_bos,
        special_tokens={name: data.pieces[token] for name, token in named.items() if token is not None},
    )


def frame_text(tokenizer: Tokenizer, first: str | None, last: str | None) -> None:
    """Make `tokenizer.encode(text)` put the token `first` before and `last` after the text, where they are given."""
    from tokenizers import processors

    frame = [token for token in (first, last) if token is not None]
    if not frame:
        return
    single = ([f"{first}:0"] if first else []) + ["$A:0"] + ([f"{last}:0"] if last else [])
    pair = single + ([f"{first}:1"] if first else []) + ["$B:1"] + ([f"{last}:1"] if last else [])
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(frame)]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


class _Metadata:
    """The tokenizer's part of the metadata, typed."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.path
        self._values: Mapping[str, object] = checkpoint.metadata
        self.pieces = cast("list[str]", self._required("tokens"))
        self.kinds = cast("list[int]", self._values.get("tokenizer.ggml.token_type") or [NORMAL] * len(self.pieces))

    def _required(self, key: str) -> list[object]:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list):
            raise CheckpointError(
                f"{self.path} has no tokenizer.ggml.{key} in its metadata, so it carries no tokenizer. "
                "Take a file that does, or load a transformers folder of the model."
            )
        return cast("list[object]", value)

    @property
    def merges(self) -> list[tuple[str, str]]:
        pairs = [str(merge).partition(" ") for merge in self._required("merges")]
        return [(left, right) for left, _, right in pairs]

    @property
    def scores(self) -> list[float]:
        return cast("list[float]", self._required("scores"))

    def text(self, key: str) -> str | None:
        value = self._values.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, str) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(f"tokenizer.ggml.{key}")
        return value if isinstance(value, bool) else default

    def token_id(self, name: str) -> int | None:
        value = self._values.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(self.pieces) else None

    def word_rule(self) -> WordRule:
        name = self.text("pre")
        if name not in WORD_RULES:
            said = "does not say how its tokenizer cuts text into words" if name is None else f"cuts text by {name!r}"
            raise CheckpointError(
                f"{self.path} {said} (tokenizer.ggml.pre). Known are: {', '.join(WORD_RULES)}. "
                "Load a transformers folder of the model instead."
            )
        return WORD_RULES[name]


def _byte_level(data: _Metadata) -> tuple[Tokenizer, bool]:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    rule = data.word_rule()
    vocabulary = {piece: index for index, piece in enumerate(data.pieces)}
    merges = data.merges
    strange = [pair for pair in merges if not {*pair, "".join(pair)} <= vocabulary.keys()]
    if strange:
        raise CheckpointError(
            f"{data.path}: its tokenizer merges pieces that it has not: {' + '.join(map(repr, strange[0]))}"
            f"{f' and {len(strange) - 1} more' if len(strange) > 1 else ''}. Take another file of the model."
        )
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=rule.whole_words))
    steps: list[PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    if rule.words is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.words), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.words is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.add_bos


def _sentence_piece(data: _Metadata) -> tuple[Tokenizer, bool]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.decoders import Decoder

    vocabulary = {piece: index for index, piece in enumerate(data.pieces)}
    unknown = data.token_id("unknown")
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            _merges_by_score(data, vocabulary),
            unk_token=None if unknown is None else data.pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = data.flag("add_space_prefix", True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first" if prefix else "never", split=False)
    steps: list[Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer, True


def _merges_by_score(data: _Metadata, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the piece of the highest score first."""
    ranked: list[tuple[float, int, str, str]] = []
    for piece, score, kind in zip(data.pieces, data.scores, data.kinds, strict=True):
        if kind == NORMAL:
            for cut in range(1, len(piece)):
                left, right = piece[:cut], piece[cut:]
                if left in vocabulary and right in vocabulary:
                    ranked.append((-score, -cut, left, right))
    ranked.sort(key=lambda entry: entry[:2])
    return [(left, right) for _, _, left, right in ranked]


def _add_whole_pieces(tokenizer: Tokenizer, data: _Metadata) -> None:
    """Control and user-defined pieces are found in a text as they are, before anything is cut or merged."""
    from tokenizers import AddedToken

    kinds = list(zip(data.pieces, data.kinds, strict=True))
    tokenizer.add_special_tokens([AddedToken(p, normalized=False, special=True) for p, k in kinds if k == CONTROL])
    tokenizer.add_tokens([AddedToken(p, normalized=False) for p, k in kinds if k == USER_DEFINED])

"""Chat messages as the text that a model was trained on, by the template that its checkpoint holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
"""A mapping with the keys `role` and, usually, `content`; what else a message holds is the template's business."""


class ChatTemplate:
    """A Jinja template that writes a conversation as text.

    It runs in a sandbox, for a template is a program that came with the weights. Written as transformers expects
    them, templates find the special tokens as variables and two functions: `raise_exception(message)` and
    `strftime_now(format)`.

    >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hello"}])
    '<user>Hello'
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The messages as text, with the opening of the reply at its end if `add_generation_prompt`.

        Other keyword arguments are variables of the template, such as `tools`. Raises `ValueError` where a message is
        not one, and where the template refuses the messages or is not valid Jinja.
        """
        from jinja2 import TemplateError

        for message in messages:
            ensure_message(message)
        functions = {"raise_exception": refuse, "strftime_now": strftime_now}
        values = {**functions, **self.special_tokens, "tools": None, "documents": None, **variables}
        try:
            return self._compiled.render(messages=messages, add_generation_prompt=add_generation_prompt, **values)
        except TemplateError as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise ValueError(f"The chat template does not take these messages (roles: {roles}): {error}") from error

    @cached_property
    def _compiled(self) -> Template:
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import Node
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class GenerationBlock(Extension):
            """`{% generation %} ... {% endgeneration %}` marks the reply in templates for training: plain text here."""

            tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

            def parse(self, parser: Parser) -> list[Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
        )
        environment.filters["tojson"] = to_json
        return environment.from_string(self.source)

    def __getstate__(self) -> dict[str, Any]:
        # A compiled template cannot be pickled; it is compiled again where it is needed.
        return {"source": self.source, "special_tokens": self.special_tokens}


def ensure_message(message: object) -> None:
    """Refuses what is not a chat message, and shows one."""
    if not (isinstance(message, Mapping) and "role" in message and ("content" in message or "tool_calls" in message)):
        raise ValueError(
            f"A chat message is a dictionary such as {{'role': 'user', 'content': 'Hello'}}, but received {message!r}."
        )


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a prompt: Jinja's own filter is made for web pages and would escape `<`, `>` and `&`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """The present date and time in the given form; some templates write it in the system message."""
    return datetime.now().strftime(form)


def refuse(message: str) -> NoReturn:
    """What a template calls to say that it does not take the messages."""
    from jinja2 import TemplateError

    raise TemplateError(message)

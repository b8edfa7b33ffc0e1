from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import pytest

from suture.generation.chat import ChatTemplate, Message, ensure_message

HELLO: list[Message] = [{"role": "user", "content": "Hello"}]


def render(source: str, messages: list[Message] = HELLO, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **variables)


def test_special_tokens_and_the_generation_prompt_are_variables() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    assert render(source) == "<s>Hello>"
    assert render(source, add_generation_prompt=False) == "<s>Hello"


def test_blocks_leave_no_blank_lines() -> None:
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n{% endif %}\n{% endfor %}\n") == "Hello\n"
    )


def test_other_variables_reach_the_template() -> None:
    assert render("{{ tools is none }}") == "True"
    assert render("{{ tools[0] }}", tools=["saw"]) == "saw"


def test_json_is_not_escaped_for_the_web() -> None:
    content = "<b> & \u00e9"
    assert render("{{ messages[0] | tojson }}", [{"role": "user", "content": content}]) == (
        '{"role": "user", "content": "<b> & \u00e9"}'
    )
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in (str(datetime.now().year), str(datetime.now().year - 1))


def test_loops_can_be_left_and_replies_marked() -> None:
    assert render("{% for m in [1, 2] %}{{ m }}{% break %}{% endfor %}") == "1"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hello"


def test_what_the_template_refuses_is_an_error_with_its_words() -> None:
    with pytest.raises(ValueError, match=r"does not take these messages \(roles: user\): only assistants"):
        render("{{ raise_exception('only assistants') }}")


def test_a_template_that_is_not_jinja_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not take these messages"):
        render("{% if %}")


def test_a_template_runs_in_a_sandbox() -> None:
    with pytest.raises(ValueError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}{{ messages.append(1) }}")


@pytest.mark.parametrize("message", ["Hello", {"content": "Hello"}])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(ValueError, match="A chat message is a dictionary such as"):
        render("", [message])


def test_a_used_template_can_be_pickled() -> None:
    template = ChatTemplate("{{ bos_token }}", {"bos_token": "<s>"})
    assert template.render(HELLO) == "<s>"
    assert pickle.loads(pickle.dumps(template)).render(HELLO) == "<s>"


def test_a_message_without_content_is_shown() -> None:
    with pytest.raises(ValueError, match=r"received \{'role': 'user'\}"):
        ensure_message({"role": "user"})

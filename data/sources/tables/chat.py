"""Conversations: a prompt and a completion by a tokenizer's chat template.

A cell is a list of messages, {"role": ..., "content": ...}, of which the assistant's last is to be
learned; or JSON of one. The template stands beside tokenizer.json, in chat_template.jinja or in
tokenizer_config.json, and runs in jinja2's sandbox. It gets no date, so that it renders the same
on every day.

The data's own begin and end stand for those of the template at the ends of a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import import_extra
from lipt.common.nested import parse_json
from lipt.data.inputs.specs import shown_error
from lipt.data.sources.tables.table import require_text

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
# Of a configuration or a template.
_MOST_BYTES = 2**24
_MOST_MESSAGES = 10_000
_FIRST, _LEARNED = ("system", "developer"), "assistant"


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template, and the texts of the tokenizer's begin and end."""

    render: Any
    ends: Mapping[str, str]

    @classmethod
    def beside(cls, tokenizer: Path) -> Self:
        """The template beside a tokenizer.json; ConfigError without one."""
        jinja2 = import_extra("jinja2", package="jinja2", extra="lm", needed_for="messages=COLUMN")
        sandbox = import_extra(
            "jinja2.sandbox", package="jinja2", extra="lm", needed_for="messages=COLUMN"
        )
        folder = tokenizer.parent
        config = read_json(folder / _CONFIG) if (folder / _CONFIG).is_file() else {}
        text = _template_in(folder, config)
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            compiled = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template of {folder} cannot be read: {shown_error(error)}. Correct it, "
                "or give prompt=COLUMN&completion=COLUMN."
            ) from error
        ends = special_texts(config)
        return cls(compiled.render, {f"{name}_token": text for name, text in ends.items()})

    def parts(self, cell: object, where: str) -> tuple[str, str]:
        """The prompt and the completion of a conversation; DataError, with `where`, for others."""
        messages = _messages_of(cell, where)
        try:
            prompt = self._rendered(messages[:-1], begins_answer=True)
            whole = self._rendered(messages, begins_answer=False)
        except Exception as error:  # of the template, which may raise any
            raise DataError(
                f"{where}: the chat template fails with {shown_error(error)}. Correct the "
                "conversation, or remove it."
            ) from error
        require_text(whole, f"{where}: the conversation")
        if not whole.startswith(prompt):
            raise DataError(
                f"{where}: the chat template renders the conversation otherwise than its begin. "
                "Give prompt=COLUMN&completion=COLUMN, or another template."
            )
        completion = whole[len(prompt) :]
        begin, end = (self.ends.get(name, "") for name in ("bos_token", "eos_token"))
        if end and completion.rstrip().endswith(end):
            completion = completion.rstrip().removesuffix(end)
        return prompt.removeprefix(begin), completion

    def _rendered(self, messages: Sequence[Mapping[str, Any]], *, begins_answer: bool) -> str:
        text: str = self.render(
            messages=messages, add_generation_prompt=begins_answer, tools=None, **self.ends
        )
        return text


def _template_in(folder: Path, config: Mapping[str, Any]) -> str:
    own = folder / _TEMPLATE
    template = _read(own).decode(errors="replace") if own.is_file() else config.get("chat_template")
    if isinstance(template, list):
        named = {
            str(entry.get("name")): entry.get("template")
            for entry in template
            if isinstance(entry, dict)
        }
        template = named.get("default")
    if not isinstance(template, str) or not template:
        raise ConfigError(
            f"{folder} has no chat template: neither {_TEMPLATE} nor chat_template in {_CONFIG}. "
            "Put one beside tokenizer.json, or give prompt=COLUMN&completion=COLUMN."
        )
    return template


def _messages_of(cell: object, where: str) -> list[dict[str, Any]]:
    messages = cell.tolist() if isinstance(cell, np.ndarray) else cell
    if isinstance(cell, str):
        with suppress(ValueError):
            messages = parse_json(cell)
    if not isinstance(messages, list) or not 0 < len(messages) <= _MOST_MESSAGES:
        raise DataError(
            f"{where} has no list of messages, but {cell!r:.60}. Give "
            '[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}].'
        )
    before = ""
    for number, message in enumerate(messages):
        role, content = (
            (message.get("role"), message.get("content")) if isinstance(message, dict) else ("", "")
        )
        if not isinstance(role, str) or not role or not isinstance(content, str):
            raise DataError(
                f"{where}: message {number} has no role and content that are texts: "
                f"{message!r:.60}. Give both, or remove the conversation."
            )
        if (role in _FIRST and number) or (role == before and role in ("user", _LEARNED)):
            raise DataError(
                f"{where}: message {number} is of the {role}, after one of the {before}. Let a "
                "system message be the first, and user and assistant take turns."
            )
        before = role
    if before != _LEARNED or not str(messages[-1]["content"]).strip():
        raise DataError(
            f"{where}: the last message is of the {before}, or empty, so there is nothing to "
            "learn. Let a conversation end with an assistant's answer."
        )
    # Arrow fills fields that a message lacks with None.
    return [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]


def special_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the begin and the end, "bos" and "eos", in a tokenizer's configuration."""
    specials: dict[str, str] = {}
    for name in ("bos", "eos"):
        text = config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if isinstance(text, str) and text:
            specials[name] = text
    return specials


def read_json(path: Path) -> Mapping[str, Any]:
    """A model's small file of JSON; ConfigError for another file."""
    try:
        content = parse_json(_read(path).decode())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no JSON object. Name a folder that save_pretrained wrote.")
    return content


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. Name a folder that save_pretrained wrote."
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"{path} has more than {_MOST_BYTES} bytes, as no configuration has. Name a folder "
            "that save_pretrained wrote."
        )
    return content


def _refuse(message: str) -> str:
    """What templates call for conversations that they do not take."""
    raise ValueError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    # Unlike jinja2's own, without escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)

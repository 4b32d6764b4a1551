"""Conversations: prompts and completions by hand, from files and frames, and what is refused."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import lipt
from lipt.common.errors import ConfigError, DataError, MissingExtraError
from lipt.data.dataset import Dataset
from lipt.data.sources.tables.chat import ChatTemplate
from tests.causal_folders import CHATML, WORDS, write_tokenizer

pd = pytest.importorskip("pandas")

CHAT = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "C"}]
LONG = [{"role": "system", "content": "x"}, *CHAT, {"role": "user", "content": "d"}, CHAT[1]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "model", chat_template=CHATML)


def options(tokenizer: Path, length: int = 32) -> str:
    return f"messages=chat&max_length={length}&tokenizer={tokenizer}"


def opened(folder: Path, tokenizer: Path, *lines: Any) -> Dataset:
    file = folder / "chats.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lipt.open_dataset(f"jsonl:{file}?{options(tokenizer)}")


def texts_of(data: Dataset) -> list[tuple[str, str]]:
    """All of an example's tokens but padding as text, and those that count."""
    stored = data.examples(torch.arange(len(data)))
    assert isinstance(stored, dict)
    (tokens_NL,) = stored.values()
    marks = ("", "|", ".", *WORDS)
    return [
        ("".join(marks[n] for n in tokens), "".join(marks[n] for n in wanted if n >= 0))
        for tokens, wanted in zip(tokens_NL.tolist(), data.targets_N.tolist(), strict=True)
    ]


def test_the_last_answer_counts_and_the_data_s_ends_stand_for_the_template_s(
    tmp_path: Path, tokenizer: Path
) -> None:
    # The template's <s> at the begin and </s> at the end are the data's 1 and 2.
    found = texts_of(opened(tmp_path, tokenizer, {"chat": CHAT}, {"chat": LONG}))
    assert found == [
        ("|u=ab</s><s>a=C", "C."),
        ("|s=x</s><s>u=ab</s><s>a=C</s><s>u=d</s><s>a=C", "C."),
    ]


def test_files_and_frames_of_equal_conversations_are_equal(tmp_path: Path, tokenizer: Path) -> None:
    chats = [CHAT, LONG]
    data = opened(tmp_path, tokenizer, *({"chat": chat} for chat in chats))
    table = pa.table({"chat": chats})
    parquet.write_table(table, tmp_path / "chats.parquet")
    frame = pd.read_parquet(tmp_path / "chats.parquet")
    assert isinstance(frame["chat"][0], np.ndarray)
    target = options(tokenizer)
    others = [
        lipt.open_dataset(f"parquet:{tmp_path}/chats.parquet?{target}"),
        *(
            lipt.open_dataset(one, target=target)
            for one in (
                *(table, frame, pd.DataFrame({"chat": chats}), {"chat": chats}),
                *([{"chat": chat} for chat in chats], {"chat": [json.dumps(one) for one in chats]}),
                str(tmp_path / "chats.jsonl"),
            )
        ),
    ]
    for other in others:
        assert texts_of(other) == texts_of(data)


def test_frames_of_conversations_are_mixed(tmp_path: Path, tokenizer: Path) -> None:
    frames = {
        name: [
            {"chat": [{"role": "user", "content": word}, {"role": "assistant", "content": say}]}
            for word in ("ab", "cd", "ef") * 10
        ]
        for name, say in (("one", "A"), ("two", "B"))
    }
    run = {
        "initialization": {"steps": 5, "batch_size": 8},
        "learners": {"num_minibatches": 3, "batch_size": 8},
    }
    mixture = lipt.mix(
        frames,
        frames["one"],
        "text:causal",
        target=options(tokenizer, 12),
        run=run,
        device="cpu",
        progress=False,
    )
    assert list(mixture.weights) == ["one", "two"]


def test_a_template_beside_the_tokenizer_wins_and_has_what_templates_use(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(
        tmp_path / "m",
        chat_template=[{"name": "tools", "template": "x"}, {"name": "default", "template": "y"}],
    )
    prompt, completion = ChatTemplate.beside(tokenizer).parts(CHAT, "here")
    assert (prompt, completion) == ("y", "")
    (tmp_path / "m" / "chat_template.jinja").write_text(
        "{%- for m in messages %}{% if loop.index > 9 %}{% break %}{% endif %}"
        "{{ {'é<': m.content} | tojson }}{{ eos_token }}{% endfor %}"
        "{{ 'day' if strftime_now is defined else '' }}"
    )
    prompt, completion = ChatTemplate.beside(tokenizer).parts(CHAT, "here")
    assert (prompt, completion) == ('{"é<": "ab"}</s>', '{"é<": "C"}')


USER, ANSWER = CHAT


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (None, r" has no list of messages, but None"),
        ([], r" has no list of messages"),
        ("no JSON", r" has no list of messages, but 'no JSON'"),
        ({"role": "user"}, r" has no list of messages"),
        (["a"], r"message 0 has no role and content that are texts: 'a'"),
        ([{"role": "user"}, ANSWER], r"message 0 has no role and content"),
        ([{"role": "user", "content": ["a"]}, ANSWER], r"message 0 has no role and content"),
        ([USER], r"the last message is of the user, or empty.*assistant's answer"),
        ([USER, {"role": "assistant", "content": " "}], r"or empty, so there is nothing to learn"),
        ([{"role": "user", "content": "\ud800"}, ANSWER], r"the conversation .* half of a charac"),
        ([USER, USER, ANSWER], r"message 1 is of the user, after one of the user.*take turns"),
        ([USER, ANSWER, ANSWER], r"message 2 is of the assistant, after one of the assistant"),
        ([USER, {"role": "system", "content": "s"}, ANSWER], r"message 1 is of the system"),
        ([{"role": "bot", "content": "b"}, ANSWER], r"template fails with ValueError: an unknown"),
    ],
)
def test_other_conversations_are_refused_with_their_line(
    tmp_path: Path, tokenizer: Path, chat: Any, words: str
) -> None:
    with pytest.raises(
        DataError, match=rf"(?s)chats\.jsonl, line 2.*{words.removeprefix('line 2')}"
    ):
        opened(tmp_path, tokenizer, {"chat": CHAT}, {"chat": chat})
    with pytest.raises(DataError, match=r"row 1"):
        lipt.open_dataset([{"chat": CHAT}, {"chat": chat}], target=options(tokenizer))


def test_templates_that_are_missing_broken_or_dangerous_are_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"no chat template: neither.*beside tokenizer\.json"):
        opened(tmp_path, tokenizer, {"chat": CHAT})
    template = tmp_path / "m" / "chat_template.jinja"
    template.write_text("{% for %}")
    with pytest.raises(ConfigError, match=r"chat template of .* cannot be read: TemplateSyntax"):
        opened(tmp_path, tokenizer, {"chat": CHAT})
    for text, words in (
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for _ in range(10**9) %}x{% endfor %}", "OverflowError"),
        ("{% if add_generation_prompt %}a{% else %}b{% endif %}", "otherwise than its begin"),
    ):
        template.write_text(text)
        with pytest.raises(DataError, match=rf"line 1.*{words}"):
            opened(tmp_path, tokenizer, {"chat": CHAT})


def test_a_tokenizer_and_jinja2_are_needed(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"none is named\. Give tokenizer=FOLDER/tokenizer"):
        lipt.open_dataset([{"chat": CHAT}], target="messages=chat")
    with pytest.raises(DataError, match=r"no column 'talk'.*Write messages=COLUMN"):
        lipt.open_dataset([{"chat": CHAT}], target=f"messages=talk&tokenizer={tokenizer}")
    with pytest.raises(ConfigError, match=r"there is no option 'message'.*mean messages\?"):
        lipt.open_dataset([{"chat": CHAT}], target="messages=chat&message=x")
    with pytest.raises(ConfigError, match=r"text and messages=.* not say what to learn"):
        lipt.open_dataset([{"chat": CHAT}], target="messages=chat&text=chat")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'jinja2'.*\[lm\]"):
        opened(tmp_path, tokenizer, {"chat": CHAT})

from pathlib import Path

import pytest

from docs.make.plain_words import complaints, main

LONG = " ".join(["word"] * 36)


@pytest.mark.parametrize(
    ("sentence", "term"),
    [
        ("Of which it was made nobody knows.", "nobody"),
        ("What is had of a model,\nwhichever that is.", "is had"),
        ("What both have in\ncommon is of one kind.", "What both have in common is of"),
        ("What the worker is told is logged.", "What the worker is told"),
        ("All is as ever.", "as ever"),
        ("A softmax of chances.", "chances"),
    ],
)
def test_a_planted_sentence_is_found_with_its_line(sentence: str, term: str) -> None:
    in_one_line = " ".join(sentence.split())
    texts = {
        "a.md": f"Plain.\n{sentence}\n",
        "comment.py": f"x = 1\n# {in_one_line}\n",
        "docstring.py": f'x = 1\n"""{sentence}"""\n',
        "message.py": f'x = 1\nprint(f"{{x}}: {in_one_line}")\n',
    }
    for name, text in texts.items():
        assert [line for line, why in complaints(name, text) if repr(term) in why] == [2]


def test_a_docstring_begins_with_a_noun() -> None:
    assert [line for line, _ in complaints("a.py", '"""What is compared."""')] == [1]
    assert complaints("a.py", '"""Plan of a comparison: what is compared."""') == []


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        (f"Plain.\n\n{LONG}.\n", [3]),
        (f"- {LONG}\n- {LONG}\n", [1, 2]),
        (f"| a | {LONG} |\n", [1]),
        # Code, addresses and sentences that end are no long sentences.
        (f"```\n{LONG}\n```\n\n    {LONG}\n", []),
        (f"`{LONG}` and [one](two three)\n", []),
        ("Ten plain words stand here. " * 6, []),
    ],
)
def test_long_sentences_are_found_on_their_lines(page: str, lines: list[int]) -> None:
    assert [line for line, _ in complaints("a.md", page)] == lines


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ('f"{x} is bad. Do this."', []),
        ('f"{x} is bad. Do this. {x} {x}"', [1]),
        (f'"{"word " * 40}"', []),
        (f'"{"word " * 41}"', [1]),
    ],
)
def test_long_errors_are_found(message: str, lines: list[int]) -> None:
    assert [line for line, _ in complaints("a.py", f"raise ConfigError({message})")] == lines


def test_the_command_fails_and_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.make.plain_words._ROOT", tmp_path)
    (tmp_path / "a.md").write_text("Nobody knows.\n")
    assert main(["a.md"]) == 1
    assert capsys.readouterr().out.startswith("a.md:1: 'Nobody'")
    (tmp_path / "a.md").write_text("The coordinator knows.\n")
    assert main(["a.md"]) == 0

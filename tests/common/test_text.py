import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from lipt.common.text import (
    INDENT,
    MAX_CHARACTERS,
    escaped,
    format_bytes,
    printable,
    printable_lines,
)

# Any code point, surrogates included, and more of those that do something to who shows them.
ACTING = "\x00\t\n\r\x07\x08\x0b\x0c\x1b\x7f\x85\x9b\xad\u200b\u202e\u2028\u2066\ufeff\ud800\udfff"
TEXTS = st.text(st.one_of(st.characters(exclude_categories=()), st.sampled_from(ACTING)))
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(TEXTS)
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    assert not {unicodedata.category(mark) for mark in shown} & UNSEEN
    assert len(shown) <= MAX_CHARACTERS
    assert printable(shown) == shown
    shown.encode()  # no half of a pair is left


@given(TEXTS.filter(lambda text: "\\" not in text))
def test_short_text_is_not_shortened(text: str) -> None:
    assert escaped(text).encode("latin-1", "backslashreplace").decode("unicode_escape") == text
    assert escaped(f"a\n\t{text}", keep="\n\t").startswith("a\n\t")


def test_a_long_text_is_shortened_in_the_middle() -> None:
    shown = printable("begin " + "x" * 3_900_000 + " end")
    assert len(shown) <= MAX_CHARACTERS
    assert shown.startswith("begin xxx")
    assert " ...(3900010 characters)... " in shown
    assert shown.endswith("xxx end")
    assert len(printable("\x00" * MAX_CHARACTERS)) <= MAX_CHARACTERS


@given(TEXTS)
def test_continuation_lines_are_indented(text: str) -> None:
    first, *rest = printable_lines(text).split("\n")
    assert len(rest) == text.count("\n")
    assert all(line.startswith(INDENT) and line.isprintable() for line in rest)
    assert first.isprintable()


def test_byte_sizes_have_decimal_units() -> None:
    sizes = (0, 999, 1000, 1_234_567, 5_000_000_000, 7_000_000_000_000)
    shown = ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 GB", "7000.0 GB"]
    assert [format_bytes(size) for size in sizes] == shown

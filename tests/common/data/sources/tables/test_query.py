from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.data.sources.tables.query import did_you_mean, split_query
from lipt.common.errors import ConfigError

OPTIONS = ("label", "drop", "buckets", "missing")


def test_options_follow_a_question_mark_and_are_decoded() -> None:
    path, query = split_query("s", Path("/a b/t.csv?label=the%20grade&drop=x,y%2Cz"), OPTIONS)
    assert path == Path("/a b/t.csv")
    assert query.text("label", "label") == "the grade"
    assert query.names("drop") == ("x", "y,z")
    assert "missing" not in query
    assert query.one_of("missing", ("mean", "marked")) == "mean"
    assert query.number("buckets", 7, minimum=2, maximum=9) == 7


def test_a_path_alone_has_no_options() -> None:
    path, query = split_query("s", Path("t.csv"), OPTIONS)
    assert (path, dict(query.values)) == (Path("t.csv"), {})


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lable=x", "there is no option 'lable'. Did you mean label? There are: label, drop"),
        ("label", "the option label needs one value"),
        ("label=", "the option label needs one value"),
        ("label=a&label=b", "the option label needs one value"),
    ],
)
def test_options_that_do_not_exist_or_have_no_value_are_refused(query: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_query("s", Path(f"t.csv?{query}"), OPTIONS)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", ["1", "10", "x", "-3", "2.5"])
def test_numbers_out_of_range_are_refused(value: str) -> None:
    _, query = split_query("s", Path(f"t?buckets={value}"), OPTIONS)
    with pytest.raises(ConfigError, match=rf"buckets={value} is not a whole number in 2\.\.9"):
        query.number("buckets", 7, minimum=2, maximum=9)


def test_words_that_are_no_choice_are_refused() -> None:
    _, query = split_query("s", Path("t?missing=zero"), OPTIONS)
    with pytest.raises(ConfigError, match="missing=zero is none of mean, marked"):
        query.one_of("missing", ("mean", "marked"))


def test_close_names_are_suggested_whatever_their_case() -> None:
    assert did_you_mean("quality", ["Quality", "qualities", "id"]) == (
        " Did you mean Quality or qualities?"
    )
    assert not did_you_mean("x", ["Quality"])

from pathlib import Path

import pytest

from lipt.common.errors import ConfigError
from lipt.data.sources.address import Address

OPTIONS = ("label", "drop", "buckets", "names")


def test_options_follow_a_question_mark_and_are_decoded() -> None:
    name = "csv:/a b/t.csv?label=the%20grade&drop=x,y%2Cz"
    query = Address.parse(name, OPTIONS)
    assert (query.scheme, query.path, str(query)) == ("csv", "/a b/t.csv", name)
    assert str(query.adding(buckets="8")) == f"{name}&buckets=8"
    assert query.text("label", "label") == "the grade"
    assert query.names("drop") == ("x", "y,z")
    assert "names" not in query
    assert query.one_of("names", ("none", "huggingface")) == "none"
    assert query.number("buckets", 7, minimum=2, maximum=9) == 7


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("lable=x", r"there is no option 'lable'\. Did you mean label\? There are: label, drop"),
        ("label=", "the option label needs one value"),
        ("label=a&label=b", "the option label needs one value"),
        ("buckets=1", r"buckets=1 is not a whole number in 2\.\.9"),
        ("buckets=x", r"buckets=x is not a whole number in 2\.\.9"),
    ],
)
def test_options_that_cannot_be_used_are_refused(query: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Address.parse(f"csv:t.csv?{query}", OPTIONS).number("buckets", 7, minimum=2, maximum=9)


def test_a_question_mark_is_a_part_of_the_path_of_a_scheme_without_options() -> None:
    address = Address.parse("imagefolder:/data/what?label=x")
    assert (address.path, dict(address.values)) == ("/data/what?label=x", {})


def test_a_question_mark_is_a_part_of_the_path_of_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "a?label=b.csv"
    path.touch()
    assert Address.parse(f"csv:{path}", OPTIONS).path == str(path)


def test_a_local_path_begins_at_home_and_a_url_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert Address.parse("csv:~/t.csv?label=x", OPTIONS).path == "/home/ann/t.csv"
    assert Address.parse("parquet:s3://~/t?label=x", OPTIONS).path == "s3://~/t"

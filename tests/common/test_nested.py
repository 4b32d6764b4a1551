import pytest

from lipt.common.nested import parse_json, parse_toml, toml_value


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "[" * 65 + "]" * 65,
        "a = " + "{a=" * 5000,
        # Read without recursion, so that its value is as deep.
        ".".join("a" * 5000) + " = 1",
        f"[{'.'.join('a' * 5000)}]",
        f"[[{'.'.join('a' * 5000)}]]",
    ],
)
def test_deep_toml_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_toml(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65]
)
def test_deep_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_json(text)
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_json(text.encode())


def test_text_of_64_levels_is_read() -> None:
    value = parse_json("[" * 64 + "1" + "]" * 64)
    assert str(value) == "[" * 64 + "1" + "]" * 64
    assert parse_toml("a = " + "[" * 63 + "]" * 63)
    assert parse_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert parse_json("3") == 3


def test_other_text_than_a_toml_value_stays_text() -> None:
    texts = ("5", "[1, 2]", '"5"', "resnet8", "1\nb = 2", "[" * 5000)
    assert list(map(toml_value, texts)) == [5, [1, 2], "5", *texts[3:]]

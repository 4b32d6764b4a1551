from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.config.values import overrides_to_proto
from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.coordinator.page.application import ROUTES
from lipt.coordinator.page.handlers import PicturesWanted
from lipt.coordinator.page.requests import parse_body, require_json

MODELS = [row.body for row in ROUTES if row.body is not None]
NAMES = st.sampled_from(
    [name for model in MODELS for name in model.model_fields]
    + ["learners", "num_steps", "pruning", "method", "model", "seed", "soup"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("a\u00e4<\x00\U0001f389", max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    for model in MODELS:
        with contextlib.suppress(InvalidRequestError):
            parse_body(body, model)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_json_that_is_no_request_is_refused(values: dict[str, Any]) -> None:
    body = json.dumps(values).encode()
    for model in MODELS:
        with contextlib.suppress(InvalidRequestError):
            parse_body(body, model)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_overrides_that_are_no_settings_are_refused(values: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        overrides_to_proto(values)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"null",
        b'{"ids": [NaN]}',
        b'{"ids": [1e999]}',
        b'{"ids": [1.5]}',
        b'{"ids": ["1"]}',
        b'{"ids": [true]}',
        b'{"ids": [' + b"9" * 5000 + b"]}",
        b'{"ids": ' + b"[" * 30_000,
        b'{"ids": [], "more": 1}',
        b'{"ids": [' + b",".join([b"1"] * 10_000) + b"]}",
        b'{"\\ud800": 1}',
        b"\xff{}",
    ],
)
def test_a_body_is_json_of_what_is_asked_for(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_body(body, PicturesWanted)


def test_refusal_names_the_place_and_not_the_content() -> None:
    with pytest.raises(InvalidRequestError, match=r"^ids\.1 cannot be: "):
        parse_body(b'{"ids": [1, "<script>"]}', PicturesWanted)


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_form_of_another_page_can_send_is_refused(kind: str | None) -> None:
    with pytest.raises(InvalidRequestError, match="Send application/json"):
        require_json(kind)
    require_json("Application/JSON; charset=utf-8")

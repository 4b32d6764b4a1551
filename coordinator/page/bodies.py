"""Bodies: what a browser sends, read within limits and checked against a model."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from lipt.common.errors import BlobTooLargeError, InvalidRequestError

MAX_BODY_BYTES = 64 * 1024
_JSON = "application/json"

ModelT = TypeVar("ModelT", bound=BaseModel)


class Body(BaseModel):
    """Base of what a request may say; a name that is none is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Nothing(Body):
    """A request that says nothing: `{}`."""


def require_json(content_type: str | None) -> None:
    """Refuse what a form of another page can send without asking.

    Raises:
        InvalidRequestError: it is not JSON by what it says of itself.
    """
    if (content_type or "").partition(";")[0].strip().lower() != _JSON:
        raise InvalidRequestError(
            f"the content type is {(content_type or 'not said')[:100]!r}. Send {_JSON}."
        )


async def read_body(parts: AsyncIterator[bytes], declared: str | None) -> bytes:
    """A request's body, no longer than may be.

    Args:
        parts: as they arrive.
        declared: the header Content-Length; None for none.

    Raises:
        BlobTooLargeError: it is longer, or says that it will be.
    """
    if declared is not None and declared.isdecimal() and len(declared) > len(str(MAX_BODY_BYTES)):
        _too_large()
    if declared is not None and declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        _too_large()
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > MAX_BODY_BYTES:
            _too_large()
    return bytes(body)


def parse_body(body: bytes, model: type[ModelT]) -> ModelT:
    """What a body says.

    Raises:
        InvalidRequestError: it is not JSON, or not what the model takes; says where.
    """
    try:
        values = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        # Half of a character, which JSON can write, is a text that nothing can be done with.
        json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why = "" if isinstance(error, json.JSONDecodeError | UnicodeError) else f" ({error})"
        raise InvalidRequestError(
            f"the body is not JSON in UTF-8{why[:200]}. Send an object."
        ) from None
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidRequestError(f"{where[:200]} cannot be: {first['msg']}.") from None


def _too_large() -> NoReturn:
    raise BlobTooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes. Ask for less.")


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value

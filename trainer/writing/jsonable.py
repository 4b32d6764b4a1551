"""JSON values of views: field names are keys, and every number is one that JSON has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Any


def to_jsonable(value: Any) -> Any:
    """A view, or anything made of views, as values that `json.dumps` takes.

    Field names are the keys; times are ISO 8601; a float that JSON has no
    literal for (a diverged loss) is null.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_jsonable(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum | PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    dump = getattr(value, "model_dump", None)
    return to_jsonable(dump(mode="json")) if dump else value

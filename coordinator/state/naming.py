"""Naming: the digests that records name as their own, taken out of them by SQLite, unread.

What else there is was uploaded, and nobody has made anything of it that it is a part of.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from lipt.common.errors import StateError
from lipt.coordinator.state.contents import DATABASE, open_read_only

_DIGEST = re.compile(r"[0-9a-f]{64}")
# A record that is no JSON names nothing.
_NAMED = """
    SELECT json_extract(body, '$.shard', '$.result', '$.snapshots') FROM learners
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.initial_weights', '$.pretrained_weights',
        '$.config.initialization.weights_sha256') FROM runs
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM subsets WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM diagnoses WHERE json_valid(body)
"""


def named_digests(directory: Path) -> Iterator[str]:
    """Digests that are on record as a run's, a subset's or a diagnosis's own, needed or not.

    Args:
        directory: of a state; some digests come more than once.

    Raises:
        StateError: there is no database, or it is damaged.
    """
    with closing(open_read_only(directory)) as connection:
        try:
            for (named,) in connection.execute(_NAMED):
                yield from _DIGEST.findall(named)
        except sqlite3.Error as error:
            raise StateError(
                f"{directory / DATABASE} cannot be read: {error}. Restore it from a backup."
            ) from None

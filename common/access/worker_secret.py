"""Worker secret: the metadata by which a worker proves, with every call, that it is itself.

A worker's secret is its `instance_id`, which it draws at random and tells nobody but the
coordinator; the worker id that everybody sees is a hash of it.
"""

from __future__ import annotations

WORKER_SECRET = "lipt-worker-secret"  # noqa: S105 - the name of a metadata key
# Of a peer's own making: so many characters as nobody guesses, 128 bits in hexadecimal.
MIN_SECRET_CHARACTERS = 32

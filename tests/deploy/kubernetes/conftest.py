"""What these tests need is in the extra `dev`: `make test-oldest` and the like go without them."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDED = ("helm_python", "kubernetes_validate", "yaml")

collect_ignore_glob = [] if all(map(find_spec, _NEEDED)) else ["test_*.py"]

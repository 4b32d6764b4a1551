from __future__ import annotations

from typing import Any

import pytest

from lipt.trainer.comparison.compare import rests_on_pretraining, warm_up_seconds

SIGNALS = ("signals",)


def ridge(features: str, *tried: str) -> dict[str, Any]:
    """What a manifest says of a ridge head, and of what was tried before it."""
    proxy = "auto" if tried else f"ridge:{features}"
    return {"proxy": proxy, "features": features, "tried": [{"features": one} for one in tried]}


@pytest.mark.parametrize(
    ("needs", "proxy", "rests"),
    [
        (SIGNALS, ridge("patches"), False),
        (SIGNALS, ridge("backbone+user"), False),
        (SIGNALS, {"proxy": "soup"}, True),
        (SIGNALS, ridge("soup"), True),
        (SIGNALS, ridge("patches+learners"), True),
        # What was tried had to be there, though another won.
        (SIGNALS, ridge("patches", "patches", "learners", "learners+patches"), True),
        (SIGNALS, ridge("patches", "patches", "backbone"), False),
        # Where no proxy was looked at, the manifest names the soup.
        (("labels",), {"proxy": "soup"}, False),
        (("near copies",), {"proxy": "soup"}, False),
        (("near copies", "signals"), {"proxy": "soup"}, True),
        # These are of the run, whatever the proxy.
        (("learners", "signals"), ridge("patches"), True),
        (("gradient norms", "signals"), ridge("patches"), True),
    ],
)
def test_choosing_rests_on_pretraining_where_the_run_was_looked_at(
    needs: tuple[str, ...], proxy: dict[str, Any], rests: bool
) -> None:
    assert rests_on_pretraining(needs, {"proxy": proxy}) is rests


def test_an_ordinary_warm_up_stands_in_for_the_run_at_its_own_cost() -> None:
    manifest = {"proxy": {"proxy": "soup"}, "costs": {"warm_up_seconds": 2.5}}
    assert not rests_on_pretraining(SIGNALS, manifest)
    assert warm_up_seconds(manifest) == 2.5
    assert warm_up_seconds({"proxy": {"proxy": "soup"}, "costs": {}}) is None

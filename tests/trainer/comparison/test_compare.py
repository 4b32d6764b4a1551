from typing import Any

import pytest

from lipt.trainer.comparison.compare import selection_costs
from lipt.trainer.views import CostsView


@pytest.mark.parametrize(
    ("name", "manifest", "costs"),
    [
        ("uniform", {}, {}),
        ("uniform", {"soft_labels": {"accuracy": 0.5}}, {"selection_seconds": 1.5}),
        ("craig", {}, {"selection_seconds": 1.5}),
        (
            "craig",
            {"uses_pretraining": True},
            {"selection_seconds": 1.5, "pretraining_seconds": 10.0, "bytes_sent": 30},
        ),
        # An ordinary warm-up takes the place of the run, at its own cost.
        ("craig", {"warm_up_seconds": 2.5}, {"selection_seconds": 1.5, "pretraining_seconds": 2.5}),
    ],
)
def test_costs_of_selection(name: str, manifest: dict[str, Any], costs: dict[str, float]) -> None:
    warm_up = {key: value for key, value in manifest.items() if key == "warm_up_seconds"}
    run = CostsView(1.0, 2.0, 3.0, 4.0, 10, 20)
    spent = {"costs": {"selection_seconds": 1.5, **warm_up}}
    assert selection_costs(name, run, {"uses_pretraining": False, **manifest, **spent}) == costs

from __future__ import annotations

import pytest
import torch

from lipt.common.errors import SignalsError
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.diagnosis.residuals import fit_of_targets
from lipt.core.signals.signals import Signals

SIGNALS = Signals(
    errors_NC=torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, -1.0]]),
    features_ND=torch.zeros(3, 1),
    labels_N=torch.tensor([0, 2, 1]),
    kind=TargetKind.NUMBER,
)


def test_a_target_fits_the_less_the_further_off_it_is() -> None:
    found = fit_of_targets(SIGNALS, 3)
    # Residuals of 0, 5 and 1.
    assert found.quality_N.tolist() == pytest.approx([1.0, 1 / 6, 1 / 2])
    assert not found.suspects_N.any()
    assert found.suggested_N.tolist() == SIGNALS.labels_N.tolist()
    assert found.noise.overall.rate == 0.0
    assert len(found.noise.per_class) == 3


def test_label_errors_are_of_classes_alone() -> None:
    with pytest.raises(SignalsError, match="label errors cannot be looked for in regression data"):
        find_label_errors(SIGNALS)

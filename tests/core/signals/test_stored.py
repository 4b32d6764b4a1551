from __future__ import annotations

import torch

from lipt.core.signals.stored import STORAGE_LIMITS


def test_half_precision_of_imagenet_is_what_its_limits_are_for() -> None:
    # 1.28 million examples: 1,000 errors take 5.1 GB in float32, 512 features 2.6 GB.
    assert STORAGE_LIMITS.error_dtype(1_281_167 * 1000) == torch.float16
    assert STORAGE_LIMITS.feature_dtype(1_281_167 * 512) == torch.float32
    assert STORAGE_LIMITS.feature_dtype(1_281_167 * 2048) == torch.float16
    assert STORAGE_LIMITS.error_dtype(50_000 * 100) == torch.float32

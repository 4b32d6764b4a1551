"""Models: classifiers by name, their memory layout, and their last layer."""

from lipt.common.models.head import find_head, forward_with_features
from lipt.common.models.registry import build_model, lay_out, memory_format

__all__ = ["build_model", "find_head", "forward_with_features", "lay_out", "memory_format"]

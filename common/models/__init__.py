"""Models: classifiers by name, their layout in memory, and the last layer that signals look at.

Owns how a name becomes a model, and what a user's own model must do. For all three processes.
"""

from lipt.common.models.head import find_head, forward_with_features
from lipt.common.models.registry import build_model, known_models, lay_out, memory_format

__all__ = [
    "build_model",
    "find_head",
    "forward_with_features",
    "known_models",
    "lay_out",
    "memory_format",
]

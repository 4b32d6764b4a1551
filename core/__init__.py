"""Core: LiPT and selection as a library, on tensors and frozen values."""

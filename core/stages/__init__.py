"""Stages: computations on all examples, each done once and cached by the workspace."""

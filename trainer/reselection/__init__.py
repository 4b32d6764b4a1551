"""Re-selection: subsets that are chosen again as a model in training changes, and their samplers.

Imported by training scripts, the integrations and `lipt train`. It asks through a client that
it is given.
"""

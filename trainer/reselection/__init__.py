"""Re-selection: subsets that are chosen again as a model in training changes, and samplers."""

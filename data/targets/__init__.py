"""Targets: one class, several labels, or numbers; losses, residuals, scores and strata."""

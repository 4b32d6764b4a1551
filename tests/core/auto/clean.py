"""Evidence of clean data, from which tests depart."""

from lipt.core.auto.evidence import Evidence

# As on cifar10-jpeg: a head that gets 40% and 20% of two classes wrong, and labels that are right.
CLEAN = Evidence(
    fraction=0.1,
    per_class=10,
    num_features=1000,
    errors_C=(0.4, 0.2),
    full_C=(1.0, 1.0),
    noise_rate=0.0,
    noise_low=0.0,
    noise_C=(0.0, 0.0),
    training="short",
)

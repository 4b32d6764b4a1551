"""Arrow: the pipeline's numbers as plain functions over record batches, for Spark, Dask and others.

`Judge` gives each example's error, feature and scores under theta_p, `select_from` chooses from
the table of them as a coordinator would; `accumulate`, `merge` and `solve` are the closed-form
proxy's sums, which come out the same to the bit in any order. It has no cluster of its own, and
imports neither Spark nor Dask.
"""

from lipt.arrow.choosing import select_from
from lipt.arrow.judging import Judge
from lipt.arrow.sums import ExactSums, RidgeHead, accumulate, merge, solve

__all__ = ["ExactSums", "Judge", "RidgeHead", "accumulate", "merge", "select_from", "solve"]

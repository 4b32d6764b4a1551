"""Data: labelled data sets by name; row n is the same example in every process."""

from lipt.common.data.dataset import Dataset, input_format, without_quarantined
from lipt.common.data.loading import open_data, open_dataset
from lipt.common.data.shard import Shard, open_shard, pack_shard
from lipt.common.data.sources.pairs import open_pairs

__all__ = [
    "Dataset",
    "Shard",
    "input_format",
    "open_data",
    "open_dataset",
    "open_pairs",
    "open_shard",
    "pack_shard",
    "without_quarantined",
]

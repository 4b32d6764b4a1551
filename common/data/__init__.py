"""Data: labelled data sets by name; row n is the same example in every process."""

from lipt.common.data.dataset import Dataset, input_format, without_quarantined
from lipt.common.data.loading import dataset_of, known_sources, open_dataset
from lipt.common.data.shard import Shard, open_shard, pack_shard
from lipt.common.data.sources.pairs import open_pairs
from lipt.common.data.sources.rows import fingerprint
from lipt.common.images.formats import decode_image

__all__ = [
    "Dataset",
    "Shard",
    "dataset_of",
    "decode_image",
    "fingerprint",
    "input_format",
    "known_sources",
    "open_dataset",
    "open_pairs",
    "open_shard",
    "pack_shard",
    "without_quarantined",
]

"""Labelled image sets by name, and the shards cut from them."""

from lipt.common.data.channel_statistics import normalization
from lipt.common.data.dataset import Dataset
from lipt.common.data.decode import decode_image
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.registry import known_sources, open_dataset
from lipt.common.data.shard import Shard, pack_shard, unpack_shard

__all__ = [
    "Dataset",
    "Shard",
    "decode_image",
    "fingerprint",
    "known_sources",
    "normalization",
    "open_dataset",
    "pack_shard",
    "unpack_shard",
]

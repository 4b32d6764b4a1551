"""Own shards: which learner was trained on which examples.

A run does not keep its shards once their learners are in, but they are drawn from its seed,
configuration and labels, so they are drawn again. The name of the shard that a learner was
given stays on its record: what is drawn is packed, and believed where it has that name.

Shapes: N examples.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from lipt.common.blobs.name import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.data import pack_shard
from lipt.coordinator.compute.context import Context
from lipt.core.sharding import draw_shards

logger = logging.getLogger(__name__)


def own_learners(
    context: Context, config: RunConfig, shards: Sequence[tuple[int, BlobName]]
) -> Tensor:
    """Of every example the place in `shards` of the learner that was trained on it, or -1.

    A learner whose shard comes out otherwise than it was handed out (cut by a version that
    drew or packed in another way) is taken for one that has seen none of the examples.

    Args:
        context: has the run's data.
        config: the run's.
        shards: the index of each learner in question, and the name of its shard.

    Returns:
        N int16.
    """
    own_learner_N = torch.full((len(context.dataset),), -1, dtype=torch.int16)
    drawn = draw_shards(context.split(config).train_ids, config.learners, seed=config.seed)
    for place, (index, name) in enumerate(shards):
        if BlobName.of(pack_shard(context.dataset, drawn[index])) == name:
            own_learner_N[drawn[index]] = place
        else:
            logger.warning(
                "the shard of learner %d is not %s when it is drawn again: what the learner was "
                "trained on is not known, so it is asked about every example",
                index,
                name,
            )
    return own_learner_N

"""Snapshots from workers to subsets: strategies that watch the learners train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lipt.common.errors import ConfigError, SignalsError
from lipt.common.states import RunState
from tests.cluster import Cluster

STRATEGIES: tuple[tuple[str, dict[str, str]], ...] = (
    ("forgetting", {}),
    ("aum", {}),
    ("dual", {}),
    ("dual", {"sampling": "largest"}),
    ("disagreement", {}),
    ("el2n", {"models": "learners"}),
)


def watched(small_run: dict[str, Any]) -> dict[str, Any]:
    learners = {"num_learners": 3, "num_steps": 4, "num_snapshots": 2}
    return {**small_run, "learners": {**small_run["learners"], **learners}}


def test_one_worker_and_two_give_the_same_subsets_of_exact_size(
    cluster: Cluster, small_run: dict[str, Any], tmp_path: Path
) -> None:
    coordinator = cluster.start_coordinator()
    cluster.start_worker("one")
    with cluster.client() as client:
        alone = client.wait(client.start_run(watched(small_run), name="alone").run_id)
        assert alone.state is RunState.READY, alone.message
        cluster.start_worker("two").wait_for("joined")
        both = client.wait(client.start_run(watched(small_run), name="both").run_id)
        assert both.pretrained_weights == alone.pretrained_weights
        digests = {}
        for strategy, options in STRATEGIES:
            subsets = [
                client.subset(name, strategy, budget=123, options=options)
                for name in ("alone", "both")
            ]
            assert len(set(subsets[0].indices.tolist())) == 123
            assert subsets[0].digest == subsets[1].digest
            digests[strategy, *options] = subsets[0].digest
        assert len(set(digests.values())) == len(STRATEGIES)
        # 123 of the 1797 examples are less than a tenth.
        paper = client.subset("both", "ccs", budget=123, preset="paper")
        assert paper.manifest["options"] == {"score": "aum", "beta": "0.3", "num_strata": "50"}
        given = {"score": "aum", "beta": 0.3, "num_strata": 50}
        by_hand = client.subset("both", "ccs", budget=123, balanced=False, options=given)
        assert paper.digest == by_hand.digest
        # Snapshots are not pruned, so each is larger than a result.
        without = watched(small_run)
        without["learners"]["num_snapshots"] = 0
        plain = client.wait(client.start_run(without, name="plain").run_id)
        assert plain.pretrained_weights == alone.pretrained_weights
        assert alone.costs is not None
        assert plain.costs is not None
        assert alone.costs.bytes_from_workers > 3 * plain.costs.bytes_from_workers
        # Without any there are theta* and the pruned learners, and other subsets.
        two_moments = client.subset("plain", "aum", budget=123)
        assert two_moments.digest != digests["aum",]

        path = tmp_path / "theta_star.safetensors"
        client.save_weights(path, "plain", kind="initial")
        with pytest.raises(SignalsError, match=r"'aum' looks at how the learners of run plain"):
            client.subset("plain", "aum", budget=10, weights=path)
        with pytest.raises(ConfigError, match="Lower num_snapshots, or raise num_steps"):
            client.start_run({"learners": {"num_steps": 2, "num_snapshots": 3}})
    assert coordinator.stop() == 0
    cluster.start_coordinator()
    with cluster.client() as client:
        # From the state on disk: a budget that was not asked for before.
        again = client.subset("both", "forgetting", budget=124)
        assert len(again) == 124

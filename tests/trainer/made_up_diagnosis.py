"""A diagnosis that nobody has computed, and the file that a coordinator would send of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.tensor_files import pack
from lipt.trainer.diagnosis.diagnosis import Diagnosis, read_diagnosis
from lipt.v1 import diagnosis_pb2, run_pb2
from tests.relay import Fault, answer

FINGERPRINT = "f" * 64


def made_up_columns() -> dict[str, NDArray[Any]]:
    """Eight examples: 0-3 are cats and 4-7 dogs.

    1 and 6 look wrong, 6 more so; 3, 4 and 5 are alike and 0 and 2 are; 7 is far away.
    """
    return {
        "given_label": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32),
        "suggested_label": np.array([0, 1, 0, 0, 1, 1, 0, 1], np.int32),
        "label_quality": np.array([0.9, 0.2, 0.8, 0.7, 0.9, 0.8, 0.1, 0.6], np.float32),
        "suspect": np.array([0, 1, 0, 0, 0, 0, 1, 0], np.uint8),
        "duplicate_of": np.array([0, 1, 0, 3, 3, 3, 6, 7], np.int32),
        "outlier_score": np.array([0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3, 0.9], np.float32),
    }


def made_up_findings() -> dict[str, Any]:
    noise = {"noise_rate": 0.25, "low": 0.1, "high": 0.5}
    return {
        "version": 1,
        "num_examples": 8,
        "class_names": ["cat", "dog"],
        "class_counts": [4, 4],
        "num_full_classes": 2.0,
        "proxy": {"features": "patches", "accuracy": 0.75},
        "label_errors": {
            "num_suspects": 2,
            "noise_rate": 0.25,
            "noise_low": 0.1,
            "noise_high": 0.4,
            "per_class": [{"label": label, "count": 4, "suspects": 1} | noise for label in (0, 1)],
            "ranked": [
                {"id": 6, "given": 1, "suggested": 0, "quality": 0.1},
                {"id": 1, "given": 0, "suggested": 1, "quality": 0.2},
            ],
        },
        "confusion": [
            {"given": 0, "suggested": 1, "count": 1, "share": 0.25},
            {"given": 1, "suggested": 0, "count": 1, "share": 0.25},
        ],
        "duplicates": {
            **dict.fromkeys(("exact_groups", "near_groups", "conflicting"), 1),
            "surplus": 3,
            "threshold": 0.97,
            "groups": [[3, 4, 5], [0, 2]],
        },
        "imbalance": {"ratio": 1.0, "smallest": 0, "largest": 0},
        "outliers": {"count": 1, "ranked": [7]},
        "redundancy": {
            "share_for_90": 0.5,
            "examples_for_90": 4,
            "per_class": [{"label": label, "count": 4, "examples_for_90": 2} for label in (0, 1)],
            "sampled": 8,
        },
        "learnability": {
            "sizes": [2, 4, 8],
            "accuracies": [0.5, 0.625, 0.75],
            "suggested_fraction": 0.5,
            "reason": "twice as many add 12.5 points",
        },
    }


def diagnosis_file(
    findings: Mapping[str, Any] | None = None, columns: Mapping[str, NDArray[Any]] | None = None
) -> bytes:
    """The file of these findings and columns, or of those made up above."""
    tensors = {
        name: torch.from_numpy(column) for name, column in (columns or made_up_columns()).items()
    }
    return pack(tensors, {"diagnosis": json.dumps(findings or made_up_findings())})


def made_up_diagnosis(
    findings: Mapping[str, Any] | None = None,
    columns: Mapping[str, NDArray[Any]] | None = None,
    *,
    fingerprint: str = FINGERPRINT,
) -> Diagnosis:
    chosen = findings or made_up_findings()
    return read_diagnosis(
        diagnosis_file(chosen, columns),
        num_examples=chosen["num_examples"],
        fingerprint=fingerprint,
        manifest={"data": {"source": "pets"}, "versions": {"lipt": "0.1.0"}},
    )


def diagnosis_answer(
    store: Callable[[bytes], BlobName], content: bytes | None = None, **changes: Any
) -> Fault:
    """A coordinator's answer: progress, and the description of a file that is stored there."""
    progress = run_pb2.Progress(activity="computing features", done=4, total=8)
    described: dict[str, Any] = {
        "file": blob_to_proto(store(content or diagnosis_file())),
        "fingerprint": FINGERPRINT,
        "num_examples": 8,
        "proxy": "ridge:patches",
        "manifest_json": '{"data": {"source": "pets"}}',
    }
    description = diagnosis_pb2.DiagnosisDescription(**{**described, **changes})
    return answer(
        diagnosis_pb2.DiagnoseResponse(progress=progress),
        diagnosis_pb2.DiagnoseResponse(diagnosis=description),
    )

"""Reading of a diagnosis' file: sizes first, then names, types and shapes, then every value.

The file is safetensors: a tensor of N values for each column, and the findings as JSON in its
metadata under "diagnosis". Nothing of it is believed: it comes from another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from lipt.common.errors import BlobTooLargeError, DiagnosisError, WeightsError
from lipt.trainer.diagnosis.diagnosis import COLUMNS, Diagnosis
from lipt.trainer.diagnosis.findings import Findings

VERSION = 1
# Columns, the findings' lists of ids, and what a header says of the columns.
_BYTES_PER_EXAMPLE = sum(np.dtype(kind).itemsize for kind in COLUMNS.values()) + 32
_BYTES_OF_FINDINGS = 16 * 1024**2


def max_file_bytes(num_examples: int) -> int:
    """The largest file that a diagnosis of so many examples can need."""
    return num_examples * _BYTES_PER_EXAMPLE + _BYTES_OF_FINDINGS


def read_diagnosis(
    content: bytes,
    *,
    num_examples: int,
    fingerprint: str,
    run_id: str = "",
    manifest: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """The diagnosis that a file holds.

    Args:
        content: the file.
        num_examples: how many examples were announced.
        fingerprint: of the data set that was announced.
        run_id: the run whose learners were looked through; empty where none was.
        manifest: how it came about.

    Raises:
        DiagnosisError: the file is of another format or version, has other columns or sizes,
            or contradicts itself.
    """
    from lipt.common.weights.container import read_container  # noqa: PLC0415 - imports torch

    try:
        file = read_container(
            content,
            max_bytes=max_file_bytes(num_examples),
            max_tensors=4 * len(COLUMNS),
            max_metadata_bytes=max_file_bytes(num_examples),
        )
    except (WeightsError, BlobTooLargeError) as error:
        raise _refused(error.problem) from error
    if "diagnosis" not in file.metadata:
        raise _refused("its file has no findings")
    findings = _parse(file.metadata["diagnosis"])
    if findings.num_examples != num_examples:
        raise _refused(f"{num_examples} examples were announced, it has {findings.num_examples}")
    columns: dict[str, NDArray[Any]] = {}
    for name, kind in COLUMNS.items():
        spec = file.specs.get(name)
        if spec is None or spec.shape != (num_examples,):
            shape = "not there" if spec is None else f"of shape {spec.shape}"
            raise _refused(f"{name} is {shape}, expected are {num_examples} values")
        columns[name] = file.tensor(name).numpy()
        if columns[name].dtype != kind:
            raise _refused(f"{name} is {columns[name].dtype}, expected is {np.dtype(kind)}")
    return Diagnosis(
        findings, **columns, fingerprint=fingerprint, run_id=run_id, manifest=dict(manifest or {})
    )


def _parse(text: str) -> Findings:
    try:
        findings = TypeAdapter(Findings).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the text"
        raise _refused(f"in its findings {where} cannot be: {first['msg']}") from None
    if findings.version != VERSION:
        raise _refused(f"it is of version {findings.version}, known is {VERSION}")
    return findings


def _refused(why: str) -> DiagnosisError:
    return DiagnosisError(
        f"what arrived is no diagnosis: {why}. Ask again; if it stays so, install the same version "
        "of lipt on both sides."
    )

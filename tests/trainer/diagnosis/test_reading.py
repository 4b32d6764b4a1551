"""Files of a diagnosis, also those that somebody has made to do harm."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.errors import DiagnosisError
from lipt.common.weights.container import pack
from lipt.trainer.diagnosis.reading import max_file_bytes, read_diagnosis
from tests.trainer.made_up_diagnosis import diagnosis_file, made_up_columns, made_up_findings


def refusal(content: bytes, num_examples: int = 8) -> str:
    with pytest.raises(DiagnosisError) as caught:
        read_diagnosis(content, num_examples=num_examples, fingerprint="f")
    return str(caught.value)


def test_a_file_is_read() -> None:
    read = read_diagnosis(
        diagnosis_file(), num_examples=8, fingerprint="f", run_id="r", manifest={"a": 1}
    )
    assert (len(read), read.fingerprint, read.run_id, read.manifest) == (8, "f", "r", {"a": 1})
    assert read.findings.class_names == ("cat", "dog")
    assert read.findings.learnability.sizes == (2, 4, 8)


def test_what_a_later_version_adds_is_passed_over() -> None:
    findings: dict[str, Any] = made_up_findings() | {"drift": {"score": 0.5}}
    findings["outliers"]["method"] = "new"
    columns = made_up_columns() | {"drift_score": np.zeros(8, np.float32)}
    assert len(read_diagnosis(diagnosis_file(findings, columns), num_examples=8, fingerprint="f"))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "too few"),
        (b"<html>not here</html>", "not a safetensors file"),
        (pickle.dumps([1, 2, 3]) + b" " * 8, "a pickle, which is never opened here"),
        (struct.pack("<Q", 2**62) + b"{" * 100, "header of 4611686018427387904 bytes"),
        (diagnosis_file()[:-1], "describes"),
    ],
)
def test_other_files_are_refused(content: bytes, complaint: str) -> None:
    message = refusal(content)
    assert message.startswith("what arrived is no diagnosis: ")
    assert complaint in message


def test_a_file_without_findings_is_refused() -> None:
    tensors = {name: torch.from_numpy(column) for name, column in made_up_columns().items()}
    assert "its file has no findings" in refusal(pack(tensors))


@pytest.mark.parametrize("column", list(made_up_columns()))
def test_a_column_that_is_missing_or_of_another_size_or_kind_is_refused(column: str) -> None:
    columns = made_up_columns()
    kind = columns[column].dtype
    columns[column] = np.zeros(7, kind)
    expected = f"{column} is of shape (7,), expected are 8 values"
    assert expected in refusal(diagnosis_file(columns=columns))
    columns[column] = np.zeros((8, 1), kind)
    assert f"{column} is of shape (8, 1)" in refusal(diagnosis_file(columns=columns))
    columns[column] = np.zeros(8, np.float64)
    expected = f"{column} is float64, expected is {kind}"
    assert expected in refusal(diagnosis_file(columns=columns))
    del columns[column]
    assert f"{column} is not there" in refusal(diagnosis_file(columns=columns))


def with_text(text: str) -> bytes:
    tensors = {name: torch.from_numpy(column) for name, column in made_up_columns().items()}
    return pack(tensors, {"diagnosis": text})


def changed(*path: str, to: Any) -> str:
    findings = made_up_findings()
    part: Any = findings
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    return json.dumps(findings)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "the text cannot be"),
        ("[" * 100_000, "the text cannot be"),
        ("null", "the text cannot be"),
        ("{}", "version cannot be: Field required"),
        (changed("version", to=2), "it is of version 2, known is 1"),
        (changed("num_examples", to=9), "8 examples were announced, it has 9"),
        (changed("num_examples", to="8"), "num_examples cannot be"),
        (changed("num_examples", to=0), "num_examples cannot be"),
        (changed("class_names", to="cat"), "class_names cannot be"),
        (changed("class_counts", to=[4, -4]), "class_counts.1 cannot be"),
        (changed("class_counts", to=[4, True]), "class_counts.1 cannot be"),
        (changed("label_errors", "noise_rate", to=1.5), "label_errors.noise_rate cannot be"),
        (changed("label_errors", "noise_rate", to=float("nan")), "noise_rate cannot be"),
        (changed("label_errors", "ranked", to=[{"id": -1}]), "label_errors.ranked.0.id cannot be"),
        (changed("duplicates", "groups", to=[["0"]]), "duplicates.groups.0.0 cannot be"),
        (changed("imbalance", "ratio", to=float("inf")), "imbalance.ratio cannot be"),
        (changed("seconds", to={"head": "fast"}), "seconds.head cannot be"),
        (changed("learnability", "why", to={"html": "<b>"}), "learnability.why cannot be"),
    ],
)
def test_findings_of_another_kind_are_refused(text: str, complaint: str) -> None:
    assert complaint in refusal(with_text(text))


def test_a_file_is_refused_from_its_size() -> None:
    # Sparse would be smaller, but nothing looks into it.
    content = struct.pack("<Q", 2) + b"{}" + bytes(max_file_bytes(8))
    assert f"at most {max_file_bytes(8)} are read" in refusal(content)

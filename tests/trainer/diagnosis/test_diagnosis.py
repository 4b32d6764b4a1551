import csv
import io
import json
from typing import Any

import numpy as np
import pytest
import torch

from lipt.common.errors import DataError, DiagnosisError
from lipt.common.tensor_files import pack
from lipt.core.diagnosis.findings import Findings
from lipt.trainer.diagnosis.diagnosis import export_issues, max_file_bytes, read_diagnosis
from lipt.trainer.diagnosis.sentences import facts, proxy_text
from tests.trainer.made_up_diagnosis import (
    diagnosis_file,
    made_up_columns,
    made_up_diagnosis,
    made_up_findings,
)


def test_label_issues_come_worst_first_and_the_largest_group_of_duplicates_first() -> None:
    diagnosis = made_up_diagnosis()
    assert [group.tolist() for group in diagnosis.duplicate_groups()] == [[3, 4, 5], [0, 2]]
    assert diagnosis.surplus().tolist() == [2, 4, 5]
    issues = diagnosis.label_issues()
    assert [(issue.id, issue.given, issue.suggested) for issue in issues] == [(6, 1, 0), (1, 0, 1)]
    assert [round(issue.quality, 3) for issue in issues] == [0.1, 0.2]


@pytest.mark.parametrize(
    # Half of low * 8, rounded down, and never more than there are suspects.
    ("low", "ids"),
    [(0.0, []), (0.2, []), (0.25, [6]), (0.5, [6, 1]), (1.0, [6, 1])],
)
def test_sure_label_issues_are_half_of_the_fewest_wrong(low: float, ids: list[int]) -> None:
    findings = made_up_findings()
    findings["label_errors"]["noise_low"] = low
    diagnosis = made_up_diagnosis(findings)
    assert [issue.id for issue in diagnosis.label_issues(sure=True)] == ids
    surplus = {2, 4, 5}
    assert set(diagnosis.clean().tolist()) == set(range(8)) - surplus - set(ids)


@pytest.mark.parametrize(
    ("accuracy", "suggested_fraction", "num_features", "is_limited"),
    [
        (0.89, 0.5, 40, True),
        (0.9, 0.5, 40, False),
        (0.89, 1.0, 40, False),
        (0.89, 0.5, 41, False),
        (0.89, 0.5, None, False),
    ],
)
def test_a_head_that_is_too_simple_is_sure_of_no_label(
    accuracy: float, suggested_fraction: float, num_features: int | None, *, is_limited: bool
) -> None:
    told = made_up_findings() | {
        "num_examples": 800,
        "class_counts": [400, 0, 400],
        "num_full_classes": 2.0,
    }
    told["proxy"]["num_features"] = num_features
    told["label_errors"]["noise_low"] = 0.5
    told["learnability"]["accuracies"][-1] = accuracy
    told["learnability"]["suggested_fraction"] = suggested_fraction
    findings = Findings.model_validate(told | {"class_names": ["cat", "cow", "dog"]})
    assert findings.num_sure == (0 if is_limited else 2)
    assert facts(findings)[0].text.endswith("many of these may be right") == is_limited


def test_outliers_are_listed_farthest_first() -> None:
    findings = made_up_findings()
    findings["outliers"] = {"count": 3, "ranked": [7]}
    # 1 scores 0.2, 6 scores 0.3, 7 scores 0.9.
    assert made_up_diagnosis(findings).outliers().tolist() == [7, 6, 1]


def test_a_notebook_shows_a_table_of_text_and_the_worst_labels_with_their_pictures() -> None:
    names = ["<script>alert(1)</script>", "dog"]
    diagnosis = made_up_diagnosis(made_up_findings() | {"class_names": names})
    shown = diagnosis._repr_html_()
    assert shown.startswith("<table>")
    assert "<script>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "duplicates: 3 surplus" in repr(diagnosis)
    assert "redundancy" not in repr(diagnosis)  # nothing has to be done about it
    data = np.zeros((8, 8, 8), np.uint8), [0, 1] * 4
    pictures = diagnosis.show(data, number=1)._repr_html_()
    assert pictures.count("<img") == 1
    assert "row 6: " in pictures
    assert "<script>" not in pictures
    with pytest.raises(DataError, match=r"is of 8 examples, and data has 4\. Give the diagnosed"):
        diagnosis.show((data[0][:4], data[1][:4]))


@pytest.mark.parametrize(
    ("name", "row", "value", "complaint"),
    [
        ("given_label", 0, 2, "given_label has values outside 0..1"),
        ("suggested_label", 0, -1, "suggested_label has values outside 0..1"),
        ("duplicate_of", 7, 8, "duplicate_of has values outside 0..7"),
        ("suspect", 0, 2, "suspect has values outside 0..1"),
        ("label_quality", 0, np.nan, "label_quality is negative or not finite"),
        ("outlier_score", 0, -0.5, "outlier_score is negative or not finite"),
        ("duplicate_of", 7, 5, "its duplicates contradict its columns"),
        ("suspect", 0, 1, "its suspects contradict its columns"),
        ("duplicate_of", 7, 3, "its surplus contradict its columns"),
        ("given_label", 0, 1, "its classes contradict its columns"),
    ],
)
def test_mismatched_columns_are_refused(name: str, row: int, value: float, complaint: str) -> None:
    columns = made_up_columns()
    columns[name][row] = value
    with pytest.raises(DiagnosisError, match=complaint):
        made_up_diagnosis(columns=columns)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"class_names": ["cat"]}, "its names of classes do not fit"),
        ({"worst_fitting": [8]}, "its worst rows do not fit"),
        ({"outliers": {"count": 9}}, "its outliers do not fit"),
        ({"imbalance": {"largest": 2}}, "its labels do not fit"),
        ({"learnability": {"sizes": [1, 2]}}, "its learning curve do not fit"),
    ],
)
def test_findings_out_of_range_are_refused(changes: dict[str, Any], complaint: str) -> None:
    findings = made_up_findings()
    for name, value in changes.items():
        findings[name] = findings[name] | value if isinstance(value, dict) else value
    with pytest.raises(DiagnosisError, match=complaint):
        made_up_diagnosis(findings)


def refusal(content: bytes, num_examples: int = 8) -> str:
    with pytest.raises(DiagnosisError) as caught:
        read_diagnosis(content, num_examples=num_examples, fingerprint="f")
    return str(caught.value)


def test_unknown_fields_of_later_versions_are_ignored() -> None:
    findings: dict[str, Any] = made_up_findings() | {"drift": {"score": 0.5}}
    findings["outliers"]["method"] = "new"
    columns = made_up_columns() | {"drift_score": np.zeros(8, np.float32)}
    told: dict[str, Any] = {"fingerprint": "f", "run_id": "r", "manifest": {"a": 1}}
    read = read_diagnosis(diagnosis_file(findings, columns), num_examples=8, **told)
    assert (len(read), read.fingerprint, read.run_id, read.manifest) == (8, *told.values())
    assert read.findings.class_names == ("cat", "dog")
    assert read.findings.learnability.sizes == (2, 4, 8)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "too few"),
        # Sparse would be smaller, but nothing looks into it.
        (b"{}" + bytes(max_file_bytes(8)), f"at most {max_file_bytes(8)} are read"),
        (diagnosis_file()[:-1], "describes"),
    ],
)
def test_other_files_are_refused(content: bytes, complaint: str) -> None:
    message = refusal(content)
    assert message.startswith("what arrived is no diagnosis: ")
    assert complaint in message


@pytest.mark.parametrize("column", list(made_up_columns()))
def test_a_column_that_is_missing_or_of_another_size_or_kind_is_refused(column: str) -> None:
    columns = made_up_columns()
    kind = columns[column].dtype
    for other in (np.zeros(7, kind), np.zeros((8, 1), kind), np.zeros(8, np.float64)):
        content = diagnosis_file(columns=columns | {column: other})
        assert f"{column} is {other.dtype} {other.shape} for 8 rows" in refusal(content)
    del columns[column]
    assert f"it has no {column}" in refusal(diagnosis_file(columns=columns))


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
        ("", "the text cannot be"),
        ("{", "the text cannot be"),
        ("[" * 100_000, "the text cannot be"),
        ("{}", "num_examples cannot be: Field required"),
        (changed("version", to=2), "version cannot be: Input should be 1"),
        (changed("num_examples", to=9), "8 examples were announced, it has 9"),
        (changed("num_examples", to="8"), "num_examples cannot be"),
        (changed("class_counts", to=[4, -4]), "class_counts.1 cannot be"),
        (changed("label_errors", "noise_rate", to=1.5), "label_errors.noise_rate cannot be"),
        (changed("imbalance", "ratio", to=float("inf")), "imbalance.ratio cannot be"),
    ],
)
def test_findings_of_another_kind_are_refused(text: str, complaint: str) -> None:
    tensors = {name: torch.from_numpy(column) for name, column in made_up_columns().items()}
    assert complaint in refusal(pack(tensors, {"diagnosis": text}))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"noise_rate": None, "noise_high": 0.6},
            (
                "of all labels 10.0% to 60.0% are wrong, and a head that is right on 75.0% cannot "
                "say more closely"
            ),
        ),
        (
            {"noise_rate": None, "noise_low": 0.0, "noise_high": 1.0},
            "8 examples and this head are too little to estimate how many labels are wrong",
        ),
    ],
)
def test_an_estimate_that_the_head_cannot_give_is_left_out(
    changes: dict[str, Any], text: str
) -> None:
    findings = made_up_findings()
    findings["label_errors"] |= changes
    assert facts(made_up_diagnosis(findings).findings)[0].text == f"2 look wrong; {text}"


@pytest.mark.parametrize(("accuracy", "guesses"), [(0.59, True), (0.61, False)])
def test_a_head_that_guesses_is_named_beside_its_suspects(accuracy: float, guesses: bool) -> None:
    # Of two classes: 0.6 is a fifth of the way from 0.5 to 1.
    findings = made_up_findings()
    findings["proxy"] |= {"accuracy": accuracy}
    text = facts(made_up_diagnosis(findings).findings)[0].text
    assert ("hardly more than guessing, so most of these may be right" in text) == guesses


def test_findings_and_proxy_are_described_with_numbers() -> None:
    told = {fact.name: fact.text for fact in facts(made_up_diagnosis().findings)}
    assert told == {
        "label errors": (
            "2 look wrong; of all labels an estimated 25.0% are wrong (10.0% to 40.0%, by a head "
            "that is right on 75.0%)"
        ),
        "confused classes": "cat that look like dog (25.0%), dog that look like cat (25.0%)",
        "duplicates": (
            "3 surplus: 1 identical group, 1 similar group; the labels of 1 group disagree"
        ),
        "imbalance": "none: 4 of every class",
        "outliers": "1 example far from everything",
        "redundancy": "4 examples (50.0%) represent 90% of the data",
        "learnability": "suggested fraction: 0.5: twice as many add 12.5 points",
    }
    seen = proxy_text(made_up_diagnosis().findings)
    assert seen == ("a ridge head on patches, leave-one-out accuracy 75.0%")
    unknown = made_up_findings() | {"proxy": {"features": "mine"}}
    assert proxy_text(made_up_diagnosis(unknown).findings) == "a ridge head on mine"
    assert proxy_text(made_up_diagnosis(made_up_findings() | {"proxy": {}}).findings) == ""


# As cleanlab's Datalab.get_issues() calls them.
CLEANLAB = {
    *("given_label", "predicted_label", "is_label_issue", "label_score", "outlier_score"),
    *("is_near_duplicate_issue", "near_duplicate_sets", "is_outlier_issue"),
}
PATHS = [f"/pets/{row}.png" for row in range(8)]


def table(findings: dict[str, Any] | None = None, paths: list[str] | None = None) -> Any:
    content = export_issues(made_up_diagnosis(findings), paths).decode()
    return list(csv.DictReader(io.StringIO(content, newline="")))


def test_the_columns_equal_cleanlab_s() -> None:
    rows = table()
    assert set(rows[0]) == CLEANLAB | {"index"}
    found = {name: [row[name] for row in rows] for name in rows[0]}
    assert found["given_label"] == ["cat"] * 4 + ["dog"] * 4
    assert found["predicted_label"] == ["cat", "dog", "cat", "cat", "dog", "dog", "cat", "dog"]
    assert [row for row in range(8) if found["is_label_issue"][row] == "True"] == [1, 6]
    scores = ["0.9", "0.2", "0.8", "0.7", "0.9", "0.8", "0.1", "0.6"]
    assert found["label_score"] == scores
    sets = [json.loads(text) for text in found["near_duplicate_sets"]]
    assert sets == [[2], [], [0], [4, 5], [3, 5], [3, 4], [], []]
    alike = [row for row in range(8) if found["is_near_duplicate_issue"][row] == "True"]
    assert alike == [0, 2, 3, 4, 5]
    assert [row for row in range(8) if found["is_outlier_issue"][row] == "True"] == [7]
    assert list(table(paths=PATHS)[0])[:2] == ["index", "filepath"]
    assert [row["filepath"] for row in table(paths=PATHS)] == PATHS
    rows = table(made_up_findings() | {"class_names": ['cat, "tame"\n', "dog"]})
    assert rows[0]["given_label"] == 'cat, "tame"\n'
    assert len(rows) == 8


def test_no_cell_is_a_formula_or_an_escape_sequence() -> None:
    names = ["=cmd|' /C calc'!A0", "\x1b[31m-red"]
    paths = ["@SUM(1)", "\t=1+1", "\r+1", " -1+1", "-1", "caf\udce9.png", "\u202e=1", "\uff1d1+1"]
    rows = table(made_up_findings() | {"class_names": names}, paths)
    assert rows[0]["given_label"] == "'=cmd|' /C calc'!A0"
    assert rows[4]["given_label"] == r"\x1b[31m-red"
    shown = ["'@SUM(1)", r"\t=1+1", r"\r+1", "' -1+1", "-1", r"caf\udce9.png", r"\u202e=1"]
    assert [row["filepath"] for row in rows] == [*shown, "'\uff1d1+1"]

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lipt.common.data import open_dataset
from lipt.v1 import diagnosis_pb2
from tests.relay import Relay
from tests.service import Service
from tests.trainer.made_up_diagnosis import diagnosis_answer, made_up_findings

SAID = """\
pets: 8 examples, 2 classes; seen by a ridge head on patches, right on 75.0% of the \
examples that it did not learn from
label errors      2 look wrong; of all labels an estimated 25.0% are wrong (10.0% to 40.0%)
confused classes  cat that look like dog (25.0%), dog that look like cat (25.0%)
duplicates        3 surplus: 1 picture more than once, 1 group nearly alike; \
the labels of 1 group disagree
imbalance         none: 4 of every class
outliers          1 example far from everything
redundancy        4 examples (50.0%) carry 90% of what all do
learnability      worth asking for: a fraction of 0.5: twice as many add 12.5 points

the 2 worst labels:
row  labelled  looks like  fits
6    dog       cat         0.10
1    cat       dog         0.20

page: diagnosis.html, without pictures: --data opens the data for them
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pets(tmp_path: Path) -> str:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(4):
            image = Image.fromarray(np.full((8, 8), 9 * number, np.uint8))
            image.save(tmp_path / "pets" / name / f"{number}.png")
    return f"imagefolder:{tmp_path / 'pets'}"


def test_images_that_cannot_be_used_are_listed_and_the_status_is_1(
    lipt: Any, pets: str, tmp_path: Path
) -> None:
    broken = tmp_path / "pets" / "dog" / "1.png"
    broken.write_bytes(b"no image")
    result = lipt("check", "--data", pets)
    assert result.exit_code == 1
    first, last = result.stdout.splitlines()
    assert first.startswith(f"image 5 ({broken}): it is not a whole image")
    assert last == f"1 of 8 images of {pets} cannot be used"


def test_it_says_what_was_found(service: Service, relay: Relay, lipt: Any, here: Path) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store))
    result = lipt("diagnose")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == SAID
    assert "Labels that look wrong" in (here / "diagnosis.html").read_text("utf-8")
    assert relay.requests[0] == diagnosis_pb2.DiagnoseRequest()


def test_with_the_data_the_page_has_pictures_and_the_table_paths(
    service: Service, relay: Relay, lipt: Any, here: Path, pets: str
) -> None:
    fingerprint = open_dataset(pets).fingerprint
    relay.next("Diagnose", diagnosis_answer(service.store, fingerprint=fingerprint))
    options = ("--run", "latest", "--proxy", "ridge:learners", "--export", "issues.csv")
    result = lipt("diagnose", "--data", pets, *options)
    assert result.exit_code == 0, result.stderr
    assert "page: diagnosis.html\n" in result.stdout
    assert "issues: issues.csv, a row for each of 8 examples\n" in result.stdout
    page = (here / "diagnosis.html").read_text("utf-8")
    assert page.count('<img src="data:image/png;base64,') == 8
    first = (here / "issues.csv").read_text("utf-8").splitlines()[1]
    assert first.startswith(f"0,{here}/pets/cat/0.png,cat,cat,False,0.9,")
    relay.next("Diagnose", diagnosis_answer(service.store, fingerprint=fingerprint))
    result = lipt("diagnose", "--out", "found")
    assert "page: found/diagnosis.html" in result.stdout
    assert "issues: found/issues.csv, a row for each of 8 examples\n" in result.stdout
    assert {path.name for path in (here / "found").iterdir()} == {"diagnosis.html", "issues.csv"}
    # Which images are left out is asked for first.
    request = relay.requests[1]
    assert request == diagnosis_pb2.DiagnoseRequest(run_id="latest", proxy="ridge:learners")


def test_json_is_the_findings_and_no_page(
    service: Service, relay: Relay, lipt: Any, here: Path
) -> None:
    relay.every("Diagnose", diagnosis_answer(service.store))
    document = json.loads(lipt("diagnose", "--json").stdout)
    found, sent = document["findings"], made_up_findings()
    for name in ("num_examples", "class_names", "confusion", "redundancy", "learnability"):
        assert found[name] == sent[name]
    assert document["manifest"] == {"data": {"source": "pets"}}
    assert document["page"] is None
    assert list(here.iterdir()) == []
    document = json.loads(lipt("diagnose", "--json", "--out", "d.html").stdout)
    assert document["page"] == "d.html"
    assert (here / "d.html").is_file()


def test_other_data_is_refused_and_nothing_is_written(
    service: Service, relay: Relay, lipt: Any, here: Path
) -> None:
    relay.next("Diagnose", diagnosis_answer(service.store))
    result = lipt("diagnose", "--data", "digits-test")
    assert result.exit_code == 1
    assert "Give the coordinator's own data, or leave --data out." in result.stderr
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--export", "issues.xlsx"), "issues.xlsx is not a .csv file"),
        (("--export", "/nowhere/issues.csv"), "not a directory"),
        (("--out", "/nowhere/page.html"), "not a directory"),
        (("--out", "/nowhere/folder"), "/nowhere is not a directory"),
    ],
)
def test_what_could_not_be_written_is_refused_before_anything_is_asked(
    relay: Relay, lipt: Any, here: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    result = lipt("diagnose", *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())
    assert relay.calls == []
    assert list(here.iterdir()) == []

import base64
import hashlib
import html
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lipt.common.data import open_dataset
from lipt.trainer.report.report import file_paths, render_diagnosis
from tests.trainer.made_up_diagnosis import made_up_columns, made_up_diagnosis, made_up_findings
from tests.trainer.report.reading import Page, words

HOSTILE = "<script>alert(1)</script>"
BREAKING_OUT = '"><img src=https://elsewhere/x onerror=alert(1)>'


@pytest.fixture
def pets(tmp_path: Path) -> str:
    """Four cats and four dogs as files of 8 x 8 pixels; row 4 * c + i is class c, file i."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = np.full((8, 8, 3), 20 * number, np.uint8)
            file = f"{number}{HOSTILE.replace('/', '')}.png"
            Image.fromarray(pixels).save(tmp_path / name / file)
    return f"imagefolder:{tmp_path}"


@pytest.fixture
def with_pictures(pets: str) -> str:
    dataset = open_dataset(pets)
    return render_diagnosis(made_up_diagnosis(fingerprint=dataset.fingerprint), dataset)


def test_the_files_of_images_are_named_in_order(pets: str) -> None:
    files = file_paths(open_dataset(pets))
    assert files == sorted(map(str, Path(pets.partition(":")[2]).glob("*/*.png")))
    assert file_paths(open_dataset("digits-test")) is None


def test_the_page_is_self_contained_and_has_the_findings(with_pictures: str) -> None:
    page = Page(with_pictures)
    assert not page.open
    # The script of the marks, and no other.
    assert page.tags.count("script") == 1
    # 2 suspects, 3 and 2 duplicates, 1 outlier.
    assert page.tags.count("img") == 8
    assert all(address.startswith("data:") for address in page.loaded)
    assert page.alternatives[0] == "example 6, labelled dog, looks like cat"
    text = words(with_pictures)
    assert (
        "8 examples of 2 classes; proxy: a ridge head on patches, leave-one-out accuracy 75.0%"
        in text
    )
    assert "labels wrong, estimated 25.0% 10.0% to 40.0%" in text
    assert text.index("dog → cat fits 0.10") < text.index("cat → dog fits 0.20")
    # 3, 4 and 5 are a cat and two dogs, and come first; 0 and 2 are both cats.
    assert text.index("3 alike, with labels that disagree") < text.index("2 alike")
    assert "cat 4 1 25.0% (10.0% to 50.0%) 2" in text
    assert "cat dog 1 25.0%" in text
    assert "Suggested fraction: 0.5 . twice as many add 12.5 points" in text
    assert "There are no pictures" not in text


def test_the_page_says_what_to_do_next_and_its_data(pets: str, with_pictures: str) -> None:
    text = words(with_pictures)
    assert f"lipt diagnose --export issues.csv --data {pets}" in text
    assert "lipt subset get --fraction 0.5 --out subset.npy" in text
    assert f"Data {open_dataset(pets).fingerprint}" in text


def test_peer_names_are_shown_as_text() -> None:
    findings = made_up_findings()
    findings["class_names"] = [HOSTILE, BREAKING_OUT]
    findings["proxy"] = {"features": HOSTILE, "accuracy": 0.5, BREAKING_OUT: [HOSTILE]}
    findings["learnability"]["reason"] = HOSTILE
    text = render_diagnosis(made_up_diagnosis(findings))
    page = Page(text)
    assert not page.open
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert all(address.startswith("data:") for address in page.loaded)
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_diagnosis_without_findings_is_a_page() -> None:
    findings, columns = made_up_findings(), made_up_columns()
    findings["label_errors"] |= {"num_suspects": 0, "ranked": [], "per_class": []}
    findings["duplicates"] |= {"surplus": 0, "groups": [], "exact_groups": 0, "near_groups": 0}
    findings["outliers"] = {"count": 0, "ranked": []}
    findings |= {"confusion": [], "proxy": {}, "seconds": {}}
    findings["redundancy"]["per_class"] = []
    findings["learnability"] |= {"sizes": [], "accuracies": [], "reason": ""}
    columns["suspect"] = np.zeros(8, np.uint8)
    columns["duplicate_of"] = np.arange(8, dtype=np.int32)
    text = render_diagnosis(made_up_diagnosis(findings, columns))
    assert not Page(text).open
    assert words(text).count("None were found.") == 2
    assert "None is suspected." in text
    assert "script" not in Page(text).tags


def test_no_other_script_can_run(with_pictures: str) -> None:
    script = with_pictures.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = html.unescape(with_pictures).partition('Content-Security-Policy" content="')[2]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}';" in policy.partition('">')[0]

from __future__ import annotations

from lipt.trainer.diagnosis.findings import facts, fit_text, proxy_text
from tests.trainer.made_up_diagnosis import made_up_diagnosis, made_up_findings


def test_every_kind_of_finding_is_told_with_its_numbers() -> None:
    told = {fact.name: fact.text for fact in facts(made_up_diagnosis().findings)}
    assert told == {
        "label errors": "2 look wrong; of all labels an estimated 25.0% are wrong (10.0% to 40.0%)",
        "confused classes": "cat that look like dog (25.0%), dog that look like cat (25.0%)",
        "duplicates": (
            "3 surplus: 1 picture more than once, 1 group nearly alike; the"
            " labels of 1 group disagree"
        ),
        "imbalance": "none: 4 of every class",
        "outliers": "1 example far from everything",
        "redundancy": "4 examples (50.0%) carry 90% of what all do",
        "learnability": "worth asking for: a fraction of 0.5: twice as many add 12.5 points",
    }


def test_how_many_are_surely_wrong_is_said_where_it_can_be() -> None:
    findings = made_up_findings()
    findings["label_errors"]["noise_low"] = 0.25
    (labels, *_) = facts(made_up_diagnosis(findings).findings)
    assert labels.text.startswith("2 look wrong, the worst 1 surely so; ")


def test_how_a_label_fits_has_no_more_digits_than_say_something() -> None:
    assert [fit_text(quality) for quality in (0.0, 0.0099, 0.01, 0.236)] == [
        "<0.01",
        "<0.01",
        "0.01",
        "0.24",
    ]


def test_the_proxy_is_told_as_far_as_it_is_known() -> None:
    seen = proxy_text(made_up_diagnosis().findings)
    assert seen == (
        "a ridge head on patches, right on 75.0% of the examples that it did not learn from"
    )
    unknown = made_up_findings() | {"proxy": {"features": "mine"}}
    assert proxy_text(made_up_diagnosis(unknown).findings) == "a ridge head on mine"
    assert proxy_text(made_up_diagnosis(made_up_findings() | {"proxy": {}}).findings) == ""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from lipt.trainer.subsets.notebook import as_table, thumbnails
from tests.trainer.made_up import made_up_subset


def test_a_table_has_a_row_for_each_fact_and_no_markup_of_its_data() -> None:
    table = as_table("Subset", [("strategy", "<b>")])
    assert "<caption>Subset</caption>" in table
    assert ">strategy</th><td style='text-align:left'>&lt;b&gt;</td>" in table


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((3, 8, 8), np.uint8),
        torch.zeros(1, 8, 8, dtype=torch.uint8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        Image.new("L", (8, 8)),
    ],
)
def test_images_are_shown(image: object) -> None:
    shown = thumbnails([(image, "row 3")])
    assert "src='data:image/png;base64," in shown
    assert "<figcaption>row 3</figcaption>" in shown


@pytest.mark.parametrize("example", [np.zeros(30), torch.zeros(4, 4), "text", None])
def test_what_is_no_image_has_its_line_alone(example: object) -> None:
    assert thumbnails([(example, "row <3>")]).count("<img") == 0
    assert "row &lt;3&gt;" in thumbnails([(example, "row <3>")])


def test_a_subset_says_what_it_is() -> None:
    subset = made_up_subset([1, 4], [1, 3])
    assert ("weights", "1 to 3") in subset.facts
    assert repr(subset).startswith("<Subset of 2")
    assert "made-up" in subset._repr_html_()
    images = np.zeros((5, 8, 8), np.uint8)
    data = subset.dataset((images, [0, 1, 0, 1, 0]), check=False)
    assert "row 1: 1" in data._repr_html_()
    assert data._repr_html_().count("<img") == 2

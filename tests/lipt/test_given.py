from __future__ import annotations

import pytest

from lipt import given
from lipt.common.imports.factory import load_factory
from lipt.given import MODULE, giving


def test_what_is_given_is_found_by_name_while_the_block_lasts() -> None:
    data = [(0, 1)]
    with giving(data=data, model=lambda num_classes: num_classes + 1):
        assert load_factory(f"{MODULE}:data", allowed_modules=[MODULE])() is data
        assert load_factory(f"{MODULE}:model", allowed_modules=[MODULE])(num_classes=4) == 5
    with pytest.raises(KeyError):
        given.data()


def test_what_was_given_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), giving(data=[1]):
        raise ZeroDivisionError
    with pytest.raises(KeyError):
        given.data()

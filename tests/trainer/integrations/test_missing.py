import importlib
import sys

import pytest

from lipt.common.errors import MissingExtraError


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("lightning", "lightning", "lightning"), ("huggingface", "transformers", "huggingface")],
)
def test_a_missing_framework_is_an_error_with_the_command(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lipt.trainer.integrations.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for loaded in [key for key in sys.modules if key.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install '\.\[{extra}\]'"):
        importlib.import_module(name)

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lipt import progress as module
from lipt.progress import as_html, showing
from lipt.trainer.views import ProgressView


def test_what_takes_long_is_said_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with showing(asked=False) as show:
        show(ProgressView("selecting", 1, 2))
    times = iter([0.0, 9.0, 11.0, 11.0, 15.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(times))
    with showing(asked=None) as show:
        for done in (1, 2, 3):
            show(ProgressView("selecting", done, 4))
    assert capsys.readouterr() == ("", "lipt: selecting 2/4\n")


def test_a_notebook_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    cell = SimpleNamespace(update=shown.append)
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    display: Any = ModuleType("IPython.display")
    display.HTML, display.display = str, lambda html, display_id: cell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with showing(asked=None) as show:
        show(ProgressView("<b>", 1, 2))
    assert shown == ["<progress value='1' max='2'></progress> &lt;b&gt; 1/2", ""]
    assert as_html(ProgressView("waiting", 0, 0)) == "<progress></progress> waiting"

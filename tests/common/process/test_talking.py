from __future__ import annotations

import threading

import pytest

from lipt.common.process.service import talking


def test_a_long_block_is_spoken_of_again_and_again() -> None:
    lines, three = list[str](), threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            three.set()

    with talking("importing PyTorch", say, silence_seconds=0.001):
        assert three.wait(60)
    assert lines[0] == "importing PyTorch (for 0 s now)"
    assert not [thread for thread in threading.enumerate() if thread.name == "lipt-talking"]


def test_a_short_block_is_silent_also_where_it_fails() -> None:
    lines = list[str]()
    with pytest.raises(ValueError, match="mine"), talking("working", lines.append):
        raise ValueError("mine")
    assert lines == []

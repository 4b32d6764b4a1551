from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.process.machine import Machine, _container_limits, this_machine


def test_this_machine_has_a_core_and_memory() -> None:
    machine = this_machine()
    assert machine.num_cores >= 1
    assert machine.memory_bytes > 2**28


@pytest.mark.parametrize(("num_cores", "threads"), [(1, 8), (2, 8), (3, 12), (64, 256)])
def test_threads_follow_from_cores_and_leave_a_small_machine_some(
    num_cores: int, threads: int
) -> None:
    assert Machine(num_cores, 2**30).max_threads == threads


def limits(root: Path, own: str) -> list[int]:
    (root / "own").write_text(own)
    return list(_container_limits(root / "cgroup", root / "own"))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_a_group_and_of_those_above_it_hold(tmp_path: Path) -> None:
    put(tmp_path / "cgroup/a/b/memory.max", "max\n")
    put(tmp_path / "cgroup/a/memory.max", "2000\n")
    put(tmp_path / "cgroup/memory.max", "3000\n")
    assert limits(tmp_path, "0::/a/b\n") == [2000, 3000]


def test_limits_of_the_first_version_have_another_name(tmp_path: Path) -> None:
    put(tmp_path / "cgroup/memory/a/memory.limit_in_bytes", "1000\n")
    assert limits(tmp_path, "9:cpu:/x\n4:hugetlb,memory:/a\n") == [1000]


def test_a_container_finds_its_group_at_the_root(tmp_path: Path) -> None:
    put(tmp_path / "cgroup/memory.max", "1000\n")
    assert limits(tmp_path, "0::/docker/0123\n") == [1000]

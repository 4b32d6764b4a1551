"""What a pool makes of its settings, and what it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lipt.common.config.settings import load_settings
from lipt.common.errors import ConfigError, LiptError, UnreachableError
from lipt.worker.pool import opening
from lipt.worker.pool.opening import opened
from lipt.worker.pool.processes import LocalEngine
from lipt.worker.pool.settings import PoolSettings

TOKEN = "lipt_0123456789abcdef_" + "A" * 43


def settings(**flags: Any) -> PoolSettings:
    return load_settings(PoolSettings, config=None, flags=flags)


def open_pool(**flags: Any) -> None:
    with opened(settings(**flags), [], say=print):
        pass


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"min_workers": 3, "workers": 2}, "min_workers 3 is more than workers 2"),
        ({"workers": 0}, "workers = 0"),
        ({"working_dir": Path()}, "working_dir is for a pool on Ray"),
        ({"resources": ("gpu=1",)}, "resources is for a pool on Ray"),
        ({"coordinator": "head"}, "address 'head' is not host:port"),
        ({"ray": "auto", "resources": ("gpu",)}, "--resource 'gpu' is not NAME=AMOUNT"),
        ({"ray": "auto", "runtime_env": Path("none.yaml")}, "--runtime-env none.yaml cannot be"),
    ],
)
def test_what_cannot_work_is_refused_at_once(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_pool(**flags)


def test_cluster_that_is_not_there_is_named_with_how_to_start_one() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UnreachableError, match=r"'127.0.0.1:1'.*ray start --head"):
        open_pool(ray="127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "text"),
    [("env.yaml", "pip: [lipt]\nenv_vars: {A: b}\n"), ("env.json", '{"pip": ["lipt"]}')],
)
def test_runtime_environment_is_read_as_ray_reads_it(tmp_path: Path, name: str, text: str) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / name
    file.write_text(text)
    made = opening._runtime_env(settings(ray="auto", runtime_env=file, working_dir=tmp_path))
    assert made["pip"] == ["lipt"]
    assert made["working_dir"] == str(tmp_path)


def test_runtime_environment_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "env.json"
    file.write_text("[]")
    with pytest.raises(ConfigError, match="is no mapping"):
        open_pool(ray="auto", runtime_env=file)
    file.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_pool(ray="auto", runtime_env=file)


def test_workers_are_told_where_files_lie_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = settings(coordinator="head:1", tls_ca=Path("ca.pem"), token=TOKEN, ray="auto")
    words = opening._own_arguments(made)
    assert words == [
        *("--coordinator", "head:1", "--log-level", "INFO"),
        *("--tls-ca", str(tmp_path / "ca.pem")),
    ]
    # It travels beside the command line, and only where there is no file with it.
    assert opening._environment(made) == {"LIPT_TOKEN": TOKEN}
    assert opening._environment(settings(token=TOKEN, token_file=Path("token"))) == {}


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [(0.0, ["cpu", "cpu", "cpu"]), (1.0, ["cuda:0", "cuda:1", "cuda:2"]),
     (0.5, ["cuda:0", "cuda:0", "cuda:1"])],
)  # fmt: skip
def test_workers_of_this_machine_share_its_gpus_as_they_are_told(
    gpus: float, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Told:
        def __init__(self, module: str, arguments: list[str], *_: object) -> None:
            started.append([module, *arguments])

    monkeypatch.setattr("lipt.worker.pool.processes.Child", Told)
    engine = LocalEngine(gpus_per_worker=gpus, say=print)
    for number in range(3):
        engine.start(number, ["--device", "mine"])
    assert [words[:3] for words in started] == [
        ["lipt.worker", "--device", device] for device in devices
    ]
    assert all(words[3:] == ["--device", "mine"] for words in started)


def test_pool_on_ray_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(LiptError, match=r"lipt\[ray\]"):
        open_pool(ray="auto")

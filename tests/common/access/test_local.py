import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lipt.common.access import local
from lipt.common.access.local import LocalTarget, forget_dead, is_local, local_sockets

ADDRESS = "127.0.0.1:7"


class Server:
    """Listens at gRPC's targets until it is stopped; a killed one leaves its sockets."""

    def __init__(self) -> None:
        self._sockets = ExitStack()
        self.targets: list[str] = []

    def bind(self, target: str) -> int:
        bound = self._sockets.enter_context(socket.socket(socket.AF_UNIX))
        try:
            bound.bind(target.removeprefix("unix:"))
        except OSError as error:  # as gRPC does
            raise RuntimeError(target) from error
        bound.listen()
        self.targets.append(target)
        return 1

    def kill(self) -> None:
        self._sockets.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    del tmp_path  # made before there is another temporary folder
    # Short: a socket's path has 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        runtime, temporary = Path(root) / "r", Path(root) / "t"
        runtime.mkdir()
        temporary.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        yield runtime / "lipt", temporary / f"lipt-{os.geteuid()}"


def found(address: str = ADDRESS) -> str:
    return LocalTarget(address).current()


def test_sockets_are_private_and_found_until_they_close(
    folders: tuple[Path, Path], server: Server
) -> None:
    before = os.umask(0)
    try:
        with local_sockets(ADDRESS, server.bind) as paths:
            assert paths == tuple(folder / "127.0.0.1-7.sock" for folder in folders)
            assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
            assert found() == f"unix:{paths[0]}"
            assert is_local(found())
            paths[0].unlink()
            assert found() == found("localhost:7") == f"unix:{paths[1]}"
            # Of other addresses and ports they say nothing.
            for other in ("127.0.0.2:7", "[::1]:7", "127.0.0.1:8"):
                assert found(other) == other
    finally:
        os.umask(before)
    assert found() == ADDRESS
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_localhost_matches_ipv4_and_ipv6(server: Server) -> None:
    with local_sockets("localhost:7", server.bind):
        assert len(server.targets) == 4
        assert all(is_local(found(one)) for one in (ADDRESS, "[::1]:7", "localhost:7"))


def test_a_killed_coordinator_s_socket_is_ignored_and_replaced(server: Server) -> None:
    with local_sockets(ADDRESS, server.bind) as paths:
        target = LocalTarget(ADDRESS)
        assert is_local(target.current())
        other = Server()
        with local_sockets(ADDRESS, other.bind) as more:
            # Two live coordinators do not share a socket.
            assert more == ()
        server.kill()
        assert found() == ADDRESS
        # Connected clients wait for the next coordinator.
        assert is_local(target.current())
        with local_sockets(ADDRESS, other.bind) as more:
            assert more == paths
            assert is_local(found())
        other.kill()


def test_only_dead_sockets_are_removed(server: Server) -> None:
    with local_sockets(ADDRESS, server.bind) as paths:
        forget_dead(ADDRESS)
        assert all(path.exists() for path in paths)
        server.kill()
        forget_dead("127.0.0.1:8")
        assert all(path.exists() for path in paths)
        forget_dead(ADDRESS)
        assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("mode", [0o701, 0o770, 0o750, 0o700])
def test_a_folder_that_other_users_can_enter_or_own_is_not_used(
    folders: tuple[Path, Path], mode: int, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_sockets(ADDRESS, server.bind):
        for folder in folders:
            folder.chmod(mode)
        if mode == 0o700:
            # It is their owner that is wrong.
            real = local._is_private
            monkeypatch.setattr(
                local,
                "_is_private",
                lambda stat: real(os.stat_result([*stat[:4], 12345, *stat[5:]])),
            )
        assert found() == ADDRESS


def test_a_folder_name_taken_by_another_user_does_not_block_serving(
    folders: tuple[Path, Path], server: Server
) -> None:
    for folder in folders:
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
    with local_sockets(ADDRESS, server.bind) as (path,):
        assert path.parent.name.startswith(f"{folders[1].name}-")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert found() == f"unix:{path}"
    # It is used again.
    with local_sockets(ADDRESS, server.bind) as (again,):
        assert again == path


def test_links_and_other_files_are_not_used_as_sockets(
    folders: tuple[Path, Path], server: Server, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for folder in folders:
        folder.symlink_to(elsewhere)
    with local_sockets(ADDRESS, server.bind) as paths:
        assert paths[0].parent not in folders
    assert list(elsewhere.iterdir()) == []
    for folder in folders:
        folder.unlink()
    with local_sockets(ADDRESS, server.bind) as paths:
        for path in paths:
            (path.parent / "127.0.0.1-8.sock").symlink_to(path)
        assert found("127.0.0.1:8") == "127.0.0.1:8"


def test_a_short_folder_replaces_a_temporary_folder_with_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    assert all(Path("/tmp") in folder.parents for folder in local._folders())

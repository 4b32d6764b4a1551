"""What these tests need is in the extra `dev`: `make test-oldest` and the like go without them."""

from importlib.util import find_spec
from typing import Any

import pytest

_NEEDED = ("helm_python", "kubernetes_validate", "yaml")

collect_ignore_glob = [] if all(map(find_spec, _NEEDED)) else ["test_*.py"]


@pytest.fixture
def given(values: str) -> list[dict[str, Any]]:
    from tests.deploy.kubernetes.test_objects import objects

    return objects(values)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "values" in metafunc.fixturenames and "given" in metafunc.fixturenames:
        from tests.deploy.kubernetes.test_objects import VALUES

        metafunc.parametrize("values", VALUES)

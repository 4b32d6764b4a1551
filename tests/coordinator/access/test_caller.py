from __future__ import annotations

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import PermissionDeniedError
from lipt.coordinator.access.caller import ALLOWED_ROLES, Caller, is_open, require_role
from tests.expected_roles import EXPECTED
from tests.rpcs import all_methods, contract_methods, path_of


def caller(*roles: Role) -> Caller:
    return Caller(key="k", name="the token 0a1b2c3d", roles=frozenset(roles))


def test_every_call_of_the_contract_is_in_the_table() -> None:
    assert {path_of(method) for method in contract_methods()} <= ALLOWED_ROLES.keys()


def test_every_row_is_a_call_that_there_is() -> None:
    assert ALLOWED_ROLES.keys() <= {path_of(method) for method in all_methods()}


def test_every_call_takes_the_roles_that_are_expected() -> None:
    expected = {
        f"/{service}/{method}": roles
        for service, methods in EXPECTED.items()
        for method, roles in methods.items()
    }
    assert expected == {path: set(map(str, roles)) for path, roles in ALLOWED_ROLES.items()}


def test_only_health_is_open() -> None:
    opened = {path_of(method) for method in all_methods() if is_open(path_of(method))}
    assert opened
    assert all(path.startswith("/grpc.health.v1.Health/") for path in opened)
    assert not is_open("/grpc.health.v1.HealthX/Check")


def test_refusal_names_the_caller_its_role_the_call_and_who_may_make_it() -> None:
    with pytest.raises(
        PermissionDeniedError,
        match=r"^the token 0a1b2c3d has the role worker, and RunService/CreateRun takes the role "
        r"trainer or admin\. .*lipt token create --role",
    ):
        require_role(caller(Role.WORKER), "/lipt.v1.RunService/CreateRun")
    require_role(caller(Role.WORKER, Role.TRAINER), "/lipt.v1.RunService/CreateRun")


def test_call_that_is_not_in_the_table_is_refused_to_all() -> None:
    with pytest.raises(PermissionDeniedError, match="NewService/New: nobody may"):
        require_role(caller(*Role), "/lipt.v1.NewService/New")

from __future__ import annotations

from dataclasses import replace

import pytest

from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.errors import PermissionDeniedError
from lipt.coordinator.access.caller import (
    ALLOWED_ROLES,
    ANYBODY,
    Binding,
    Caller,
    Evidence,
    is_open,
    party_of,
    require_role,
    worker_id_of,
)
from tests.rpcs import EXPECTED, all_methods, contract_methods, path_of


def caller(*roles: Role) -> Caller:
    return Caller(key="k", name="the token 0a1b2c3d", roles=frozenset(roles))


def test_the_table_has_every_call_with_the_roles_that_are_expected() -> None:
    assert {path_of(method) for method in contract_methods()} <= ALLOWED_ROLES.keys()
    assert ALLOWED_ROLES.keys() <= {path_of(method) for method in all_methods()}
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
    with pytest.raises(PermissionDeniedError, match="NewService/New: nobody may"):
        require_role(caller(*Role), "/lipt.v1.NewService/New")


SECRET = "5" * 32
WORKER = frozenset({Role.WORKER})
BOX = Caller("cert-1", "box", EVERY_ROLE, certificate="aa")
RENEWED = Caller("cert-2", "box", EVERY_ROLE, certificate="bb")
OTHER = Caller("cert-3", "other", EVERY_ROLE, certificate="cc")
# A token that is called as the certificate is.
NAMESAKE = Caller("token-1", "box", WORKER)


def test_the_id_is_a_hash_of_the_secret_and_shows_nothing_of_it() -> None:
    # printf '5%.0s' {1..32} | sha256sum
    assert worker_id_of(SECRET) == "w-b235d9133396f6aa"
    shown = Evidence(ANYBODY, SECRET)
    assert shown.proves(worker_id_of(SECRET))
    assert not shown.proves(worker_id_of("other"))
    assert not Evidence().proves(worker_id_of(""))
    assert SECRET not in repr(shown) + repr(Binding.of(shown))


@pytest.mark.parametrize("now", [ANYBODY, BOX, OTHER, NAMESAKE])
def test_a_worker_bound_by_its_secret_is_whoever_shows_it(now: Caller) -> None:
    binding = Binding.of(Evidence(ANYBODY, SECRET))
    assert binding.objection(Evidence(now, SECRET)) == ""
    for secret in ("", SECRET[1:], SECRET.replace("5", "6")):
        expected = "does not show the secret of the worker that registered under it"
        assert binding.objection(Evidence(now, secret)) == expected


def test_a_certificate_has_to_be_shown_again_or_a_renewed_one_of_its_name() -> None:
    binding = Binding.of(Evidence(BOX, SECRET))
    for caller in (BOX, RENEWED):
        assert binding.objection(Evidence(caller, SECRET)) == ""
    for caller in (NAMESAKE, ANYBODY, replace(BOX, certificate="", name="x")):
        assert binding.objection(Evidence(caller, SECRET)) != ""
    words = "is of other, and the worker registered as box"
    assert binding.objection(Evidence(OTHER, SECRET)) == words
    assert binding.objection(Evidence(BOX)) != ""


def test_whoever_was_let_in_is_one_party_and_of_others_each_process_is() -> None:
    # A certificate by its name, for it may be renewed while a run lasts.
    assert party_of(BOX, "w-1") == party_of(RENEWED, "w-2") != party_of(OTHER, "w-1")
    assert party_of(NAMESAKE, "w-1") == party_of(NAMESAKE, "w-2") != party_of(BOX, "w-1")
    assert party_of(ANYBODY, "w-1") != party_of(ANYBODY, "w-2")

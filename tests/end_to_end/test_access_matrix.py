"""Every call of every kind of caller, on coordinators that listen in every way.

What is expected stands here once more, apart from the coordinator's own table: a row of that one
that is changed is found. The request is no message at all, so that nothing is computed: a caller
who is let in is told that it cannot be read, and one who is not is refused before it is.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trustme

from lipt.common.access.local import LocalTarget
from lipt.common.access.tokens import Token
from lipt.common.errors import from_rpc_error
from lipt.v1 import access_pb2, access_pb2_grpc
from tests.cluster import Cluster
from tests.rpcs import EXPECTED, all_methods, path_of
from tests.tls_files import write_files

IN, UNKNOWN, DENIED, SHUT = "let in", "UNAUTHENTICATED", "PERMISSION_DENIED", "no connection"

HEALTH = "grpc.health.v1.Health"


class Kind(NamedTuple):
    """A caller's token, and its certificate or "local"; its roles, or why it does not get in."""

    metadata: str = ""
    certificate: str = ""
    gets_in_as: str = UNKNOWN


def expected(gets_in_as: str) -> dict[str, str]:
    def outcome(roles: set[str]) -> str:
        if gets_in_as in (UNKNOWN, DENIED, SHUT):
            return gets_in_as
        return IN if roles & set(gets_in_as.split()) else DENIED

    found = {
        f"/{service}/{name}": outcome(roles)
        for service, methods in EXPECTED.items()
        for name, roles in methods.items()
    }
    # Which calls it has is its package's.
    health = (path for path in map(path_of, all_methods()) if HEALTH in path)
    return found | dict.fromkeys(health, SHUT if gets_in_as == SHUT else IN)


# On every coordinator.
TOKENS = {
    "worker": Kind("worker", gets_in_as="worker"),
    "another worker": Kind("another worker", gets_in_as="worker"),
    "trainer": Kind("trainer", gets_in_as="trainer"),
    "admin": Kind("admin", gets_in_as="admin"),
    "the state directory's token": Kind("own", gets_in_as="admin"),
    "wrong token": Kind("wrong"),
    "token of another form": Kind("formless"),
    "revoked token": Kind("revoked"),
    "expired token": Kind("expired"),
    "no bearer": Kind("basic"),
}
# A client that looks for a local socket, and one that does not.
NOTHING = {"no token": Kind(), "local": Kind("", "local")}
KINDS: dict[str, dict[str, Kind]] = {
    "own user": TOKENS
    | NOTHING
    | {
        "local": Kind("", "local", gets_in_as="admin"),
        "wrong token over the local socket": Kind("wrong", "local"),
        "worker's token over the local socket": Kind("worker", "local", gets_in_as="worker"),
    },
    "insecure": TOKENS
    | {
        name: Kind("", kind.certificate, gets_in_as="worker trainer admin")
        for name, kind in NOTHING.items()
    },
    "insecure, tokens": TOKENS | NOTHING,
    "tls": TOKENS | {"no token": Kind()},
    "mtls": {
        **{
            f"{name}, certificate without a role": Kind(kind.metadata, "roleless", kind.gets_in_as)
            for name, kind in TOKENS.items()
        },
        "no certificate": Kind(gets_in_as=SHUT),
        "no certificate, admin": Kind("admin", gets_in_as=SHUT),
        "expired certificate": Kind("admin", "expired", SHUT),
        "certificate of another authority": Kind("admin", "stranger", SHUT),
        "certificate without a role": Kind("", "roleless", DENIED),
        "certificate of an unknown role": Kind("", "unknown role", DENIED),
        "certified worker": Kind("", "worker", "worker"),
        "another certified worker": Kind("", "another worker", "worker"),
        "certified trainer": Kind("", "trainer", "trainer"),
        "certified admin": Kind("", "admin", "admin"),
        "wrong token of a certified admin": Kind("wrong", "admin"),
        "revoked token of a certified admin": Kind("revoked", "admin"),
        "worker's token of a certified admin": Kind("worker", "admin", "worker"),
        "trainer's token of a certified worker": Kind("trainer", "worker", "trainer"),
    },
}
CASES = [(server, name) for server, kinds in KINDS.items() for name in kinds]


class Certificates:
    def __init__(self, directory: Path) -> None:
        self._authority = trustme.CA()
        self.files = write_files(directory, self._authority)
        issue = self._authority.issue_cert
        past = datetime(2026, 1, 1, tzinfo=UTC)
        self._issued = {
            "roleless": issue("peer"),
            "unknown role": issue("peer", organization_unit_name="lipt-root"),
            "worker": issue("box-1", organization_unit_name="lipt-worker"),
            "another worker": issue("box-2", organization_unit_name="lipt-worker"),
            "trainer": issue("alice", organization_unit_name="lipt-trainer"),
            "admin": issue("root", organization_unit_name="lipt-admin"),
            "expired": issue("late", organization_unit_name="lipt-admin", not_after=past),
            "stranger": trustme.CA().issue_cert("x", organization_unit_name="lipt-admin"),
        }

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        root = self._authority.cert_pem.bytes()
        if not name:
            return grpc.ssl_channel_credentials(root)
        issued = self._issued[name]
        return grpc.ssl_channel_credentials(
            root, issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
        )


@dataclass
class Server:
    cluster: Cluster
    certificates: Certificates
    secure: bool
    shown: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def channel(self, certificate: str = "") -> grpc.Channel:
        address = self.cluster.address
        if self.secure:
            return grpc.secure_channel(address, self.certificates.credentials(certificate))
        local = certificate == "local"
        return grpc.insecure_channel(LocalTarget(address).current() if local else address)

    def give_out_tokens(self) -> None:
        own = bearer((self.cluster.state / "admin.token").read_text().strip())
        # With mTLS the connection takes a certificate, too.
        with self.channel("roleless") as channel:
            stub: Any = access_pb2_grpc.AccessServiceStub(channel)

            def make(role: str, *, days: float = 0.0) -> Any:
                request = access_pb2.CreateTokenRequest(role=f"ROLE_{role.upper()}", days=days)
                return stub.CreateToken(request, metadata=own, timeout=30)

            revoked = make("admin")
            revoking = access_pb2.RevokeTokenRequest(token_id=revoked.token.token_id)
            stub.RevokeToken(revoking, metadata=own, timeout=30)
            texts = {
                "worker": make("worker").secret,
                "another worker": make("worker").secret,
                "trainer": make("trainer").secret,
                "admin": make("admin").secret,
                "own": own[0][1].removeprefix("Bearer "),
                # As long as a call takes to be answered, and no longer.
                "expired": make("admin", days=1e-9).secret,
                "revoked": revoked.secret,
                # Of a token that there is, with another secret.
                "wrong": Token.draw(revoked.token.token_id).text,
                "formless": "x" * 60,
            }
        self.shown = {name: bearer(text) for name, text in texts.items()} | {
            "": (),
            "basic": (("authorization", "Basic eDp5"),),
        }


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {text}"),)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    files = certificates.files
    tls = ("--tls-cert", str(files.cert), "--tls-key", str(files.key))
    flags: dict[str, tuple[str, ...]] = {
        "own user": (),
        "insecure": ("--insecure",),
        "insecure, tokens": ("--insecure", "--require-token"),
        "tls": tls,
        "mtls": (*tls, "--tls-ca", str(files.ca)),
    }
    assert flags.keys() == KINDS.keys()
    with ExitStack() as stack:
        found: dict[str, Server] = {}
        for name, given in flags.items():
            cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("server")))
            cluster.start_coordinator(*given)
            found[name] = Server(cluster, certificates, secure="tls" in name)
            found[name].give_out_tokens()
        yield found


def outcome(channel: grpc.Channel, method: Any, metadata: tuple[tuple[str, str], ...]) -> str:
    requests = "stream" if method.client_streaming else "unary"
    responses = "stream" if method.server_streaming else "unary"
    make = getattr(channel, f"{requests}_{responses}")
    # No field ends like this.
    request: Any = iter([b"\xff"]) if method.client_streaming else b"\xff"
    try:
        answer = make(path_of(method))(request, metadata=metadata, timeout=60)
        if method.server_streaming:
            next(answer)
    except grpc.RpcError as error:
        known = from_rpc_error(error)
        if known.reason in (UNKNOWN, DENIED):
            return known.reason
        call: Any = error
        return SHUT if call.code() is grpc.StatusCode.UNAVAILABLE else IN
    return IN


@pytest.mark.parametrize(("server", "kind"), CASES)
def test_every_call_is_allowed_or_refused_by_role(
    servers: dict[str, Server], server: str, kind: str
) -> None:
    called, (metadata, certificate, gets_in_as) = servers[server], KINDS[server][kind]
    with called.channel(certificate) as channel:
        found = {
            path_of(method): outcome(channel, method, called.shown[metadata])
            for method in all_methods()
        }
    assert found == expected(gets_in_as)

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lipt.common.access import EVERY_ROLE, Role
from lipt.common.access.tls import CertificateIdentity, TlsFiles
from lipt.common.access.tokens import Token
from lipt.common.blobs import files
from lipt.common.errors import (
    InvalidRequestError,
    LiptError,
    PermissionDeniedError,
    StateError,
    UnauthenticatedError,
    UnknownTokenError,
)
from lipt.coordinator.access.caller import (
    ALLOWED_ROLES,
    ANYBODY,
    CallCredentials,
    Caller,
    is_open,
    require_role,
    worker_id_of,
)
from lipt.coordinator.access.tokens import (
    OWN_FILE,
    OWN_USER,
    Admission,
    OwnToken,
    Shown,
    Tokens,
    admission,
    describe_exposure,
    identify,
)
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import TokenRecord
from tests.clock import Clock
from tests.rpcs import EXPECTED, all_methods, contract_methods, path_of


def caller(*roles: Role) -> Caller:
    return Caller(key="k", name="the token 0a1b2c3d", roles=frozenset(roles))


def test_the_access_table_has_every_call_with_its_roles() -> None:
    assert {path_of(method) for method in contract_methods()} <= ALLOWED_ROLES.keys()
    assert ALLOWED_ROLES.keys() <= {path_of(method) for method in all_methods()}
    expected = {
        f"/{service}/{method}": roles
        for service, methods in EXPECTED.items()
        for method, roles in methods.items()
    }
    assert expected == {path: set(map(str, roles)) for path, roles in ALLOWED_ROLES.items()}


def test_only_health_needs_no_role() -> None:
    opened = {path_of(method) for method in all_methods() if is_open(path_of(method))}
    assert opened
    assert all(path.startswith("/grpc.health.v1.Health/") for path in opened)
    assert not is_open("/grpc.health.v1.HealthX/Check")


def test_refusal_names_the_caller_its_role_the_call_and_allowed_roles() -> None:
    with pytest.raises(
        PermissionDeniedError,
        match=r"^the token 0a1b2c3d has the role worker, and RunService/CreateRun takes the role "
        r"trainer or admin\. .*lipt token create --role",
    ):
        require_role(caller(Role.WORKER), "/lipt.v1.RunService/CreateRun")
    require_role(caller(Role.WORKER, Role.TRAINER), "/lipt.v1.RunService/CreateRun")
    with pytest.raises(PermissionDeniedError, match="NewService/New, because it is not in"):
        require_role(caller(*Role), "/lipt.v1.NewService/New")


SECRET = "5" * 32
WORKER = frozenset({Role.WORKER})
BOX = Caller("cert-1", "box", EVERY_ROLE, certificate="aa")
RENEWED = Caller("cert-2", "box", EVERY_ROLE, certificate="bb")
OTHER = Caller("cert-3", "other", EVERY_ROLE, certificate="cc")
# A token that is called as the certificate is.
NAMESAKE = Caller("token-1", "box", WORKER)


def test_a_worker_id_is_a_hash_of_the_secret() -> None:
    # printf '5%.0s' {1..32} | sha256sum
    assert worker_id_of(SECRET) == "w-b235d9133396f6aa4f6e6a6d6c6cc16b"
    shown = CallCredentials(ANYBODY, SECRET)
    assert shown.proves(worker_id_of(SECRET))
    assert not shown.proves(worker_id_of("other"))
    assert not CallCredentials().proves(worker_id_of(""))
    assert SECRET not in repr(shown)


@pytest.mark.parametrize("now", [ANYBODY, BOX, OTHER, NAMESAKE])
def test_a_worker_is_identified_by_its_secret(now: Caller) -> None:
    worker_id = worker_id_of(SECRET)
    assert CallCredentials(now, SECRET).objection(worker_id, ANYBODY) == ""
    for secret in ("", SECRET[1:], SECRET.replace("5", "6")):
        expected = "does not show the secret of the worker that registered under it"
        assert CallCredentials(now, secret).objection(worker_id, ANYBODY) == expected


def test_a_worker_bound_to_a_certificate_must_use_it_or_its_renewal() -> None:
    def objection(caller: Caller, secret: str = SECRET) -> str:
        return CallCredentials(caller, secret).objection(worker_id_of(SECRET), BOX)

    assert objection(BOX) == objection(RENEWED) == ""
    for caller in (NAMESAKE, ANYBODY, replace(BOX, certificate="", name="x")):
        assert objection(caller) != ""
    assert objection(OTHER) == "is of other, and the worker registered as box"
    assert objection(BOX, "") != ""


DAY = 86_400.0


@pytest.fixture
def own() -> Token:
    return Token.draw("admin")


@pytest.fixture
def tokens(database: Database, own: Token, clock: Clock) -> Tokens:
    return Tokens(database, lambda: own, wall_clock=clock)


async def given(
    tokens: Tokens, role: Role = Role.WORKER, *, name: str = "", days: float = 0.0
) -> str:
    return (await tokens.create(role, name=name, days=days, creator=ANYBODY))[1]


async def test_a_token_names_its_holder_and_only_its_digest_is_stored(
    tokens: Tokens, database: Database
) -> None:
    record, text = await tokens.create(Role.TRAINER, name="ci", days=0.0, creator=ANYBODY)
    caller = tokens.caller(text)
    assert caller.key == f"token:{record.token_id}"
    assert caller.name == f"the token {record.token_id} (ci)"
    assert caller.roles == {Role.TRAINER}
    assert caller.certificate == ""
    (stored,) = await database.load(TokenRecord)
    assert stored.sha256 == Token(record.token_id, text).sha256
    assert text.rpartition("_")[2] not in stored.model_dump_json()


async def test_scoring_needs_a_permission_of_a_worker_token(tokens: Tokens) -> None:
    record, text = await tokens.create(Role.WORKER, name="", days=0.0, creator=ANYBODY, scores=True)
    assert (record.scores, tokens.caller(text).may_score) == (True, True)
    assert [tokens.caller(await given(tokens, role)).may_score for role in Role] == [
        role is Role.ADMIN for role in Role
    ]
    assert OWN_USER.may_score
    assert ANYBODY.may_score
    with pytest.raises(InvalidRequestError, match=r"role trainer has no workers .*role worker"):
        await tokens.create(Role.TRAINER, name="", days=0.0, creator=ANYBODY, scores=True)
    shown = replace(NOTHING, certificate=CertificateIdentity("a", "ab", EVERY_ROLE, None, True))
    assert identify(shown, Admission.CERTIFIED, tokens).scores


async def test_the_coordinator_s_own_token_is_an_unlisted_admin(tokens: Tokens, own: Token) -> None:
    assert tokens.caller(own.text) is OWN_USER
    assert OWN_USER.roles == {Role.ADMIN}
    assert tokens.listed() == ()
    with pytest.raises(UnknownTokenError, match=r"no token 'admin'\. lipt token list"):
        await tokens.revoke("admin")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "x" * 1000,
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: Token.draw(text.split("_")[1]).text,
        lambda text: Token.draw("ffffffff").text,
        lambda text: Token.draw("admin").text,
    ],
)
async def test_an_unknown_token_is_refused_with_a_remedy(
    tokens: Tokens, change: Callable[[str], str]
) -> None:
    shown = change(await given(tokens))
    with pytest.raises(
        UnauthenticatedError, match=r"none of this coordinator's\. .*lipt token create --role"
    ):
        tokens.caller(shown)


async def test_a_revoked_token_is_refused_at_once_and_after_restarts(
    tokens: Tokens, database: Database, own: Token, clock: Clock
) -> None:
    text = await given(tokens, name="ci")
    (record,) = tokens.listed()
    clock.now = DAY
    assert (await tokens.revoke(record.token_id)).revoked_at == DAY
    again = Tokens(database, lambda: own, wall_clock=clock)
    await again.load()
    for held in (tokens, again):
        with pytest.raises(UnauthenticatedError, match=r"\(ci\) was revoked on 1970-01-02 00:00"):
            held.caller(text)
    clock.now = 2 * DAY
    assert (await tokens.revoke(record.token_id)).revoked_at == DAY


async def test_tokens_are_listed_oldest_first_after_a_restart(
    tokens: Tokens, database: Database, own: Token, clock: Clock
) -> None:
    await given(tokens)
    (record,) = tokens.listed()
    older = record.changed(token_id="zzzz", created_at=record.created_at - 1.0)
    await database.save(older)
    again = Tokens(database, lambda: own, wall_clock=clock)
    await again.load()
    assert again.listed() == (older, record)


async def test_a_revocation_applies_on_a_full_disk_and_is_written_later(
    database: Database, own: Token, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries = asyncio.Semaphore(0)
    tokens = Tokens(database, lambda: own, wall_clock=clock, sleep=lambda _: retries.acquire())
    text = await given(tokens)
    (record,) = tokens.listed()
    refused = asyncio.Event()

    async def refuse(_: object) -> None:
        refused.set()
        raise StateError("the disk is full.")

    with monkeypatch.context() as full:
        full.setattr(database, "save", refuse)
        with pytest.raises(StateError, match=r"is refused from now on, .* as soon as"):
            await tokens.revoke(record.token_id)
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            tokens.caller(text)
        with pytest.raises(StateError):
            await given(tokens)
        assert len(tokens.listed()) == 1
        refused.clear()
        retries.release()
        await refused.wait()
    retries.release()
    async with asyncio.timeout(60.0):
        while (await database.load(TokenRecord))[0].revoked_at is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    tokens.stop()


async def test_a_replaced_own_token_is_used_at_once_and_a_damaged_one_ignored(
    database: Database, clock: Clock, tmp_path: Path
) -> None:
    tokens = Tokens(database, OwnToken(tmp_path), wall_clock=clock)
    old, new = tokens.own, Token.draw("admin").text
    file = tmp_path / OWN_FILE
    for content in ("", Token.draw("other").text, "x"):
        files.write_durably(file, content.encode())
        assert tokens.caller(old) is OWN_USER
    file.unlink()
    assert tokens.caller(old) is OWN_USER
    files.write_durably(file, new.encode())
    assert tokens.caller(new) is OWN_USER
    with pytest.raises(UnauthenticatedError):
        tokens.caller(old)


async def test_a_token_expires_after_its_days(tokens: Tokens, clock: Clock) -> None:
    clock.now = 0.0
    text = await given(tokens, days=1.5)
    clock.now = 1.5 * DAY - 0.001
    assert tokens.caller(text).roles == {Role.WORKER}
    clock.now = 1.5 * DAY
    with pytest.raises(UnauthenticatedError, match="has expired on 1970-01-02 12:00 UTC"):
        tokens.caller(text)


@pytest.mark.parametrize("days", [-1.0, float("nan"), float("inf"), 1e9])
async def test_invalid_days_are_refused(tokens: Tokens, days: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot hold for .* days\. Give 0 < days"):
        await given(tokens, days=days)
    assert tokens.listed() == ()


async def test_a_caller_is_valid_while_its_credential_is(tokens: Tokens, clock: Clock) -> None:
    lasts = tokens.caller(await given(tokens))
    ends = tokens.caller(await given(tokens, days=1.0))
    certified = Caller("certificate:ab", "a certificate", frozenset(), expires_at=clock.now + 10)
    assert all(map(tokens.holds, (lasts, ends, certified, OWN_USER, ANYBODY)))
    clock.now += 86_400
    assert list(map(tokens.holds, (lasts, ends, certified))) == [True, False, False]
    await tokens.revoke(lasts.key.removeprefix("token:"))
    assert not tokens.holds(lasts)
    assert not tokens.holds(Caller("token:gone", "none", frozenset()))


@pytest.mark.parametrize("days", [0.0, 2.0, 3.0])
async def test_a_token_never_outlasts_its_creator(
    tokens: Tokens, clock: Clock, days: float
) -> None:
    clock.now = 0.0
    for key in ("certificate:ab", "token:61486203"):
        creator = Caller(key, "its creator", EVERY_ROLE, expires_at=2 * DAY)
        if days > 2.0:
            words = "3 days would outlast its creator, which ends on 1970-01-03 00:00 UTC. Give at"
            with pytest.raises(InvalidRequestError, match=f"{words} most 2.00 days, or none"):
                await tokens.create(Role.ADMIN, name="", days=days, creator=creator)
            continue
        record, text = await tokens.create(Role.ADMIN, name="", days=days, creator=creator)
        assert (record.created_by, record.expires_at) == ("its creator", 2 * DAY)
        # And so do those that it creates.
        heir, _ = await tokens.create(Role.ADMIN, name="", days=0.0, creator=tokens.caller(text))
        assert heir.expires_at == 2 * DAY


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", f"lipt_other_{64 * '0'}".encode()])
def test_the_own_token_persists_in_a_private_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:  # is no own token: it is replaced
        (tmp_path / OWN_FILE).write_bytes(content)
    token = OwnToken(tmp_path)()
    assert token.token_id == "admin"
    assert OwnToken(tmp_path)() == token
    assert (tmp_path / OWN_FILE).read_text() == f"{token.text}\n"
    assert (tmp_path / OWN_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [OWN_FILE]


def test_a_full_disk_delays_the_own_token_until_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_all", refuse)
    token = OwnToken(tmp_path)()
    assert token.token_id == "admin"
    assert "admin.token cannot be written: No space left" in caplog.text
    assert token.text not in caplog.text
    assert list(tmp_path.iterdir()) == []


NOTHING = Shown(authorization=None, certificate=None, peer="ipv4:10.0.0.7:4242")
CERTIFIED_BOX = CertificateIdentity("box-1", "ab" * 32, frozenset({Role.WORKER}))


def refusal(shown: Shown, admitted: Admission, tokens: Tokens) -> LiptError:
    with pytest.raises(LiptError) as caught:
        identify(shown, admitted, tokens)
    return caught.value


@pytest.mark.parametrize("admitted", Admission)
async def test_a_token_is_checked_in_every_listening_mode(
    tokens: Tokens, own: Token, admitted: Admission
) -> None:
    text = await given(tokens, Role.TRAINER)
    for scheme in ("Bearer", "bearer", "BEARER"):
        shown = replace(NOTHING, authorization=f"{scheme} {text}")
        assert identify(shown, admitted, tokens).roles == {Role.TRAINER}
    shown = replace(NOTHING, authorization=f"Basic {text}")
    assert "not of the form 'Bearer TOKEN'" in str(refusal(shown, admitted, tokens))
    # A wrong one is refused where none is needed, too.
    shown = Shown(f"Bearer {Token.draw('x').text}", CERTIFIED_BOX, "unix:")
    assert isinstance(refusal(shown, admitted, tokens), UnauthenticatedError)


def test_certificate_comes_after_a_token_and_needs_a_role(tokens: Tokens, own: Token) -> None:
    shown = Shown(f"Bearer {own.text}", CERTIFIED_BOX, NOTHING.peer)
    assert identify(shown, Admission.CERTIFIED, tokens) is OWN_USER
    shown = replace(shown, authorization=None, certificate=replace(CERTIFIED_BOX, expires_at=200.0))
    caller = identify(shown, Admission.CERTIFIED, tokens)
    assert caller.key == f"certificate:{'ab' * 32}"
    assert (caller.certificate, caller.expires_at) == ("ab" * 32, 200.0)
    assert caller.name == "the certificate of box-1"
    assert caller.only_works
    shown = replace(NOTHING, certificate=replace(CERTIFIED_BOX, roles=frozenset()))
    error = refusal(shown, Admission.CERTIFIED, tokens)
    assert isinstance(error, PermissionDeniedError)
    for words in ("box-1", "abababab", "lipt-worker", "lipt:role:trainer", "lipt certs"):
        assert words in str(error)


@pytest.mark.parametrize("authorized", [False, True])
def test_a_certificate_is_compared_with_the_clock_at_every_call(
    tokens: Tokens, own: Token, clock: Clock, authorized: bool
) -> None:
    dated = replace(CERTIFIED_BOX, begins_at=DAY, expires_at=2 * DAY)
    # A token helps as little as on a new connection, which such a certificate cannot open.
    shown = Shown(f"Bearer {own.text}" if authorized else None, dated, NOTHING.peer)
    clock.now = DAY
    assert identify(shown, Admission.CERTIFIED, tokens).roles
    for now, words in (
        (DAY - 1.0, "box-1 is valid from 1970-01-02 00:00 UTC on. Renew it"),
        (2 * DAY, "box-1 has expired on 1970-01-03 00:00 UTC. Renew it, or set the clocks"),
    ):
        clock.now = now
        error = refusal(shown, Admission.CERTIFIED, tokens)
        assert isinstance(error, UnauthenticatedError)
        assert words in str(error)


def test_the_local_socket_identifies_the_coordinator_s_user(tokens: Tokens) -> None:
    mine = replace(NOTHING, peer="unix:")
    assert identify(mine, Admission.OWN_USER, tokens) is OWN_USER
    assert isinstance(refusal(mine, Admission.TOKEN, tokens), UnauthenticatedError)
    text = str(refusal(replace(NOTHING, peer="ipv4:127.0.0.1:1"), Admission.OWN_USER, tokens))
    assert "did not use its local socket" in text


@pytest.mark.parametrize(
    ("admitted", "words"),
    [
        (Admission.OWN_USER, "serves the user that started it"),
        (Admission.TOKEN, "asks for one"),
        (Admission.CERTIFIED, "asks for one"),
    ],
)
def test_a_caller_without_credentials_is_told_how_to_get_a_token(
    tokens: Tokens, admitted: Admission, words: str
) -> None:
    error = refusal(NOTHING, admitted, tokens)
    assert isinstance(error, UnauthenticatedError)
    for expected in (words, "lipt token create --role", "--token-file"):
        assert expected in str(error)


TLS = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))
MTLS = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"), ca=Path("authority.pem"))
HERE, EVERYWHERE = "127.0.0.1:1", "0.0.0.0:1"


ONLY_HERE, ALL = "this machine only, unencrypted: lets ", "any machine that reaches it, "
OPEN, BY_TOKEN = f"{ALL}unencrypted: lets anybody", "lets in who shows a token"


@pytest.mark.parametrize(
    ("listen", "tls", "insecure", "require_token", "expected", "words"),
    [
        (HERE, None, False, False, Admission.OWN_USER, f"{ONLY_HERE}in this user's"),
        # The local token is one.
        (HERE, None, False, True, Admission.OWN_USER, ONLY_HERE),
        (HERE, None, True, False, Admission.ANYBODY, ONLY_HERE),
        (HERE, None, True, True, Admission.TOKEN, BY_TOKEN),
        (EVERYWHERE, None, True, False, Admission.ANYBODY, OPEN),
        (EVERYWHERE, None, True, True, Admission.TOKEN, BY_TOKEN),
        # Refused before, so that no caller gets in by mistake.
        (EVERYWHERE, None, False, False, Admission.TOKEN, BY_TOKEN),
        (HERE, TLS, False, False, Admission.TOKEN, BY_TOKEN),
        (EVERYWHERE, TLS, True, False, Admission.TOKEN, f"{ALL}TLS: {BY_TOKEN}"),
        (HERE, MTLS, False, False, Admission.CERTIFIED, "mTLS: lets in peers that --tls-ca"),
        (EVERYWHERE, MTLS, True, True, Admission.CERTIFIED, f"{ALL}mTLS: lets in peers"),
    ],
)
def test_admission_follows_from_the_listening_mode_and_is_logged(
    listen: str,
    tls: TlsFiles | None,
    insecure: bool,
    require_token: bool,
    expected: Admission,
    words: str,
) -> None:
    found = admission(listen, tls, insecure=insecure, require_token=require_token)
    assert found is expected
    assert words in describe_exposure(listen, tls, found)

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lipt.common.access.certificate import CertificateIdentity
from lipt.common.access.roles import EVERY_ROLE, Role
from lipt.common.access.tokens import Token
from lipt.common.errors import LiptError, PermissionDeniedError, UnauthenticatedError
from lipt.common.network.tls import TlsFiles
from lipt.coordinator.access.identification import (
    Admission,
    Shown,
    admission,
    describe_exposure,
    identify,
)
from lipt.coordinator.access.tokens import OWN_USER, Tokens

NOTHING = Shown(authorization=None, local_token=None, certificate=None, peer="ipv4:10.0.0.7:4242")
BOX = CertificateIdentity("box-1", "ab" * 32, frozenset({Role.WORKER}))


def refusal(shown: Shown, admitted: Admission, tokens: Tokens) -> LiptError:
    with pytest.raises(LiptError) as caught:
        identify(shown, admitted, tokens)
    return caught.value


@pytest.mark.parametrize("admitted", Admission)
async def test_token_is_taken_however_the_coordinator_listens(
    tokens: Tokens, admitted: Admission
) -> None:
    _, text = await tokens.create(Role.TRAINER, name="", days=0.0, created_by="a test")
    for scheme in ("Bearer", "bearer", "BEARER"):
        shown = replace(NOTHING, authorization=f"{scheme} {text}")
        assert identify(shown, admitted, tokens).roles == {Role.TRAINER}


@pytest.mark.parametrize("admitted", Admission)
def test_wrong_token_is_refused_where_none_is_needed_too(
    tokens: Tokens, own: Token, admitted: Admission
) -> None:
    shown = Shown(f"Bearer {Token.draw('x').text}", own.text, BOX, NOTHING.peer)
    assert isinstance(refusal(shown, admitted, tokens), UnauthenticatedError)


async def test_a_token_counts_in_the_bearer_scheme_alone(tokens: Tokens) -> None:
    _, text = await tokens.create(Role.TRAINER, name="", days=0.0, created_by="a test")
    shown = replace(NOTHING, authorization=f"Basic {text}")
    assert "not of the form 'Bearer TOKEN'" in str(refusal(shown, Admission.TOKEN, tokens))


def test_token_goes_before_the_certificate_and_the_certificate_before_the_local_token(
    tokens: Tokens, own: Token
) -> None:
    shown = Shown(f"Bearer {own.text}", own.text, BOX, NOTHING.peer)
    assert identify(shown, Admission.CERTIFIED, tokens) is OWN_USER
    shown = replace(shown, authorization=None)
    assert identify(shown, Admission.CERTIFIED, tokens).roles == {Role.WORKER}


def test_certified_peer_is_counted_by_its_certificate(tokens: Tokens) -> None:
    caller = identify(replace(NOTHING, certificate=BOX), Admission.CERTIFIED, tokens)
    assert caller.key == f"certificate:{'ab' * 32}"
    assert caller.certificate == "ab" * 32
    assert caller.name == "the certificate of box-1"
    assert caller.only_works
    until = replace(NOTHING, certificate=replace(BOX, expires_at=1234.0))
    assert identify(until, Admission.CERTIFIED, tokens).expires_at == 1234.0


def test_certificate_without_a_role_is_refused_with_where_it_stands(tokens: Tokens) -> None:
    shown = replace(NOTHING, certificate=replace(BOX, roles=frozenset()))
    error = refusal(shown, Admission.CERTIFIED, tokens)
    assert isinstance(error, PermissionDeniedError)
    for words in ("box-1", "abababab", "lipt-worker", "lipt:role:trainer", "lipt certs"):
        assert words in str(error)


def test_local_token_is_the_own_user_s_and_looked_at_only_where_it_is_asked_for(
    tokens: Tokens, own: Token
) -> None:
    mine = replace(NOTHING, local_token=own.text)
    assert identify(mine, Admission.OWN_USER, tokens) is OWN_USER
    assert isinstance(refusal(mine, Admission.TOKEN, tokens), UnauthenticatedError)
    # Of whatever listens at that port on the caller's own machine.
    other = replace(NOTHING, local_token=Token.draw("admin").text)
    assert identify(other, Admission.ANYBODY, tokens).roles == EVERY_ROLE
    error = refusal(other, Admission.OWN_USER, tokens)
    assert "another coordinator's" in str(error)


@pytest.mark.parametrize(
    ("admitted", "words"),
    [
        (Admission.OWN_USER, "serves the user that started it"),
        (Admission.TOKEN, "asks for one"),
        (Admission.CERTIFIED, "asks for one"),
    ],
)
def test_who_shows_nothing_is_told_how_to_get_a_token(
    tokens: Tokens, admitted: Admission, words: str
) -> None:
    error = refusal(NOTHING, admitted, tokens)
    assert isinstance(error, UnauthenticatedError)
    for expected in (words, "lipt token create --role", "--token-file"):
        assert expected in str(error)


TLS = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"))
MTLS = TlsFiles(cert=Path("c.pem"), key=Path("k.pem"), ca=Path("authority.pem"))
HERE, EVERYWHERE = "127.0.0.1:1", "0.0.0.0:1"


@pytest.mark.parametrize(
    ("listen", "tls", "insecure", "require_token", "expected"),
    [
        (HERE, None, False, False, Admission.OWN_USER),
        # The local token is one.
        (HERE, None, False, True, Admission.OWN_USER),
        (HERE, None, True, False, Admission.ANYBODY),
        (HERE, None, True, True, Admission.TOKEN),
        (EVERYWHERE, None, True, False, Admission.ANYBODY),
        (EVERYWHERE, None, True, True, Admission.TOKEN),
        # Is refused before; nobody gets in by mistake.
        (EVERYWHERE, None, False, False, Admission.TOKEN),
        (HERE, TLS, False, False, Admission.TOKEN),
        (EVERYWHERE, TLS, True, False, Admission.TOKEN),
        (HERE, MTLS, False, False, Admission.CERTIFIED),
        (EVERYWHERE, MTLS, True, True, Admission.CERTIFIED),
    ],
)
def test_what_is_asked_for_follows_from_how_a_coordinator_listens(
    listen: str, tls: TlsFiles | None, insecure: bool, require_token: bool, expected: Admission
) -> None:
    found = admission(listen, tls, insecure=insecure, require_token=require_token)
    assert found is expected


@pytest.mark.parametrize(
    ("listen", "tls", "admitted", "words"),
    [
        (HERE, None, Admission.OWN_USER, "this machine only, unencrypted: lets in this user's"),
        (HERE, None, Admission.ANYBODY, "this machine only, unencrypted: lets anybody in"),
        (EVERYWHERE, None, Admission.ANYBODY, "any machine that reaches it, unencrypted: lets any"),
        (EVERYWHERE, None, Admission.TOKEN, "unencrypted: lets in who shows a token"),
        (EVERYWHERE, TLS, Admission.TOKEN, "reaches it, TLS: lets in who shows a token"),
        (EVERYWHERE, MTLS, Admission.CERTIFIED, "mTLS: lets in peers that --tls-ca certifies"),
    ],
)
def test_start_up_line_says_who_can_reach_it_and_who_gets_in(
    listen: str, tls: TlsFiles | None, admitted: Admission, words: str
) -> None:
    assert words in describe_exposure(listen, tls, admitted)

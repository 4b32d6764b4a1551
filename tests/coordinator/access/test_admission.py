from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.network.tls import TlsFiles
from lipt.coordinator.access.identification import Admission, admission, describe_exposure

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
        (EVERYWHERE, MTLS, Admission.CERTIFIED, "mTLS: lets in peers certified by authority.pem"),
    ],
)
def test_start_up_line_says_who_can_reach_it_and_who_gets_in(
    listen: str, tls: TlsFiles | None, admitted: Admission, words: str
) -> None:
    assert words in describe_exposure(listen, tls, admitted)

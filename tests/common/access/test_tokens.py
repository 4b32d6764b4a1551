import hashlib
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from lipt.common.access import Role
from lipt.common.access.tls import CertificateIdentity, identity_of, role_unit, role_uri
from lipt.common.access.tokens import Token, TokenSource
from lipt.common.errors import ConfigError
from tests.serving import answering

TEXT = "lipt_0a1b2c3d_" + "5" * 64


def test_token_is_read_from_a_line_and_other_texts_are_rejected() -> None:
    token = Token.parse(f" {TEXT}\n")
    assert token is not None
    assert (token.token_id, token.text) == ("0a1b2c3d", TEXT)
    assert token.sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    assert "lipt_" not in f"{token} {token!r}"
    other_ids = (TEXT.replace("0a1b2c3d", other) for other in ("", "0a 1b"))
    other_ends = ("lipt", TEXT[:-1], TEXT + "5", TEXT.replace("5", "A"), f"{TEXT}\n{TEXT}")
    for text in ("", "é" * 78, TEXT.replace("lipt", "LIPT"), *other_ids, *other_ends):
        assert Token.parse(text) is None, text


ONE, OTHER = Token.draw("one").text, Token.draw("other").text


def test_token_file_is_read_again_and_overrides_the_text(tmp_path: Path) -> None:
    text = TokenSource.from_options(None, ONE)
    assert text is not None
    assert text.read() == ONE
    assert ONE not in repr(text)
    file = tmp_path / "token"
    file.write_text(f"{ONE}\n")
    source = TokenSource.from_options(file, OTHER)
    assert source is not None
    assert source.read() == ONE
    file.write_text(OTHER)
    assert source.read() == OTHER


def test_invalid_token_is_refused_and_not_printed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"LIPT_TOKEN holds no token.*lipt token create") as text:
        TokenSource.from_options(None, "password")
    assert "password" not in str(text.value)
    file = tmp_path / "token"
    file.write_text("password")
    with pytest.raises(ConfigError, match=r"--token-file .*token holds no token") as content:
        TokenSource.from_options(file, None)
    assert "password" not in str(content.value)

    with pytest.raises(ConfigError, match=r"none cannot be read: No such file.*lipt token create"):
        TokenSource.from_options(tmp_path / "none", None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="bytes holds no token"):
        TokenSource.from_options(tmp_path / "bytes", None)


KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.now(UTC)
Uri = x509.UniformResourceIdentifier


def certificate(
    common_name: str = "",
    units: Sequence[str] = (),
    names: Sequence[x509.GeneralName] = (),
    *,
    extension: x509.ExtensionType | None = None,
) -> x509.Certificate:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    if common_name:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if extension:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(KEY, hashes.SHA256())


def pem(made: x509.Certificate) -> bytes:
    return made.public_bytes(Encoding.PEM)


def identity(made: x509.Certificate) -> CertificateIdentity:
    found = identity_of({"x509_pem_cert": [pem(made)]})
    assert found is not None
    return found


@pytest.mark.parametrize("role", Role)
def test_a_certificate_s_role_is_in_its_uri_or_organizational_unit(role: Role) -> None:
    uri, unit = f"lipt:role:{role.value}", f"lipt-{role.value}"
    assert (role_uri(role), role_unit(role)) == (uri, unit)
    assert identity(certificate("a", names=[Uri(uri)])).roles == {role}
    assert identity(certificate("a", [unit])).roles == {role}


def test_the_certificate_s_scoring_permission_is_separate_from_its_role() -> None:
    worker = Uri("lipt:role:worker")
    assert not identity(certificate("a", names=[worker])).scores
    named = identity(certificate(names=[worker, Uri("lipt:scores"), Uri("box")]))
    assert (named.scores, named.roles, named.name) == (True, {Role.WORKER}, "box")
    assert identity(certificate("a", ["lipt-worker", "lipt-scores"])).scores


@pytest.mark.parametrize(
    "made",
    [
        certificate("lipt-admin"),
        certificate("OU=lipt-admin"),
        certificate("a,OU=lipt-admin", ["Lipt-Admin", "lipt-admin ", "lipt-", "lipt-root"]),
        certificate("a", ["lipt:role:admin"]),
        certificate("a", names=[x509.DNSName("lipt:role:admin"), Uri("lipt:role:Admin")]),
        certificate("a", names=[Uri("lipt:role:admin/x"), Uri("lipt-admin"), Uri("lipt:role:")]),
        certificate("a", names=[Uri("spiffe://lipt:role:admin"), x509.RFC822Name("lipt-admin")]),
    ],
)
def test_unknown_roles_in_a_certificate_are_ignored(made: x509.Certificate) -> None:
    assert identity(made).roles == frozenset()


def test_a_certificate_s_name_is_its_common_name_else_a_dns_name_else_a_uri() -> None:
    names = [Uri("lipt:role:worker"), Uri("spiffe://cluster/box"), x509.DNSName("box.example")]
    assert identity(certificate("box", names=names)).name == "box"
    assert identity(certificate(names=names)).name == "box.example"
    assert identity(certificate(names=names[:2])).name == "spiffe://cluster/box"
    unnamed = identity(certificate(names=names[:1]))
    assert unnamed.name == unnamed.sha256[:16]
    # gRPC's library takes a certificate whose alternative names are no names; a unit is there.
    junk = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"junk")
    found = identity(certificate("box", ["lipt-admin"], extension=junk))
    assert found.roles == frozenset()
    assert found.name == found.sha256[:16]


async def test_a_server_reads_the_identity_from_the_connection() -> None:
    key = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    loopback = x509.IPAddress(ip_address("127.0.0.1"))
    shown = certificate("box", ["lipt-worker"], [loopback])
    # Whatever else a peer sends behind its own certificate is not who it is.
    chain = pem(shown) + pem(certificate("another", ["lipt-admin"]))
    roots = pem(certificate("authority"))
    seen: list[CertificateIdentity | None] = []

    async def note(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        seen.append(identity_of(context.auth_context()))
        return request

    mutual = grpc.ssl_server_credentials([(key, pem(shown))], roots, require_client_auth=True)
    client = grpc.ssl_channel_credentials(roots, key, chain)
    async with (
        answering(note, mutual) as address,
        grpc.aio.secure_channel(address, client) as channel,
    ):
        assert await channel.unary_unary("/s/m")(b"x") == b"x"
    sha256 = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem(shown).decode())).hexdigest()
    begins, ends = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
    identity = CertificateIdentity("box", sha256, frozenset({Role.WORKER}), ends, begins_at=begins)
    assert seen == [identity]
    assert identity_of({"transport_security_type": [b"ssl"]}) is None

"""A certificate authority of one's own: issues and renews certificates for nodes and users.

    DIR/ca.pem            the authority's certificate, which every node and every client trusts
    DIR/ca.key            its key, which can sign a certificate for any node or user. Keep it only where certificates are issued
    DIR/NAME.pem          the key and the certificate of a node or a user
    DIR/NAME.properties   the file for clients of a user: Kafka's client properties

Keys are on the curve P-256. A node's certificate names the hosts under which clients and other nodes reach it, and is valid for
both ends of a connection; a user's certificate is valid for clients only. Files with keys can be read by their owner only. A name
that exists is not overwritten, because a running node may use it; `renew` replaces its file in one step, and the node reloads it.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA, CA_KEY = "ca.pem", "ca.key"
CA_DAYS, DAYS = 3650, 365
_BACKDATED = datetime.timedelta(hours=1)
"""Certificates become valid this long before they are issued, for nodes whose clocks are behind."""
_COMMON_NAME_MAX = 64
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


class Certificate(NamedTuple):
    """The facts in a certificate file."""

    path: Path
    name: str
    """Its common name."""
    hosts: tuple[str, ...]
    """The hosts of a node; empty for a user."""
    is_authority: bool
    not_after: datetime.datetime

    def days_left(self, now: datetime.datetime) -> int:
        """Whole days until it expires; negative afterwards."""
        return (self.not_after - now).days


def make_authority(folder: Path, name: str, days: int = CA_DAYS) -> Path:
    """Create the authority of `folder`, and return the path of its certificate. UsageError if there is one already."""
    from cryptography import x509

    certificate_path, key_path = folder / CA, folder / CA_KEY
    for path in (certificate_path, key_path):
        if path.exists():
            raise UsageError(f"{path} exists already: every certificate that it has signed would become worthless")
    if not name or not name.isprintable():
        raise UsageError(f"{name!r} cannot be the name of an authority: use at least one letter, and no control characters")
    folder.mkdir(parents=True, exist_ok=True)
    key, subject = _new_key(), _subject(name)
    builder = _builder(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    _write(key_path, _key_text(key), is_secret=True)
    _write(certificate_path, _text(_signed(builder, key)), is_secret=False)
    return certificate_path


def make_certificate(folder: Path, name: str, hosts: Sequence[str], days: int = DAYS) -> Path:
    """Create the certificate of a node with these hosts, or of a user without hosts; returns the path of the file with its key.
    UsageError if it exists, or there is no authority."""
    path = path_of(folder, name)
    if path.exists():
        raise UsageError(f"{path} exists already; `strandline cert renew` replaces it")
    _issue(folder, path, name, hosts, days)
    return path


def write_properties(folder: Path, name: str) -> Path:
    """Write the client properties of a user that has a certificate; returns their path."""
    path = path_of(folder, name).with_suffix(".properties")
    folder = folder.absolute()
    text = (
        "security.protocol=SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={folder / CA}\n"
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={folder / name}.pem\n"
    )
    _write(path, text.encode(), is_secret=False)
    return path


def renew_certificate(path: Path, days: int = DAYS) -> Certificate:
    """Replace a certificate by one with the same name and hosts, a new key and a later end."""
    known = read_certificate(path)
    if known.is_authority:
        raise UsageError(f"{path} is an authority, and every node and client has a copy of it; create a new one with `cert ca`")
    _issue(path.parent, path, known.name, known.hosts, days)
    return read_certificate(path)


def read_certificate(path: Path) -> Certificate:
    """The first certificate of a PEM file. UsageError if there is none."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = _load(path)
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [*alternatives.get_values_for_type(x509.DNSName), *map(str, alternatives.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        hosts = []
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    name = str(names[0].value) if names else ""
    return Certificate(path, name, tuple(hosts), is_authority, certificate.not_valid_after_utc)


def list_certificates(folder: Path) -> list[Certificate]:
    """The certificates of a folder, the authority first. UsageError if the folder has none."""
    found = []
    for path in sorted(folder.glob("*.pem"), key=lambda path: (path.name != CA, path.name)):
        found.append(read_certificate(path))
    if not found:
        raise UsageError(f"there are no certificates in {folder}; `strandline cert ca` creates an authority")
    return found


def path_of(folder: Path, name: str) -> Path:
    """The file of a name. UsageError if the name cannot be a file, or the common name of a certificate."""
    if not name or not all(character.isalnum() or character in "-_.@" for character in name) or name.startswith("."):
        raise UsageError(f"{name!r} cannot be the name of a certificate: use letters, digits, and - _ . @")
    if len(name) > _COMMON_NAME_MAX:
        raise UsageError(f"{name!r} is too long for a certificate: a name has at most {_COMMON_NAME_MAX} characters")
    if f"{name}.pem" == CA:
        raise UsageError(f"the name {name!r} is that of the authority; choose another one")
    return folder / f"{name}.pem"


# -- issuing ----------------------------------------------------------------------------------------------------------


def _issue(folder: Path, path: Path, name: str, hosts: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority, authority_key = _load_authority(folder)
    key = _new_key()
    builder = _builder(_subject(name), authority.subject, key.public_key(), days, not_after=authority.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = builder.add_extension(of_authority, critical=False)
    _write(path, _key_text(key) + _text(_signed(builder, authority_key)), is_secret=True)


def _load_authority(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = folder / CA_KEY
    if not path.exists():
        raise UsageError(f"there is no authority in {folder}: {path} does not exist; `strandline cert ca` creates one")
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError):
        raise UsageError(f"{path} is not the key of an authority that `strandline cert ca` has created") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UsageError(f"{path} is not the key of an authority that `strandline cert ca` has created")
    certificate = _load(folder / CA)
    if certificate.public_key() != key.public_key():
        raise UsageError(f"{path} is not the key of the certificate {folder / CA}")
    return certificate, key


def _load(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_certificate_part(_read(path)))
    except ValueError:
        raise UsageError(f"{path} has no certificate (PEM)") from None


def _certificate_part(content: bytes) -> bytes:
    start = content.find(b"-----BEGIN CERTIFICATE-----")
    if start < 0:
        raise ValueError("no certificate")
    return content[start:]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: object,
    days: int,
    not_after: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    """A certificate for `days`, but not for longer than its authority."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    end = end if not_after is None else min(end, not_after)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)  # type: ignore[arg-type]
    )


def _signed(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host):
        raise UsageError(f"{host!r} is no host name for a certificate: use ASCII letters, digits, and - _ . between them")
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


# -- files ------------------------------------------------------------------------------------------------------------


def _key_text(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _text(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from None


def _write(path: Path, content: bytes, *, is_secret: bool) -> None:
    try:
        write_file(path, content, is_secret=is_secret)
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}") from None


def write_file(path: Path, content: bytes, *, is_secret: bool) -> None:
    """Write a file in one step. A secret one can be read by its owner only, from its first byte on."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_secret else 0o644)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)

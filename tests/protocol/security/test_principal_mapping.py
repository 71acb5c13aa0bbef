"""From certificates to principals: names as Java writes them, and Kafka's rules."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from strandline.protocol.errors import UsageError
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.principal_mapping import PrincipalMapping, distinguished_name

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*rdns: list[tuple]) -> bytes:
    attributes = [x509.RelativeDistinguishedName([x509.NameAttribute(*part) for part in rdn]) for rdn in rdns]
    name, now = x509.Name(attributes), datetime.datetime(2026, 1, 1)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, now, now + datetime.timedelta(1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("rdns", "name"),
    [
        (
            [[(NameOID.COUNTRY_NAME, "SE")], [(NameOID.ORGANIZATION_NAME, "Org")], [(NameOID.COMMON_NAME, "Duke")]],
            "CN=Duke,O=Org,C=SE",
        ),
        ([[(NameOID.COMMON_NAME, "a, b+c=d\\e \"f\" <g>;")]], 'CN=a\\, b\\+c=d\\\\e \\"f\\" \\<g\\>\\;'),
        ([[(NameOID.COMMON_NAME, "#1")], [(NameOID.COMMON_NAME, " x ")]], "CN=\\ x\\ ,CN=\\#1"),
        ([[(NameOID.COMMON_NAME, "x"), (NameOID.USER_ID, "7")]], "CN=x+UID=7"),
        ([[(NameOID.STATE_OR_PROVINCE_NAME, "S")], [(NameOID.STREET_ADDRESS, "Way")]], "STREET=Way,ST=S"),
        (
            [[(NameOID.EMAIL_ADDRESS, "a@b.c", _ASN1Type.IA5String)], [(NameOID.COMMON_NAME, "å")]],
            "CN=å,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        ([[(NameOID.TITLE, "x" * 200)]], "2.5.4.12=#0c81c8" + "78" * 200),
    ],
)  # fmt: skip
def test_name_is_that_of_java(rdns, name):
    """`X500Principal.getName()`: RFC 2253, the last part first; other attributes by number and in hexadecimal."""
    parsed = distinguished_name(certificate(*rdns))
    assert sorted(parsed.split("+")) == sorted(name.split("+"))  # The order within a set is that of its encoding.


NAME = "CN=Duke,OU=ServiceUsers,O=Org,C=SE"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "duke"),
        ("RULE:^CN=(.*?), *OU=(.*?),.*$/$1@$2/U", "DUKE@SERVICEUSERS"),
        ("RULE:^OU=(.*?),.*$/$1/, RULE:^CN=([^,]+),.*$/u-$1/L , DEFAULT", "u-duke"),
        ("RULE:^OU=(.*?)$/$1/,DEFAULT", NAME),
        (r"RULE:.*/a\/b/", "a/b"),
    ],
)
def test_first_rule_that_matches_the_whole_name_decides(rules, expected):
    assert PrincipalMapping(rules).name_of(NAME) == expected


def test_name_that_no_rule_matches_is_no_principal():
    with pytest.raises(AuthenticationError, match=r"no rule of ssl\.principal\.mapping\.rules"):
        PrincipalMapping("RULE:CN=(.*)/$1/").name_of("OU=x")


@pytest.mark.parametrize(
    "rules", ["default", "RULE:a/b", "RULE:a/b/X", "RULE:(/b/", "DEFAULT RULE:a/b/", "RULE:a/$1/", "DEFAULT,,DEFAULT"]
)
def test_wrong_rules_are_refused(rules):
    with pytest.raises(UsageError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_wrong_pattern_is_reported_once(capfd):
    """By default, the library writes errors of patterns to the standard error of the process."""
    with pytest.raises(UsageError, match="not valid"):
        PrincipalMapping("RULE:(/x/")
    assert capfd.readouterr().err == ""


def test_name_that_cannot_be_read_is_a_failed_authentication():
    """OpenSSL accepts it in a handshake. Any other error would leave the connection open, and counted, forever."""
    broken = certificate([(NameOID.COMMON_NAME, "Duke")]).replace(b"Duke", b"\xff\xfeke")
    with pytest.raises(AuthenticationError, match="cannot be read"):
        distinguished_name(broken)

"""From a client's certificate to its principal: the distinguished name, and the rules `ssl.principal.mapping.rules`.

    rules := rule { "," rule }
    rule  := "DEFAULT" | "RULE:" pattern "/" replacement "/" [ "L" | "U" ]

The first rule whose pattern matches the whole name decides: `DEFAULT` takes the name as it is, `RULE` the replacement, in which
`$1` is the first group, in lower (L) or upper (U) case if it ends so. A `/` within a pattern is written as `\\/`. As in Kafka,
the connection is refused if no rule matches the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from strandline.protocol.errors import UsageError
from strandline.protocol.security.mechanisms import AuthenticationError

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\n|$)")
_CASES: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}
_REFERENCE = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    pattern: Any
    """None for DEFAULT."""
    replacement: str
    change_case: Callable[[str], str]


class PrincipalMapping:
    """The rules, in order."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Raises UsageError if the rules cannot be parsed."""
        self._rules = _parse(rules)

    def name_of(self, distinguished_name: str) -> str:
        """The principal's name. Raises AuthenticationError if no rule matches."""
        for rule in self._rules:
            if rule.pattern is None:
                return distinguished_name
            match = rule.pattern.fullmatch(distinguished_name)
            if match is not None:
                return rule.change_case(_filled(rule.replacement, match))
        raise AuthenticationError("no rule of ssl.principal.mapping.rules matches the certificate's name", distinguished_name)


def _filled(replacement: str, match: Any) -> str:
    return _REFERENCE.sub(lambda reference: match.group(int(reference[1])) or "", replacement)


def _parse(rules: str) -> list[_Rule]:
    parsed, position = [], 0
    while position < len(rules.rstrip()):
        match = _RULE.match(rules, position)
        if match is None:
            raise UsageError(
                f"ssl.principal.mapping.rules: {rules[position:]!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]"
            )
        parsed.append(_rule_of(match))
        position = match.end()
    return parsed or [_Rule(None, "", str)]


def _rule_of(match: re.Match[str]) -> _Rule:
    if match[1]:
        return _Rule(None, "", str)
    import re2

    pattern, replacement = (text.replace("\\/", "/") for text in (match[2], match[3]))
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as e:
        raise UsageError(f"ssl.principal.mapping.rules: the pattern {pattern!r} is not valid: {e}") from None
    if any(int(group) > compiled.groups for group in _REFERENCE.findall(replacement)):
        raise UsageError(f"ssl.principal.mapping.rules: {replacement!r} names a group that the pattern {pattern!r} does not have")
    return _Rule(compiled, replacement, _CASES[match[4]])


# -- distinguished names ----------------------------------------------------------------------------------------------

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The attribute types that RFC 2253 names. Others are written as their number, and their value in hexadecimal."""
_SPECIAL = re.compile(r'([,+"\\<>;])')


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate (DER) as in RFC 2253, the last part first: Java's `X500Principal.getName()`. Raises
    AuthenticationError if it cannot be read: OpenSSL accepts names that the library does not."""
    from cryptography import x509

    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except ValueError:
        raise AuthenticationError("the name in the certificate cannot be read") from None
    return ",".join("+".join(_attribute(part) for part in rdn) for rdn in reversed(subject.rdns))


def _attribute(attribute: Any) -> str:
    oid = attribute.oid.dotted_string
    keyword, value = _KEYWORDS.get(oid), attribute.value
    if keyword is None or isinstance(value, bytes):
        content = value if isinstance(value, bytes) else value.encode()
        return f"{keyword or oid}=#{(bytes([attribute._type.value]) + _der_length(len(content)) + content).hex()}"
    return f"{keyword}={_escaped(value)}"


def _escaped(value: str) -> str:
    escaped = _SPECIAL.sub(r"\\\1", value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if len(escaped) > 1 and escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return escaped


def _der_length(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(digits)]) + digits

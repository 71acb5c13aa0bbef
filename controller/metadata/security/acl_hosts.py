"""Whether an access rule applies to a client's address: `*`, one address, or a network in CIDR notation.

An IPv4 address that a dual-stack socket shows as `::ffff:10.0.0.1` is the IPv4 address. A host that is not an address (a name)
applies only to a client that is known by exactly this text: nothing is looked up. The zone of a link-local address
(`fe80::1%eth0`) does not count: it is the name of an interface of this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

ANY_HOST = "*"

_MAPPED_BITS = 96
"""The length of the prefix `::ffff:`."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
HostTest = Callable[[str], bool]


def host_test(pattern: str) -> HostTest | None:
    """The test that a client's address has to pass; None if every address does."""
    if pattern == ANY_HOST:
        return None
    if "/" in pattern:
        return _network_test(pattern)
    wanted = _address(pattern)
    if wanted is None:
        return lambda host: host == pattern
    return lambda host: host == pattern or _address(host) == wanted


def _network_test(pattern: str) -> HostTest:
    network = _network(pattern)
    if network is None:
        return lambda host: False

    def is_inside(host: str) -> bool:
        address = _address(host)
        return address is not None and address.version == network.version and address in network

    return is_inside


def _network(pattern: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        network = ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS))


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

"""Finds the topics that match the regular expressions of a group, in slices that are too short to block the event loop.

Expressions have RE2's syntax, and RE2 matches them in linear time: in at most about 4 ns per character of the name and
instruction of the compiled expression. Both have a bound, and a slice ends after `SLICE_COST` of their product: after 4 ms at
the latest, or about a thousand names with an ordinary expression. (Python's `re` has another syntax, and some of its expressions
take exponential time.)

An expression must match the whole name. Internal topics never match, because `.*` is not meant to include them. (In Kafka 4.3
they match: a member with `.*` gets `__consumer_offsets`, too, unless it may not describe that topic.)

A scan matches one name after the other. Topics that are created or deleted during the scan are added at its end. The result
contains the topics that exist at the end of the scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strandline.broker.groups.records.types import RegularExpressionValue
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.protocol.errors import BrokerError, ErrorCode

LENGTH_MAX = 4096
UNICODE_CLASSES_MAX = 10
"""RE2 needs a millisecond for each class such as `\\pL`, and names of topics are ASCII."""
RE2_MEMORY_MAX = 1024 * 1024
"""With this bound, RE2 rejects an expression that needs too many instructions before it has generated all of them."""
PROGRAM_SIZE_MAX = 10_000
"""The instructions of a compiled expression: enough for an alternative of several hundred names. With these four bounds, RE2
compiles an expression in less than 50 ms."""
SLICE_COST = 1_000_000
_CALL_COST = 250
"""The cost of a match besides its characters and instructions: the call from Python, 1 us."""


def compile_regex(regex: str) -> Any:
    """The compiled expression. Raises INVALID_REGULAR_EXPRESSION. `re2` is imported at the first call; it caches expressions."""
    import re2

    if len(regex) > LENGTH_MAX:
        raise _invalid(f"it is longer than {LENGTH_MAX} characters")
    if regex.lower().count("\\p") > UNICODE_CLASSES_MAX:
        raise _invalid(f"it has more than {UNICODE_CLASSES_MAX} Unicode classes")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = RE2_MEMORY_MAX
    # Groups are not needed, and make RE2 use a slower method.
    options.never_capture = True
    try:
        compiled = re2.compile(regex, options)
    except re2.error as e:
        reason = e.args[0] if e.args else ""
        raise _invalid(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    if compiled.programsize > PROGRAM_SIZE_MAX:
        raise _invalid(f"it needs {compiled.programsize} instructions; at most {PROGRAM_SIZE_MAX} are allowed")
    return compiled


def _invalid(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"RE2 does not accept the regular expression: {reason}")


class RegexScan:
    """One look-up of some expressions of a group."""

    def __init__(self, regexes: Iterable[str], names: Iterable[str], known: Mapping[str, RegularExpressionValue]) -> None:
        """`names`: the topics to match. `known`: the topics that match among all others."""
        self.regexes = tuple(sorted(dict.fromkeys(regexes)))
        self._names = list(names)
        self._next = 0
        self._compiled = [(regex, compiled) for regex in self.regexes if (compiled := _compiled(regex)) is not None]
        self._size = sum(compiled.programsize for _, compiled in self._compiled)
        self._matches: dict[str, dict[str, None]] = {
            regex: dict.fromkeys(known[regex].topics) if regex in known else {} for regex in self.regexes
        }

    def add(self, names: Iterable[str]) -> None:
        """Match these topics as well, or once more."""
        self._names.extend(names)

    def advance(self) -> bool:
        """Match a slice of the names; True if none is left."""
        cost = 0
        while self._next < len(self._names):
            if cost >= SLICE_COST:
                return False
            name = self._names[self._next]
            self._next += 1
            cost += self._size * len(name) + _CALL_COST * len(self._compiled)
            if name not in INTERNAL_TOPICS:
                for regex, compiled in self._compiled:
                    if compiled.fullmatch(name) is not None:
                        self._matches[regex][name] = None
        return True

    def result(self, image: MetadataImage, now_ms: int) -> dict[str, RegularExpressionValue]:
        """Expression -> the matching topics that exist in this image."""
        existing = image.topics_by_name
        return {
            regex: RegularExpressionValue(tuple(sorted(name for name in names if name in existing)), image.offset, now_ms)
            for regex, names in self._matches.items()
        }


def _compiled(regex: str) -> Any:
    """The compiled expression; None for a stored one that is no longer accepted, which matches no topic."""
    try:
        return compile_regex(regex)
    except BrokerError:
        return None

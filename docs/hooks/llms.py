"""`llms.txt` and `llms-full.txt`: the documentation for programs that read it (llmstxt.org).

`llms.txt` lists the pages as the navigation does, each with a sentence. Its links lead to the Markdown of the pages, which lies
on the site beside their HTML. `llms-full.txt` is that Markdown in one file, without what is listed as optional: tables that
answer single questions, and are as long as everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from navigation import Section
from places import uri_of

SUMMARY = (
    "A replicated log in Python: Apache Kafka's replication (leader epochs, ISR, high watermark, a Raft quorum for the metadata) "
    "as a small cluster of asyncio processes, with a client, a command line, a test kit with faults, and a deterministic "
    "simulator."
)
OPTIONAL = (
    "docs/protocol.md",
    "docs/metrics.md",
    "docs/guards.md",
    "docs/bugs.md",
    "docs/configuration-keys.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def index(sections: Iterable[Section]) -> str:
    """The text of `llms.txt`."""
    lines, optional = [f"# Strandline\n\n> {SUMMARY}\n"], list[str]()
    for section in sections:
        lines.append(f"\n## {section.title}\n\n")
        for page in section.pages:
            about = _LINK.sub(r"\1", page.about)
            (optional if page.path in OPTIONAL else lines).append(f"- [{page.title}]({uri_of(page.path)}): {about}\n")
    return "".join([*lines, "\n## Optional\n\n", *optional])


def full(sections: Iterable[Section], markdown: Mapping[str, str]) -> str:
    """The text of `llms-full.txt`. `markdown`: by place on the site, the pages."""
    return "\n\n".join(_parts(sections, markdown)) + "\n"


def _parts(sections: Iterable[Section], markdown: Mapping[str, str]) -> Iterator[str]:
    yield f"# Strandline\n\n> {SUMMARY}"
    for section in sections:
        for page in section.pages:
            if page.path not in OPTIONAL:
                yield f"<!-- {uri_of(page.path)} -->\n\n{markdown[uri_of(page.path) or ''].strip()}"

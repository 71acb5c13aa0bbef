"""Where a file of the repository is on the site, and the links between them.

    docs/client.md                      client.md                   pages in docs/ keep their place
    README.md                           README.md                   docs/README.md takes the place of the repository's
    ARCHITECTURE.md, deploy/README.md   the same                    pages outside become pages of the site when one links to them
    deploy/systemd/                     deploy/systemd/README.md    a link to a folder leads to its page
    deploy/prometheus/rules.yml         source/....yml.md           other files become pages that show them
    deploy/grafana/                     -                           a folder without a page: the link becomes plain text

On GitHub the links lead to the files themselves.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
SOURCE = "source/"

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)$)", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"`?(?:[\w-]+/)*[\w-]+\.md`?")
_ELSEWHERE = re.compile(r"[a-z]+:")


def uri_of(path: str) -> str | None:
    """The place on the site of a file or folder of the repository. None: it has none."""
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
        if not (ROOT / path).exists():
            return None
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return path if path.endswith(".md") else f"{SOURCE}{path}.md"


def targets(path: str, markdown: str) -> Iterator[str]:
    """The files and folders of the repository to which a page links. `path`: the page, from the root of the repository."""
    for text in _CODE.split(markdown)[::2]:
        for _, _, link in _LINK.findall(text):
            target = _target(path, link)
            if target is not None and (ROOT / target).exists():
                yield target


def reachable(paths: Iterable[str]) -> list[str]:
    """These files and all to which their pages link, directly or not, as far as they have a place on the site."""
    found: dict[str, None] = {}
    todo = list(paths)
    while todo:
        path = todo.pop()
        if (ROOT / path).is_dir():
            path = posixpath.join(path, "README.md")
        if path not in found and path != "README.md" and (ROOT / path).is_file():
            found[path] = None
            todo += targets(path, (ROOT / path).read_text()) if path.endswith(".md") else []
    return list(found)


def with_links_of_the_site(path: str, markdown: str, titles: Mapping[str, str]) -> str:
    """The page, with links to where their targets are on the site. A link that leads nowhere stays, so that the build finds it.

    `titles`: by path, those of pages. On GitHub a link may name its file, `[disks.md](disks.md)`; here it names the title."""
    here = posixpath.dirname(uri_of(path) or path)

    def changed(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        target = _target(path, link)
        if target is None or not (ROOT / target).exists():
            return match[0]
        uri, (_, hash_sign, anchor) = uri_of(target), link.partition("#")
        if _FILE_NAME.fullmatch(label):
            label = titles.get(target, label)
        return label if uri is None else f"{image}[{label}]({posixpath.relpath(uri, here or '.')}{hash_sign}{anchor})"

    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(changed, text) for text in parts[::2]]
    return "".join(parts)


def _target(path: str, link: str) -> str | None:
    """The file that a link of a page names, from the root of the repository. None: another site, or the page itself."""
    file = link.partition("#")[0]
    if not file or _ELSEWHERE.match(link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), file))

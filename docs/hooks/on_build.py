"""The hooks that MkDocs calls while it builds the site. They turn the pages, which are written for GitHub, into a site.

navigation.py   docs/README.md is the navigation
places.py       pages outside docs/ are part of the site, and links lead there
dialect.py      GitHub's Markdown for the site's parser
llms.py         llms.txt, for programs that read
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dialect
import llms
import navigation
import places
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", "Dockerfile": "docker"}

_sections: list[navigation.Section] = []
_paths: dict[str, str] = {}
"""Place on the site -> the page in the repository."""
_markdown: dict[str, str] = {}
"""Place on the site -> the page, with links to places on the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    _sections[:] = navigation.sections((places.ROOT / navigation.INDEX).read_text())
    config.nav = [{section.title: [{page.title: places.uri_of(page.path)} for page in section.pages]} for section in _sections]
    config.nav[0][_sections[0].title].insert(0, {"Overview": places.uri_of(navigation.INDEX)})
    config.mdx_configs.setdefault("toc", {})["slugify"] = dialect.anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/ that are in the navigation, or to which a page links."""
    paths = [page.path for section in _sections for page in section.pages]
    paths += [f"{places.DOCS}{file.src_uri}" for file in files.documentation_pages()]
    for path in places.reachable(paths):
        uri = places.uri_of(path)
        assert uri is not None
        _paths[uri] = path
        if not path.startswith(places.DOCS):
            files.append(_added(path, uri, config))
    return files


def _added(path: str, uri: str, config: MkDocsConfig) -> File:
    text = (places.ROOT / path).read_text()
    if not uri.startswith(places.SOURCE):
        return File.generated(config, uri, content=text)
    file = Path(path)
    language = LANGUAGES.get(file.suffix or file.name, "text")
    page = f"# {path}\n\n````{language}\n{text}````\n"
    return File.generated(config, uri, content=page, inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    uri = page.file.src_uri
    if uri.startswith(places.SOURCE):
        page.meta["search"] = {"exclude": True}
        return markdown
    titles = {entry.path: entry.title for section in _sections for entry in section.pages}
    _markdown[uri] = places.with_links_of_the_site(_paths[uri], markdown, titles)
    return dialect.for_the_site(_markdown[uri])


def on_post_build(config: MkDocsConfig) -> None:
    """Writes the Markdown of the pages beside their HTML, and the two files for programs."""
    site = Path(config.site_dir)
    for uri, markdown in _markdown.items():
        (site / uri).write_text(markdown)
    (site / "llms.txt").write_text(llms.index(_sections))
    (site / "llms-full.txt").write_text(llms.full(_sections, _markdown))

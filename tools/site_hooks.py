"""What the documentation site has beyond the files of docs/: pages made from other files, and llms.txt.

Pages are written for readers of the repository, too, so their links name files of the repository. Here a link to a
file that is a page or a picture of the site leads there; a link to any other file becomes plain text.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools import reference_pages  # noqa: E402 (mkdocs runs this file by its path)

# Pages whose source is elsewhere in the repository.
PAGES: Final = {
    "bench/RESULTS.md": "internals/benchmarks.md",
    "sdks/README.md": "reference/clients.md",
    "sdks/conformance/README.md": "reference/client-cases.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
PICTURES: Final = {f"bench/{plot.name}": f"assets/bench/{plot.name}" for plot in sorted((ROOT / "bench").glob("*.png"))}
GENERATED: Final = {
    "reference/api.md": reference_pages.api,
    "reference/limits.md": reference_pages.limits,
}
SECTIONS: Final = {"tutorial": "Tutorial", "howto": "How to", "reference": "Reference", "internals": "Internals"}
# Fenced code and code within a line stay as they are; a link's text may contain code.
MARKUP: Final = re.compile(
    r"(?P<fence>^(?P<mark>```|~~~).*?^(?P=mark)$)|"
    r"(?P<picture>!?)\[(?P<text>(?:`[^`\n]*`|[^\[\]`]|\[[^\]]*\])*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)|"
    r"(?P<code>`[^`\n]*`)",
    re.DOTALL | re.MULTILINE,
)

OUTSIDE: Final = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?https?:[^>]*>"
    r"|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*https?:[^>]*>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page that the navigation does not name is appended to the section of its directory."""
    nav = config.nav
    assert isinstance(nav, list)
    named = set(_pages_of(nav))
    for directory, section in {**SECTIONS, "decisions": "Decisions", "runbooks": "Runbooks"}.items():
        found = sorted(
            page.relative_to(config.docs_dir).as_posix() for page in Path(config.docs_dir, directory).glob("*.md")
        )
        extra = [page for page in (*found, *_elsewhere(directory)) if page not in named]
        for entry in nav:
            if isinstance(entry, dict) and section in entry:
                entry[section] += extra
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        if not files.get_file_from_path(page):
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / source)))
    for page, content in GENERATED.items():
        files.append(File.generated(config, page, content=content()))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    return MARKUP.sub(lambda found: _as_the_site_needs_it(found, page.file.src_uri, files), markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """llms.txt lists every page with its first sentence (llmstxt.org), llms-full.txt contains them all."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    whole = []
    for section, pages in _SEEN.items():
        lines += [f"## {section}", ""]
        for page in pages:
            lines.append(f"- [{page.title}]({page.url or './'}): {_summary(page.markdown or '')}")
            whole.append(page.markdown or "")
        lines.append("")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n---\n\n".join(whole), encoding="utf-8")
    _require_no_outside_help(site)


_SEEN: dict[str, list[Page]] = {}


def on_nav(nav: Any, **_: Any) -> Any:
    _SEEN.clear()
    for page in nav.pages:
        section = page.ancestors[-1].title if page.ancestors else "Start"
        _SEEN.setdefault(section, []).append(page)
    return nav


def _pages_of(entries: object) -> Iterator[str]:
    match entries:
        case str():
            yield entries
        case list():
            for entry in entries:
                yield from _pages_of(entry)
        case dict():
            for entry in entries.values():
                yield from _pages_of(entry)


def _elsewhere(directory: str) -> list[str]:
    return [page for page in (*PAGES.values(), *GENERATED) if posixpath.dirname(page) == directory]


def _as_the_site_needs_it(found: re.Match[str], uri: str, files: Files) -> str:
    target = found["target"]
    if not target or "://" in target or target.startswith(("mailto:", "/")):
        return found.group()
    source = next((source for source, page in PAGES.items() if page == uri and page != "index.md"), f"docs/{uri}")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    goal = PAGES.get(wanted) or PICTURES.get(wanted) or wanted.removeprefix("docs/")
    if files.get_file_from_path(goal):
        relative = posixpath.relpath(goal, posixpath.dirname(uri) or ".")
        return f"{found['picture']}[{found['text']}]({relative}{found['anchor'] or ''})"
    return found["text"] if (ROOT / wanted).exists() else found.group()


def _require_no_outside_help(site: Path) -> None:
    """Every script, style and picture comes with the site, so that it works without internet and reveals nothing."""
    for page in sorted(site.rglob("*.html")):
        if found := OUTSIDE.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.relative_to(site)} loads something from elsewhere: {found.group()}")


def _summary(markdown: str) -> str:
    """The first sentence of the first paragraph, without its marks."""
    for block in re.split(r"\n\s*\n", markdown):
        if not block.startswith(("#", "|", "<", "!", "-", "```")):
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
            return re.split(r"(?<=\.)\s", text)[0]
    return ""

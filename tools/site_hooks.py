"""What the documentation site has beyond the files of docs/: pages made from other files, and llms.txt.

Pages are written for readers of the repository, too, so their links name files of the repository. Here a link to a
file that is a page or a picture of the site leads there; a link to any other file becomes plain text. The same code in
several languages stands in sections one below the other, and becomes tabs.
"""

import html as markup
import json
import posixpath
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools import api_pages, reference_pages  # noqa: E402 (mkdocs runs this file by its path)

LANGUAGES: Final = {
    "python": "Python",
    "typescript": "TypeScript",
    "go": "Go",
    "java": "Java",
    "php": "PHP",
    "ruby": "Ruby",
}
# Pages whose source is elsewhere in the repository.
PAGES: Final = {
    "bench/RESULTS.md": "internals/benchmarks.md",
    "sdks/README.md": "sdks/index.md",
    **{f"sdks/{language}/README.md": f"sdks/{language}.md" for language in LANGUAGES},
    "sdks/conformance/README.md": "sdks/conformance.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
PICTURES: Final = {
    "dashboard/src/icon.svg": "assets/icon.svg",
    **{f"bench/{plot.name}": f"assets/bench/{plot.name}" for plot in sorted((ROOT / "bench").glob("*.png"))},
}
# What is readable in the repository, and the pages that the site has instead.
MADE_FROM: Final = {
    "docs/reference/openapi.json": "api/index.md",
    "src/posthouse/rules/explanation.py": "reference/reasons.md",
    "src/posthouse/rules/limits.py": "reference/limits.md",
}
SECTIONS: Final = {"tutorial": "Tutorial", "howto": "How to", "reference": "Reference", "internals": "Internals"}
# Sections whose order is that of their own index.
INDEXED: Final = {"runbooks": "Runbooks", "decisions": "Decisions"}
# How much a page counts in a search, by its directory; pages outside of them count 1.
BOOSTS: Final = {
    "tutorial": 2.0,
    "howto": 3.0,
    "sdks": 3.0,
    "api": 1.0,
    "reference": 1.5,
    "runbooks": 1.0,
    "internals": 0.5,
    "decisions": 0.2,
}
NOT_SEARCHED: Final = {"internals/benchmarks.md", "sdks/conformance.md", "changelog.md"}
# What readers search for, where the page itself uses other words.
SEARCHED_AS: Final[Mapping[str, list[str]]] = {
    "howto/addresses-and-pools.md": ["warm up"],
    "howto/backup.md": ["backup"],
    "howto/failover.md": ["failover"],
    "howto/sizing.md": ["calculator", "hardware requirements", "capacity"],
    "howto/verify-a-domain.md": ["DKIM"],
    "internals/scaling.md": ["pricing", "cost"],
    "reference/api-basics.md": ["pagination", "idempotency", "rate limit"],
    "reference/inbound.md": ["bounces", "complaints"],
}
# Fenced code and code within a line stay as they are; a link's text may contain code.
MARKUP: Final = re.compile(
    r"(?P<fence>^(?P<mark>```|~~~).*?^(?P=mark)$)|"
    r"(?P<picture>!?)\[(?P<text>(?:`[^`\n]*`|[^\[\]`]|\[[^\]]*\])*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)|"
    r"(?P<code>`[^`\n]*`)",
    re.DOTALL | re.MULTILINE,
)
_BLOCK: Final = r"```\w+\n(?:(?!```).*\n)*```\n"
# A shell block to which the first examples of the client libraries belong.
EXAMPLES: Final = re.compile(rf"^({_BLOCK})\n<!-- the same with a client library -->\n", re.MULTILINE)
_SECTION: Final = rf"### (?:{'|'.join(LANGUAGES.values())})[^\n]*\n\n{_BLOCK}"
IN_LANGUAGES: Final = re.compile(rf"^{_SECTION}(?:\n{_SECTION})+", re.MULTILINE)

# The page with a calculator, which assets/sizing.js is.
CALCULATOR: Final = "howto/sizing.md"
# A rule of docs/reference, as HTML.
RULE: Final = re.compile(r"<li>(?P<loose>\n?<p>)?<strong>(?P<id>[A-Z]+-\d+)</strong>")
# Where a long name within a table may break.
BREAKS: Final = re.compile(r"(?<=[._/])(?=[\w{])")
# A table of four columns or more may scroll: with a keyboard, only if it takes the focus.
_WIDE: Final = re.compile(r"<table>(?=\s*<thead>\s*<tr>(?:\s*<th\b(?:(?!</th>).)*</th>){4})", re.DOTALL)
_SEARCH: Final = '<div class="md-search" data-md-component="search" role="dialog"'
_CELL: Final = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_FIELDS: Final = re.compile(r"<table>(?=\s*<thead>\s*<tr>\s*<th>(?:Field|Parameter)</th>)")
_CODE: Final = re.compile(r"(?<=<code>)[^<@]+(?=</code>)")

OUTSIDE: Final = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?https?:[^>]*>"
    r"|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*https?:[^>]*>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """What the navigation of mkdocs.yml leaves out: operations, indexed pages, and every page that it doesn't name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    config.copyright = f"Posthouse {project['version']}, {config.copyright}"
    nav = config.nav
    assert isinstance(nav, list)
    named = set(_pages_of(nav))
    sections = {name: entry[name] for entry in nav if isinstance(entry, dict) for name in entry}
    sections["API"].append({"Operations": api_pages.navigation()})
    for directory, section in INDEXED.items():
        sections[section] += _index(directory, Path(config.docs_dir, directory, "index.md").read_text(encoding="utf-8"))
    for directory, section in SECTIONS.items():
        found = sorted(
            page.relative_to(config.docs_dir).as_posix() for page in Path(config.docs_dir, directory).glob("*.md")
        )
        sections[section] += [page for page in (*found, *_elsewhere(directory)) if page not in named]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        if not files.get_file_from_path(page):
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / source)))
    generated = {"reference/limits.md": reference_pages.limits(), "reference/reasons.md": reference_pages.reasons()}
    for page, content in {**generated, **api_pages.pages()}.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    uri = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(uri.partition("/")[0], 1.0), "exclude": uri in NOT_SEARCHED}
    if uri in SEARCHED_AS:
        page.meta["tags"] = SEARCHED_AS[uri]
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if uri == CALCULATOR:
        markdown = markdown.replace("<!-- calculator -->", _calculator())
    linked = MARKUP.sub(lambda found: _as_the_site_needs_it(found, uri, files), markdown)
    return IN_LANGUAGES.sub(_sections_as_tabs, EXAMPLES.sub(_examples_as_tabs, linked))


def on_page_content(html: str, *, page: Page, **_: Any) -> str:
    """Each rule has an address, so that it can be linked."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    page.present_anchor_ids = {
        *(page.present_anchor_ids or ()),
        *(found["id"].lower() for found in RULE.finditer(html)),
    }
    return RULE.sub(_rule_with_address, html)


def on_post_page(output: str, **_: Any) -> str:
    """Long names in tables break at their dots and underscores; tables of fields are lists on a small screen.

    Screen readers get a name for the search, and wide tables take a keyboard's focus.
    """
    named = output.replace(_SEARCH, f'{_SEARCH} aria-label="Search"')
    marked = _WIDE.sub('<table tabindex="0">', _FIELDS.sub("<table data-fields>", named))
    return _CELL.sub(lambda cell: _CODE.sub(lambda name: BREAKS.sub("<wbr>", name.group()), cell.group()), marked)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Every page as Markdown too, and the index of them (llmstxt.org), for programs that read."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section, pages in _SEEN.items():
        lines += [f"## {section}", ""]
        for page in pages:
            lines.append(f"- [{page.title}]({page.file.src_uri}): {_summary(page.markdown or '')}")
            copy = site / page.file.src_uri
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(page.markdown or "", encoding="utf-8")
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    _require_no_outside_help(site)


_SEEN: dict[str, list[Page]] = {}


def on_nav(nav: Any, **_: Any) -> Any:
    _SEEN.clear()
    for page in nav.pages:
        section = page.ancestors[-1].title if page.ancestors else "Start"
        _SEEN.setdefault(section, []).append(page)
    return nav


def _calculator() -> str:
    """Where the calculator goes, with the figures that it uses, so that it asks nothing of a network."""
    script = (ROOT / "docs/assets/sizing.js").read_text(encoding="utf-8")
    figures = json.loads((ROOT / "bench/figures.json").read_text(encoding="utf-8"))
    used = {name: figure for name, figure in figures.items() if f'"{name}"' in script}
    return (
        f'<div id="sizing" data-figures="{markup.escape(json.dumps(used))}"></div>\n'
        '<script src="../../assets/sizing.js" defer></script>'
    )


def _rule_with_address(found: re.Match[str]) -> str:
    anchor = found["id"].lower()
    return f'<li class="rule" id="{anchor}">{found["loose"] or ""}<a href="#{anchor}">{found["id"]}</a>'


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
    return [page for page in PAGES.values() if posixpath.dirname(page) == directory]


def _index(directory: str, page: str) -> list[Any]:
    """The navigation of a directory: the headings and links of its index."""
    found: list[Any] = []
    for heading, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", page, re.MULTILINE):
        found.append({heading: [f"{directory}/{link}" for link in re.findall(r"\]\(([\w-]+\.md)\)", text)]})
    return found


def _examples_as_tabs(found: re.Match[str]) -> str:
    blocks = {"curl": found[1]}
    for language, name in LANGUAGES.items():
        readme = (ROOT / "sdks" / language / "README.md").read_text(encoding="utf-8")
        first = re.search(f"^{_BLOCK}", readme, re.MULTILINE)
        assert first is not None
        blocks[name] = first.group()
    return _tabs(blocks)


def _sections_as_tabs(found: re.Match[str]) -> str:
    sections = re.findall(rf"^### ([^\n]*)\n\n({_BLOCK})", found.group(), re.MULTILINE)
    return _tabs(dict(sections))


def _tabs(blocks: Mapping[str, str]) -> str:
    return "\n".join(f'=== "{name}"\n\n{textwrap.indent(block, "    ")}' for name, block in blocks.items())


def _as_the_site_needs_it(found: re.Match[str], uri: str, files: Files) -> str:
    target = found["target"]
    if not target or "://" in target or target.startswith(("mailto:", "/")):
        return found.group()
    source = next((source for source, page in PAGES.items() if page == uri and page != "index.md"), f"docs/{uri}")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    made = None if uri.startswith("api/") else MADE_FROM.get(wanted)
    goal = made or PAGES.get(wanted) or PICTURES.get(wanted) or wanted.removeprefix("docs/")
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

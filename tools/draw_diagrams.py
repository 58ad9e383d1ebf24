"""Draws docs/diagrams/*.mmd as SVGs with Mermaid in a headless Chromium; nothing is fetched from the network.

python -m tools.draw_diagrams path/to/mermaid.min.js
"""

import base64
import hashlib
import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "docs" / "diagrams"
DRAWN: Final = ROOT / "docs" / "assets" / "diagrams"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_HASH: Final = re.compile(r"<!-- source: ([0-9a-f]{64}) -->")
_PAGE: Final = """<!doctype html><meta charset="utf-8"><script src="{mermaid}"></script><pre id="source">{source}</pre>
<div id="drawn"></div><script>
mermaid.initialize({{startOnLoad: false, theme: "default", fontFamily: "sans-serif", htmlLabels: false,
  flowchart: {{htmlLabels: false}}, deterministicIds: true}});
mermaid.render("diagram", document.getElementById("source").textContent)
  .then(({{svg}}) => {{ document.getElementById("drawn").textContent = btoa(unescape(encodeURIComponent(svg))); }});
</script>"""


def source_hash(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def drawn_hash(drawn: Path) -> str | None:
    """The hash of the source from which that SVG was drawn."""
    found = _HASH.search(drawn.read_text(encoding="utf-8")) if drawn.exists() else None
    return found.group(1) if found else None


def drawing_of(source: Path) -> Path:
    return DRAWN / f"{source.stem}.svg"


def draw(source: Path, mermaid: Path, browser: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory, "page.html")
        page.write_text(_PAGE.format(mermaid=mermaid.resolve().as_uri(), source=html.escape(source.read_text())))
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}/profile",
             "--virtual-time-budget=10000", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    found = re.search(r'<div id="drawn">([A-Za-z0-9+/=]+)</div>', done.stdout)
    if not found:
        raise SystemExit(f"{source.name} could not be drawn: check its Mermaid syntax.")
    svg = base64.b64decode(found.group(1)).decode()
    # White, because lines and letters are dark, also where a page is.
    svg = svg.replace('style="', 'style="background: white; ', 1)
    return f"<!-- source: {source_hash(source)} -->\n{svg}\n"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("Give the path of mermaid.min.js; `make diagrams` does.")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("There is no Chromium: install it with `apt-get install chromium`.")
    DRAWN.mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.mmd")):
        drawing_of(source).write_text(draw(source, Path(sys.argv[1]), browser), encoding="utf-8")
        print(f"{drawing_of(source).relative_to(ROOT)} is drawn.")


if __name__ == "__main__":
    main()

"""Pictures of a terminal: a command as it is typed, and what it really prints, in Chromium."""

import fcntl
import html
import io
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.async_api import Browser
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS: Final = 130
# Letters have smooth edges, and few of them a colour.
COLOURS: Final = 96
THEME: Final = TerminalTheme(
    (30, 34, 48),
    (214, 218, 230),
    [(69, 74, 92), (240, 113, 120), (130, 200, 140), (245, 200, 110), (120, 170, 250), (200, 150, 240), (110, 200, 210),
     (200, 204, 216)],
)  # fmt: skip
_PAGE: Final = """<!doctype html><meta charset="utf-8"><style>
  body {{ margin: 0; background: white; }}
  .terminal {{ display: inline-block; background: #1e2230; border-radius: 8px; overflow: hidden; }}
  .bar {{ background: #2b3042; height: 28px; display: flex; align-items: center; gap: 8px; padding-left: 12px; }}
  .bar i {{ width: 11px; height: 11px; border-radius: 50%; background: #5a617a; }}
  pre {{ margin: 0; padding: 12px 16px 16px; color: #d6dae6; font: 13px/1.4 "DejaVu Sans Mono", monospace; }}
  .typed {{ color: #82c88c; }}
</style>
<div class="terminal"><div class="bar"><i></i><i></i><i></i></div><pre>{lines}</pre></div>"""


def printed(words: Sequence[str], environment: Mapping[str, str], directory: Path) -> str:
    """What a command prints to a terminal of `COLUMNS`, with its colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    terminal = {**environment, "TERM": "xterm-256color"}
    with subprocess.Popen(words, env=terminal, cwd=directory, stdin=its, stdout=its, stderr=subprocess.DEVNULL):
        os.close(its)
        with os.fdopen(ours, "rb", closefd=True) as screen:
            said = b""
            # Linux ends the last reading with an error instead of with nothing.
            while chunk := _read(screen):
                said += chunk
    return said.decode().replace("\r\n", "\n")


def _read(screen: io.BufferedReader) -> bytes:
    try:
        return screen.read1()
    except OSError:
        return b""


def page_of(command: str, output: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output.rstrip()), soft_wrap=True, highlight=False)
    coloured = console.export_html(theme=THEME, code_format="{code}", inline_styles=True)
    return _PAGE.format(lines=f'<span class="typed">$ {html.escape(command)}</span>\n{coloured.rstrip()}')


async def take_terminal(browser: Browser, picture: Path, command: str, output: str) -> None:
    page = await browser.new_page(viewport={"width": 1200, "height": 900})
    await page.set_content(page_of(command, output))
    taken = await page.locator(".terminal").screenshot(omit_background=True)
    await page.close()
    save(taken, picture, COLOURS)


def save(taken: bytes, picture: Path, colours: int) -> None:
    """With few colours, which are enough for a page, in a third of the bytes."""
    image = Image.open(io.BytesIO(taken)).convert("RGB")
    image.quantize(colours, dither=Image.Dither.NONE).save(picture, optimize=True)
    print(f"{picture.name} is taken: {picture.stat().st_size:,} bytes.")

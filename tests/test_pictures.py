"""The pictures of the documentation: taken of the dashboard and the API as they are, small, and shown on a page."""

from pathlib import Path

import pytest

from tools import pictured_pages

ROOT = Path(__file__).parents[1]
PICTURES = sorted(pictured_pages.TAKEN.glob("*.png"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("of", ["navigation", "operations"])
def test_the_pictures_were_taken_since_the_dashboard_and_the_api_changed_last(of: str) -> None:
    assert pictured_pages.recorded()[of] == pictured_pages.now()[of], "run `make screenshots`"


def test_the_record_names_the_whole_navigation() -> None:
    table = (ROOT / "dashboard/src/pages/table.ts").read_text()
    assert sum(map(len, pictured_pages.now()["navigation"].values())) == table.count(", group: ")


def test_each_picture_is_small_and_shown_on_a_page() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    assert len(PICTURES) > 10
    assert [picture.name for picture in PICTURES if picture.stat().st_size > pictured_pages.BYTES_MAX] == []
    assert [picture.name for picture in PICTURES if f"screenshots/{picture.name})" not in pages] == []

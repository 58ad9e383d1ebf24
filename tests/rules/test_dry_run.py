"""Warnings about a message before it is sent."""

import pytest

from posthouse.rules import dry_run
from posthouse.rules.draft import compose


@pytest.mark.parametrize(
    ("domain", "return_path", "aligned"),
    [
        ("example.com", "example.com", True),
        ("example.com", "bounce.example.com", True),
        ("news.example.com", "example.com", True),
        ("example.com", "bounce.posthouse.example", False),
        ("example.com", "myexample.com", False),
        ("a.example.com", "b.example.com", False),
    ],
)
def test_a_domain_and_its_subdomain_are_aligned(domain: str, return_path: str, aligned: bool) -> None:
    assert dry_run.is_aligned(domain, return_path) is aligned


def test_suppressed_recipients_are_counted_without_content() -> None:
    draft = compose(sender="a@example.com", to=["b@example.org", "c@example.org"], subject="Hello", html="<p>x</p>")
    assert dry_run.warnings(draft, None, None, 0) == []
    (some,) = dry_run.warnings(draft, None, None, 1)
    (every,) = dry_run.warnings(draft, None, None, 2)
    assert some.startswith("1 of the recipients are suppressed")
    assert every.startswith("Every recipient is suppressed")
    assert len(dry_run.warnings(draft, draft.mail_content(None), 6 * 1024 * 1024, 0)) == 2

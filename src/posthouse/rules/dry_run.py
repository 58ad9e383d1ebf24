"""Dry runs: warnings about a message before it is sent."""

from collections.abc import Sequence
from typing import Final

from posthouse.mail.mime import MailContent
from posthouse.rules import limits
from posthouse.rules.draft import Draft

# Tags of mail that is sent to many recipients.
BATCH_TAGS: Final = frozenset({"bulk", "broadcast", "campaign", "digest", "marketing", "newsletter", "promotion"})
UNSUBSCRIBE: Final = "list-unsubscribe"
# Many servers accept 10 MB at most, and some measure the encoded size.
LARGE_BYTES: Final = 5 * limits.MIB
# Gmail shows only the beginning of longer HTML.
CLIPPED_BYTES: Final = 102 * 1024

TEST_LOCAL_PART: Final = "test"
TEST_SUBJECT: Final = "A test message"
TEST_TEXT: Final = """\
This is a test message. If you can read it, mail from {domain} reaches you.

Look in its headers for a DKIM-Signature of {domain}, and in Authentication-Results for your mail
server's verdict.
"""


def is_aligned(domain: str, return_path: str) -> bool:
    """Whether the domains are aligned under relaxed DMARC: equal, or a subdomain of the other."""
    return domain == return_path or domain.endswith(f".{return_path}") or return_path.endswith(f".{domain}")


def warnings(draft: Draft, content: MailContent | None, size_bytes: int | None, suppressed: int) -> list[str]:
    found = []
    if suppressed:
        what = "Every recipient is" if suppressed == len(draft.recipients) else f"{suppressed} of the recipients are"
        found.append(f"{what} suppressed: nothing is sent there, the result is bounced, and the credit is returned.")
    if content is not None:
        found += _content_warnings(content)
    is_batch = draft.mailing_list is not None or any(tag.lower() in BATCH_TAGS for tag in draft.tags)
    has_unsubscribe = draft.one_click or any(name.lower() == UNSUBSCRIBE for name, _ in draft.headers)
    if is_batch and not has_unsubscribe:
        found.append(
            "Its tags say that it is sent to many, and it has no List-Unsubscribe: large providers want one. "
            "Tag it `one-click-unsubscribe` as well as `list:<name>`, or set the header yourself."
        )
    if size_bytes is not None and size_bytes > LARGE_BYTES:
        found.append(
            f"It is {size_bytes / limits.MIB:.1f} MiB, which some servers refuse: link to large files instead."
        )
    return found


def _content_warnings(content: MailContent) -> Sequence[str]:
    found = []
    if content.html is not None and content.text is None:
        found.append("It has no text part: some clients show nothing, and spam filters rate it worse. Give `text`.")
    if content.html is not None and len(content.html.encode("utf-8", "replace")) > CLIPPED_BYTES:
        found.append("Its HTML is longer than 102 KB: Gmail shows only the beginning.")
    if not content.subject.strip():
        found.append("Its subject is empty.")
    return found

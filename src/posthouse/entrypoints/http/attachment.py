"""The response with an attachment: for a browser to store, whatever it says that it is."""

from collections.abc import Mapping

from starlette.responses import Response

from posthouse.flows.account.message_detail import Attachment
from posthouse.rules import download


def attachment_response(attachment: Attachment, media_type: str, headers: Mapping[str, str] | None = None) -> Response:
    info = attachment.info
    name = download.safe_name(info.filename, f"part-{info.part}")
    own = {
        "Content-Disposition": download.disposition(name),
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(attachment.content, media_type=media_type, headers={**(headers or {}), **own})

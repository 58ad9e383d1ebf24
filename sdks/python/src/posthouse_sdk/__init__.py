"""The official client library of Posthouse: sends email, reports its status, verifies webhooks."""

from posthouse_sdk.calls import DebugEvent
from posthouse_sdk.client import AsyncClient, Basic, Bearer, Client
from posthouse_sdk.errors import (
    ApiError,
    AttemptTimeoutError,
    ConnectionFailedError,
    InvalidArgumentError,
    PosthouseError,
    WaitTimeoutError,
    WebhookVerificationError,
)
from posthouse_sdk.models import Attachment, Email
from posthouse_sdk.policy import RetryPolicy
from posthouse_sdk.results import Message, Recipient, Sent, SentAttachment
from posthouse_sdk.streams import AsyncHttpTransport, AsyncTransport
from posthouse_sdk.transport import Answer, HttpTransport, Request, Transport
from posthouse_sdk.version import VERSION
from posthouse_sdk.webhooks import Event, EventData, verify_webhook

__version__ = VERSION

__all__ = [
    "Answer",
    "ApiError",
    "AsyncClient",
    "AsyncHttpTransport",
    "AsyncTransport",
    "Attachment",
    "AttemptTimeoutError",
    "Basic",
    "Bearer",
    "Client",
    "ConnectionFailedError",
    "DebugEvent",
    "Email",
    "Event",
    "EventData",
    "HttpTransport",
    "InvalidArgumentError",
    "Message",
    "PosthouseError",
    "Recipient",
    "Request",
    "RetryPolicy",
    "Sent",
    "SentAttachment",
    "Transport",
    "WaitTimeoutError",
    "WebhookVerificationError",
    "verify_webhook",
]

"""The API reference: a page that works without the rest of the internet."""

import gzip
import re
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Scope

from posthouse.chance import SystemChance
from posthouse.clock import DatabaseClock
from posthouse.entrypoints.http.app import create_router
from posthouse.entrypoints.http.bodies import BodyReader
from posthouse.entrypoints.http.frame import Frame
from posthouse.entrypoints.http.sending import SendEndpoint

ASSETS = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
}

"""The routes of the team and the log of what it changed: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

"""The routes of suppressions: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

"""The routes of credentials and keys: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

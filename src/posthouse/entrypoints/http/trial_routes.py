"""The routes of test mail and dry runs: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

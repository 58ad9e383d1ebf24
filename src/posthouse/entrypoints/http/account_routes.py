"""The routes of the account, its use and its ledger: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

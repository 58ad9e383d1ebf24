"""The routes of login, logout, password and second factor: read the request, call one flow, shape the answer."""

from fastapi import APIRouter

router = APIRouter()

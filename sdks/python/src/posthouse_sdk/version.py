"""The version of the library, as its metadata and its User-Agent tell it."""

from typing import Final

VERSION: Final = "0.1.0"

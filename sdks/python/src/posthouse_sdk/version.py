"""The version of the library, as in its metadata and its User-Agent."""

from typing import Final

VERSION: Final = "1.0.0-rc.1"

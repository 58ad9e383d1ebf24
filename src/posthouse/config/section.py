"""What all sections share: their base class, and lists written in one environment variable."""

import json
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

MAKE_SECRETS: Final = "run `posthouse config init` to write a file with fresh secrets"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _split(given: object) -> object:
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return json.loads(given)
    return [part.strip() for part in given.split(",") if part.strip()]


Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Integers = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split)]
Numbers = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_split)]

"""Commands that run in this process, on the test's database."""

import os
from collections.abc import Callable, Mapping

import pytest
from typer.testing import CliRunner, Result

from posthouse.cli.app import app
from tests.support.service import settings_for

Type = Callable[..., Result]


def environment_of(database_url: str) -> Mapping[str, str | None]:
    """The settings of a service with this database, and no others."""
    return {**dict.fromkeys(name for name in os.environ if name.startswith("POSTHOUSE_")), **settings_for(database_url)}


@pytest.fixture
def typed(database_url: str) -> Type:
    def type_(*words: str, status: int = 0, given: str | None = None) -> Result:
        done = CliRunner().invoke(app, words, env=environment_of(database_url), input=given)
        assert done.exit_code == status, (done.output, done.exception)
        return done

    return type_

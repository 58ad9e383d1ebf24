"""The hosts of a PostgreSQL URL."""

import pytest

from posthouse.rules.database_url import each_host


@pytest.mark.parametrize(
    ("url", "urls"),
    [
        ("postgresql://u:p@one:5432/mail", ["postgresql://u:p@one:5432/mail"]),
        ("postgresql:///mail?host=/run/postgresql", ["postgresql:///mail?host=/run/postgresql"]),
        (
            "postgresql://u:p%40@one:1,two:2/mail?sslmode=require",
            ["postgresql://u:p%40@one:1/mail?sslmode=require", "postgresql://u:p%40@two:2/mail?sslmode=require"],
        ),
        ("postgres://one,two", ["postgres://one", "postgres://two"]),
        ("postgresql://[::1]:1,[::2]:2/mail", ["postgresql://[::1]:1/mail", "postgresql://[::2]:2/mail"]),
        (
            "postgresql://u@/mail?host=one,two&port=1,2",
            ["postgresql://u@/mail?host=one&port=1", "postgresql://u@/mail?host=two&port=2"],
        ),
        (
            "postgresql://u@/mail?host=one,two&port=7",
            ["postgresql://u@/mail?host=one&port=7", "postgresql://u@/mail?host=two&port=7"],
        ),
        ("nonsense", ["nonsense"]),
    ],
)
def test_each_host_gets_the_url_that_names_only_that_host(url: str, urls: list[str]) -> None:
    assert each_host(url) == urls

"""The hosts of a PostgreSQL URL, which may name a primary and its standbys."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode

_PARTS: Final = re.compile(
    r"(?P<scheme>[^:]+://)(?P<place>[^/?#]*)(?P<path>(?:/[^?#]*)?)(?:\?(?P<query>.*))?", re.DOTALL
)


def each_host(url: str) -> list[str]:
    """A URL for each host, in their order; hosts among the parameters replace those before the path."""
    found = _PARTS.fullmatch(url)
    if found is None:
        return [url]
    scheme, place, path = found["scheme"], found["place"], found["path"]
    parameters = dict(parse_qsl(found["query"] or "", keep_blank_values=True))
    user, at, places = place.rpartition("@")
    is_parameter = bool(parameters.get("host"))
    hosts = (parameters["host"] if is_parameter else places).split(",")
    ports = parameters.get("port", "").split(",")
    if len(hosts) == 1:
        return [url]
    urls = []
    for number, host in enumerate(hosts):
        own = dict(parameters)
        if is_parameter:
            own["host"] = host
        if len(ports) == len(hosts):
            own["port"] = ports[number]
        query = f"?{urlencode(own)}" if own else ""
        urls.append(f"{scheme}{user}{at}{places if is_parameter else host}{path}{query}")
    return urls

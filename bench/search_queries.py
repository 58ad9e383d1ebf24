"""The pages that the search benchmark reads: every filter, first pages and deep ones, pairs of filters, and ids."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from bench import search_dataset
from bench.search_dataset import Archive
from posthouse.rules import ids, search
from posthouse.rules.search import SearchFilters

PAGES: Final = 400
METADATA: Final = "metadata."
# How many messages of an archive are read by their ids.
IDS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Search:
    """Pages of one kind, each as its path and query."""

    name: str
    pages: tuple[str, ...]
    # Of two filters together; there are many of those.
    is_pair: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """What a filter is asked for: values that many messages have, few, and none."""

    common: tuple[str, ...]
    rare: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Queries:
    """Values are drawn again for each page."""

    archive: Archive
    randomness: random.Random

    def searches(self) -> list[Search]:
        known = self._filters()
        words = known["subject"]
        subjects = {
            "subject: two common words": [words.common, words.common],
            "subject: a common and a rare word": [words.common, words.rare],
            "subject: three common words": [("your",), ("order",), ("shipped", "confirmed", "how")],
            "subject: five words": [("your",), ("order",), ("has",), ("shipped",), words.rare],
        }
        everything = {name: values.common[0] for name, values in known.items()}
        return [
            *self._first_and_deep("no filter", [{}]),
            Search("time: an hour, a day, a week", tuple(_path(self._times()) for _ in range(PAGES))),
            *(search for name, values in known.items() for search in self._single(name, values)),
            *self._single("metadata.order", self._orders()),
            *(search for name, groups in subjects.items() for search in self._words(name, groups)),
            *(search for pair in itertools.combinations(known, 2) for search in self._pairs(known, *pair)),
            self._search("all filters at once, common values", [everything]),
        ]

    def reads(self) -> list[Search]:
        """What should cost the same whatever the archive's size, each for messages anywhere in the thirty days."""
        messages = search_dataset.messages_after(self.archive, [self._some_time() for _ in range(IDS)])
        return [
            Search("GET /emails/{id}", tuple(f"/emails/{message}" for message in messages)),
            Search("GET /v1/messages/{id}", tuple(f"/v1/messages/{message}" for message in messages)),
            *self._first_and_deep("GET /v1/messages", [{}]),
        ]

    def _filters(self) -> dict[str, Values]:
        def some(count: int, text: Any) -> tuple[str, ...]:
            return tuple(text(self.randomness.randrange(count)) for _ in range(PAGES))

        data = search_dataset
        credentials = [ids.text(ids.CREDENTIAL, credential_id) for credential_id in data.CREDENTIALS]
        unknown = ids.text(ids.CREDENTIAL, ids.lowest_id(self.archive.end))
        return {
            "status": Values(("delivered",), ("failed", "partial", "queued")),
            "recipient": Values(
                tuple(data.recipient(number) for number in range(20)),
                some(data.RECIPIENTS, data.recipient),
                ("absent@example.org",),
            ),
            "sender": Values(
                tuple(f"{name}@shop0.example" for name in data.SENDERS),
                some(data.RARE_SENDERS, "rare{}@shop0.example".format),
                ("absent@shop0.example",),
            ),
            "subject": Values(
                ("order", "your", "shipped", "invoice", "welcome", "backup"),
                some(data.ORDERS, data.order),
                ("nonesuch",),
            ),
            "tag": Values(data.TAGS, some(data.RARE_TAGS, data.rare_tag), ("nonesuch",)),
            "template": Values(data.TEMPLATES, (), ("nonesuch",)),
            "source": Values(("api", "smtp"), ("test",)),
            "metadata.campaign": Values(data.TAGS, (), ("nonesuch",)),
            "credential_id": Values(tuple(credentials[:3]), (credentials[3],), (unknown,)),
        }

    def _orders(self) -> Values:
        orders = [search_dataset.order(self.randomness.randrange(search_dataset.ORDERS)) for _ in range(PAGES)]
        return Values((), tuple(orders), ("1",))

    def _single(self, name: str, values: Values) -> list[Search]:
        found = []
        for kind, given in (("common", values.common), ("rare", values.rare)):
            if given:
                found += self._first_and_deep(f"{name}: {kind}", [{name: value} for value in given])
        if values.absent:
            found.append(self._search(f"{name}: absent", [{name: value} for value in values.absent]))
        return found

    def _words(self, name: str, groups: Sequence[Sequence[str]]) -> list[Search]:
        choose = self.randomness.choice
        subjects = [{"subject": " ".join(choose(group) for group in groups)} for _ in range(PAGES)]
        return self._first_and_deep(name, subjects)

    def _pairs(self, known: Mapping[str, Values], left: str, right: str) -> list[Search]:
        found = [self._pair((left, known[left].common), (right, known[right].common), "both common")]
        first, rare = (left, right) if known[right].rare else (right, left)
        if known[rare].rare:
            found.append(self._pair((first, known[first].common), (rare, known[rare].rare), f"{rare} rare"))
        return found

    def _pair(self, left: tuple[str, Sequence[str]], right: tuple[str, Sequence[str]], kind: str) -> Search:
        asked = [{name: self.randomness.choice(values) for name, values in (left, right)} for _ in range(PAGES)]
        # Every second page is a deep one.
        pages = [_path(given) if number % 2 else self._deep(given) for number, given in enumerate(asked)]
        return Search(f"{left[0]} + {right[0]}: {kind}", tuple(pages), is_pair=True)

    def _first_and_deep(self, name: str, asked: Sequence[Mapping[str, str]]) -> list[Search]:
        deep = tuple(self._deep(asked[number % len(asked)]) for number in range(PAGES))
        return [self._search(name, asked), Search(f"{name}, deep page", deep)]

    def _search(self, name: str, asked: Sequence[Mapping[str, str]]) -> Search:
        return Search(f"{name}, first page", tuple(_path(asked[number % len(asked)]) for number in range(PAGES)))

    def _deep(self, asked: Mapping[str, str]) -> str:
        """A page that begins anywhere, as it does for a reader after very many pages."""
        position = ids.lowest_id(self._some_time())
        pairs = {name: value for name, value in asked.items() if name.startswith(METADATA)}
        filters = SearchFilters(
            **{name: value for name, value in asked.items() if name not in pairs},
            metadata=tuple((name.removeprefix(METADATA), value) for name, value in pairs.items()),
        )
        return _path({**asked, "cursor": search.search_query(filters).cursor(position)})

    def _some_time(self) -> datetime:
        return self.archive.start + (self.archive.end - self.archive.start) * self.randomness.random()

    def _times(self) -> dict[str, str]:
        after = self._some_time()
        before = after + (self.archive.end - self.archive.start) * self.randomness.choice((1 / 720, 1 / 30, 7 / 30))
        return {"after": after.strftime("%Y-%m-%dT%H:%M:%SZ"), "before": before.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _path(parameters: Mapping[str, str]) -> str:
    return f"/v1/messages?{urlencode(parameters)}"

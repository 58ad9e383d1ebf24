"""A worker of several (`pytest --numprocesses`) imports a file of tests when it runs it, and not those of the others.

Importing and collecting all of them takes 20 s of processor time, or 40 s without cached bytecode. pytest-xdist wants
the same items from every worker: they are the files.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

_HAS_OTHERS = "PYTEST_XDIST_WORKER" in os.environ


class FileOfTests(pytest.Item):
    """Stands for the tests of a file until it is its turn."""

    def runtest(self) -> None:
        raise NotImplementedError("its tests run instead")


class _UnreadFile(pytest.File):
    def collect(self) -> Iterator[FileOfTests]:
        item: FileOfTests = FileOfTests.from_parent(self, name=self.name, nodeid=self.nodeid)
        yield item


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    # A test that is named on the command line is looked for in its file.
    if not _HAS_OTHERS or any("::" in argument for argument in parent.config.args):
        return None
    file: _UnreadFile = _UnreadFile.from_parent(parent, path=module_path)
    return file


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Marks are the tests', so that no file is deselected for its own."""
    files = [item for item in items if isinstance(item, FileOfTests)]
    yield
    items += [file for file in files if file not in items]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, FileOfTests):
        return None
    session, parent = item.session, item.parent
    assert parent is not None
    assert parent.parent is not None
    tests = list(session.genitems(pytest.Module.from_parent(parent.parent, path=item.path)))
    item.config.hook.pytest_collection_modifyitems(session=session, config=item.config, items=tests)
    place = session.items.index(item)
    for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
        # pytest-xdist compares the results with what it started.
        session.items[place] = test
        item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail or session.shouldstop:
            break
    session.items[place] = item
    if not tests:
        # The last test before left what it shares with this file, not with the next one.
        session._setupstate.teardown_exact(nextitem)
    return True

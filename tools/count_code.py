"""Print how large the code is, so that growth is seen in each check; fail if modules import one another in a circle."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

SOURCE: Final = Path("src")
SHORT_LINES: Final = 60


def main() -> None:
    texts = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    modules = {_module_name(path): path for path in texts}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    importers: Counter[str] = Counter()
    functions: list[tuple[int, str]] = []
    constructors: list[tuple[int, str]] = []
    trees = {path: ast.parse(text) for path, text in texts.items()}
    for path, tree in trees.items():
        importers.update(_imported(ast.walk(tree), modules))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}: {node.name}"))
            elif isinstance(node, ast.ClassDef):
                constructors.append((_parameters(node), f"{path}: {node.name}"))
    short = sum(lines[path] < SHORT_LINES for path in texts if path.name != "__init__.py")
    single = sum(importers[module] == 1 for module, path in modules.items() if path.name != "__init__.py")
    print(f"{sum(lines.values())} lines in {len(texts)} files")
    print(f"{short} modules with under {SHORT_LINES} lines, {single} with one importer")
    print("longest function: {} lines ({})".format(*max(functions)))
    print("most parameters of a constructor: {} ({})".format(*max(constructors)))
    if circle := import_circle({module: trees[path] for module, path in modules.items()}):
        sys.exit(f"A circle of imports: {' -> '.join(circle)}")


def import_circle(trees: Mapping[str, ast.Module]) -> list[str]:
    """Modules of which each needs the next while it is loaded; empty if there are none.

    The contracts of import-linter compare packages, so they don't see a circle within one.
    """
    needed = {module: _imported(_when_loaded(tree.body), trees) & trees.keys() for module, tree in trees.items()}
    try:
        TopologicalSorter(needed).prepare()
    except CycleError as error:
        # It names what is needed before what needs it.
        return list(reversed(error.args[1]))
    return []


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").relative_to(SOURCE).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _when_loaded(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is loaded: not those of functions, nor those for the type checker."""
    for node in nodes:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for field in ("orelse",) if is_for_types else ("body", "orelse", "finalbody"):
            yield from _when_loaded(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _when_loaded(handler.body)


def _imported(nodes: Iterator[ast.AST], modules: Mapping[str, object]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def _parameters(node: ast.ClassDef) -> int:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return len(method.args.args) + len(method.args.kwonlyargs) - 1
    return 0


if __name__ == "__main__":
    main()

"""Print how large the code is: so that growth is seen in each check."""

import ast
from collections import Counter
from pathlib import Path
from typing import Final

SOURCE: Final = Path("src")
SHORT_LINES: Final = 60


def main() -> None:
    texts = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    modules = {".".join(path.with_suffix("").relative_to(SOURCE).parts): path for path in texts}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    importers: Counter[str] = Counter()
    functions: list[tuple[int, str]] = []
    constructors: list[tuple[int, str]] = []
    for path, text in texts.items():
        tree = ast.parse(text)
        importers.update(_imported(tree, modules))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}: {node.name}"))
            elif isinstance(node, ast.ClassDef):
                constructors.append((_parameters(node), f"{path}: {node.name}"))
    short = sum(lines[path] < SHORT_LINES for path in texts if path.name != "__init__.py")
    single = sum(importers[module] == 1 for module in modules)
    print(f"{sum(lines.values())} lines in {len(texts)} files")
    print(f"{short} modules with under {SHORT_LINES} lines, {single} with one importer")
    print("longest function: {} lines ({})".format(*max(functions)))
    print("most parameters of a constructor: {} ({})".format(*max(constructors)))


def _imported(tree: ast.Module, modules: dict[str, Path]) -> set[str]:
    """The modules that a module imports, wherever it does so."""
    found = set()
    for node in ast.walk(tree):
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

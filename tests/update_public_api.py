"""Render the public API of the core from its source, the same on every Python; run as a module to rewrite the snapshot.

Read from the syntax trees: what a reader of the source sees, no matter how an interpreter would print it.
"""

from __future__ import annotations

import ast
import builtins
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_name("public_api.txt")
PACKAGE = "dlock_core"
PUBLIC_MODULES = (PACKAGE, f"{PACKAGE}.fence", f"{PACKAGE}.kit", f"{PACKAGE}.testing")
HEADER = (
    "# The public API, rewritten by `python -m tests.update_public_api`: read the difference before you accept it.\n"
)

SHOWN_DUNDERS = {
    *("__init__", "__new__", "__call__", "__await__", "__bool__", "__eq__", "__hash__", "__len__", "__contains__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__next__", "__aiter__", "__anext__"),
}
SHOWN_DECORATORS = {"abstractmethod", "cached_property", "classmethod", "overload", "property", "staticmethod"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = Function | ast.ClassDef | ast.Assign | ast.AnnAssign


def render() -> str:
    """Return the snapshot as it should be now."""
    blocks = [HEADER]
    for module in PUBLIC_MODULES:
        for name in exported(module):
            lines = [f"{module}.{name}", *(f"    {line}" for line in describe(module, name))]
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def exported(module: str) -> list[str]:
    """Return the names in the ``__all__`` of *module*, sorted."""
    [node] = [found for found in _find(module, "__all__") if isinstance(found, ast.Assign)]
    names: list[str] = ast.literal_eval(node.value)
    return sorted(names)


def describe(module: str, name: str) -> Iterator[str]:
    """Yield the lines that say what *name* of *module* is, wherever it is defined."""
    home, definitions = resolve(module, name)
    if not definitions:
        yield f"from {home}"
    for node in definitions:
        if isinstance(node, ast.ClassDef):
            yield from _class(home, node)
        elif isinstance(node, Function):
            yield from _function(node)
        else:
            yield _assignment(node)


def member_names(name: str) -> set[str]:
    """Return the public members of the class *name*, attributes that only ``__init__`` sets among them."""
    home, [node] = resolve(PACKAGE, name)
    assert isinstance(node, ast.ClassDef)
    return set(_members(home, node))


def resolve(module: str, name: str) -> tuple[str, list[Definition]]:
    """Return where *name* of *module* is defined and its definitions there: none for what is not ours."""
    if not _path(module):
        return module, []
    if definitions := _find(module, name):
        return module, definitions
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return resolve(node.module or "", alias.name)
    raise LookupError(f"{module} exports {name!r}, which it neither defines nor imports")


def _path(module: str) -> Path | None:
    base = ROOT / module.replace(".", "/")
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if module.startswith(PACKAGE) and path.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    path = _path(module)
    assert path is not None, f"{module} is not a module of ours"
    return ast.parse(path.read_text(encoding="utf-8"))


def _find(module: str, name: str) -> list[Definition]:
    return [node for node in _statements(_tree(module).body) if name in _defined(node)]


def _statements(body: list[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, Definition):
            yield node
        elif isinstance(node, ast.If):
            yield from _statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *node.orelse, *node.finalbody])


def _defined(node: Definition) -> list[str]:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets]
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else [node.name]


def _class(module: str, node: ast.ClassDef) -> Iterator[str]:
    yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
    bases = [*map(ast.unparse, node.bases), *(f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords)]
    yield f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
    members = _members(module, node)
    methods = {name for name, found in members.items() if isinstance(found[0], Function)}
    for name in [*(name for name in members if name not in methods), *sorted(methods)]:
        for found in members[name]:
            yield from (
                f"    {line}" for line in (_function(found) if isinstance(found, Function) else [_assignment(found)])
            )


def _members(module: str, node: ast.ClassDef) -> dict[str, list[Function | ast.Assign | ast.AnnAssign]]:
    """Collect the public members of a class, those of its bases among ours included."""
    members: dict[str, list[Function | ast.Assign | ast.AnnAssign]] = {}
    for base in reversed(node.bases):
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        home, definitions = resolve(module, name) if name.isidentifier() and not hasattr(builtins, name) else ("", [])
        for found in definitions:
            if isinstance(found, ast.ClassDef):
                members.update(_members(home, found))
    own: dict[str, list[Function | ast.Assign | ast.AnnAssign]] = {}
    for statement in _statements(node.body):
        if isinstance(statement, ast.ClassDef):
            continue
        for name in filter(_is_shown, _defined(statement)):
            own.setdefault(name, []).append(statement)
        if isinstance(statement, Function) and statement.name == "__init__":
            for name, attribute in _attributes(statement):
                own.setdefault(name, [attribute])
    return members | own


def _attributes(init: Function) -> Iterator[tuple[str, ast.AnnAssign]]:
    """Yield the public attributes that ``__init__`` sets, with their types as far as the source states them."""
    types = {
        argument.arg: argument.annotation
        for argument in [*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs]
    }
    for node in ast.walk(init):
        targets = (
            [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and _is_shown(target.attr):
                stated = node.annotation if isinstance(node, ast.AnnAssign) else None
                value = getattr(node, "value", None)
                known = types.get(value.id) if isinstance(value, ast.Name) else None
                annotation = stated or known or ast.Constant(...)
                yield target.attr, ast.AnnAssign(ast.Name(target.attr), annotation, None, 1)


def _is_shown(name: str) -> bool:
    return name in SHOWN_DUNDERS if name.startswith("__") else name.isidentifier() and not name.startswith("_")


def _function(node: Function) -> Iterator[str]:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    yield from (f"@{name}" for name in names if name.rpartition(".")[2] in SHOWN_DECORATORS or name.endswith(".setter"))
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    yield f"{kind} {node.name}({ast.unparse(node.args)}){result}"


def _assignment(node: ast.Assign | ast.AnnAssign) -> str:
    if isinstance(node, ast.Assign):
        return f"{' = '.join(_defined(node))} = {ast.unparse(node.value)}"
    value = f" = {ast.unparse(node.value)}" if node.value else ""
    return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{value}"


if __name__ == "__main__":
    SNAPSHOT.write_text(render(), encoding="utf-8")

"""The general changes of a file: each comparison, constant, condition, argument and statement of its functions, one at a time.

Nobody lists these changes, unlike the named mutants (``mutants.txt``, ``slips.txt``), so they also ask about lines that nobody thought
of. :mod:`proof.mutate.product` judges them.
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING, NamedTuple

from proof.mutate.mutant import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Change", "changes", "mutated"]

_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Change(NamedTuple):
    """One place of a file, and what stands there instead."""

    number: int
    line: int
    within: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """What it is known by, whatever else moves in the file."""
        return f"{self.within}: {self.old} -> {self.new}"


def _variants(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901  # a table of forms
    """Yield what may stand in place of *node*."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            other = copy.deepcopy(node)
            other.ops = [_OTHER[type(op)]()]
            yield other
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield ast.BoolOp(other_op, copy.deepcopy(values))
            yield from (copy.deepcopy(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield copy.deepcopy(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            yield ast.BinOp(
                copy.deepcopy(left), ast.Sub() if isinstance(op, ast.Add) else ast.Add(), copy.deepcopy(right)
            )
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.keyword(arg=name, value=ast.Constant(value=bool() as value)):
            yield ast.keyword(name, ast.Constant(not value))
        case ast.Constant(value=int() as number):
            yield ast.Constant(number + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(copy.deepcopy(test), copy.deepcopy(orelse), copy.deepcopy(body))
        case ast.Call(func=ast.Name(id="min" | "max" as which), args=args, keywords=keywords):
            yield ast.Call(
                ast.Name("max" if which == "min" else "min", ast.Load()), copy.deepcopy(args), copy.deepcopy(keywords)
            )
        case ast.Call():
            yield from _other_arguments(node)
        case ast.If():
            yield from _one_branch(node)


def _one_branch(node: ast.If) -> Iterator[ast.AST]:
    for value in (True, False):
        other = copy.deepcopy(node)
        other.test = ast.Constant(value)
        yield other


def _other_arguments(call: ast.Call) -> Iterator[ast.AST]:
    """Yield *call* without each of its keywords, and with each two neighbours among its arguments swapped."""
    for place, keyword in enumerate(call.keywords):
        if keyword.arg is not None:
            other = copy.deepcopy(call)
            del other.keywords[place]
            yield other
    for place in range(1, len(call.args)):
        other = copy.deepcopy(call)
        other.args[place - 1 : place + 1] = reversed(other.args[place - 1 : place + 1])
        yield other


def _may_go(statement: ast.stmt) -> bool:
    """Whether *statement* can be left out: not where a name would be missing, which any test sees."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Return(value=ast.Constant(value=None)):
            return False  # it says what the end of a function does
        case ast.Assert(test=ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)])):
            return False  # it tells the type checker what is so
        case ast.Assign(targets=[target]):
            return isinstance(target, (ast.Attribute, ast.Subscript))
    return isinstance(statement, (ast.Expr, ast.AugAssign, ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Assert))


def _is_told_for_debugging(node: ast.AST) -> bool:
    """Whether *node* logs for debugging: nothing is decided by it, and no user is promised it."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="debug"))):
            return True
    return False


def _is_flag(node: ast.AST) -> bool:
    """Whether *node* is a named argument that is true or false: it is changed with its name, which tells it from others of a function."""
    match node:
        case ast.keyword(value=ast.Constant(value=bool())):
            return True
    return False


def _shown(node: ast.AST) -> str:
    """Return *node* as it is written; of a block only its head."""
    return ast.unparse(node).partition("\n")[0] if isinstance(node, ast.If) else ast.unparse(node)


class _Mutator(ast.NodeTransformer):
    """Counts the places, and changes the one that has the number."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.within = ""
        self.found: list[Change] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Look at *node*, and below it."""
        if isinstance(node, _FUNCTIONS):
            self.within = node.name
        if _is_told_for_debugging(node):
            return node
        for variant in _variants(node):
            if self._is_counted(node, _shown(variant)):
                return ast.copy_location(variant, node)
        if _is_flag(node):
            return node
        if isinstance(node, ast.stmt) and _may_go(node) and self._is_counted(node, "pass"):
            return ast.copy_location(ast.Pass(), node)
        result: ast.AST = self.generic_visit(node)
        return result

    def change_body(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Count and change what *function* does; its defaults and decorators stay."""
        self.within = function.name
        function.body = [self.visit(statement) for statement in function.body]  # type: ignore[misc]  # statements stay statements

    def _is_counted(self, node: ast.AST, new: str) -> bool:
        """Count one more place; whether it is the one to be changed."""
        number = len(self.found)
        runs = (
            node.test if isinstance(node, ast.If) else node
        )  # of a block over several lines, the one that is seen to run
        self.found.append(Change(number, getattr(runs, "lineno", 0), self.within, _shown(node), new))
        return number == self.number


def mutated(number: int | None, file: str, root: Path = ROOT) -> tuple[ast.Module, list[Change]]:
    """Return *file* of the project in *root* with change *number* made, and all changes that were counted on the way."""
    tree = ast.parse((root / file).read_text())
    mutator = _Mutator(number)
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else (node,):
            if isinstance(function, _FUNCTIONS):
                mutator.change_body(function)
    return ast.fix_missing_locations(tree), mutator.found


def changes(file: str) -> list[Change]:
    """Return every change, in the order of the file."""
    return mutated(None, file)[1]

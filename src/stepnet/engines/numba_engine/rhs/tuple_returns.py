"""Rewriting `return [a, b]` and `return np.array([a, b])` as `return (a, b)`, which needs no allocation when compiled.

The rewritten function is used only if the unmodified source compiles to the same bytecode as the original, so stale
or misread source text does no harm.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from types import CodeType, FunctionType, ModuleType

ARRAY_CALLS = ("np.array", "np.asarray", "numpy.array", "numpy.asarray")


def rewrite_returns(function):
    """The function with its literal lists returned as tuples, or the function itself where that is not possible."""
    if not isinstance(function, FunctionType):
        return function
    definition = _find_definition(function)
    if definition is None:
        return function
    definition.body = [_TupleReturns().visit(statement) for statement in definition.body]
    code = _compile(definition, function)
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = tuple(closure[name] for name in code.co_freevars)
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)


class _TupleReturns(ast.NodeTransformer):
    """Changes the returns of one function, not those of functions inside it."""

    def visit_Return(self, node):
        return ast.copy_location(ast.Return(_as_tuple(node.value)), node)

    def visit_FunctionDef(self, node):
        return node

    def visit_Lambda(self, node):
        return node


def _as_tuple(value):
    """The literal list in an expression as a tuple; other expressions as they are."""
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        called = value.func
        is_array = isinstance(called, ast.Attribute) and ast.unparse(called) in ARRAY_CALLS
        if is_array:
            return _as_tuple(value.args[0])
    if isinstance(value, ast.List) and not any(isinstance(item, (ast.Starred, ast.List)) for item in value.elts):
        return ast.copy_location(ast.Tuple(value.elts, ast.Load()), value)
    return value


def _find_definition(function) -> ast.FunctionDef | None:
    """The function's definition from its source, as a `def`; None unless its bytecode agrees."""
    try:
        tree = ast.parse(textwrap.dedent(_find_source(function.__code__)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            node.decorator_list, node.returns = [], None
        elif isinstance(node, ast.Lambda) and function.__name__ == "<lambda>":
            body: list[ast.stmt] = [ast.copy_location(ast.Return(node.body), node.body)]
            node = ast.copy_location(ast.FunctionDef("rhs", node.args, body, []), node)
        else:
            continue
        ast.fix_missing_locations(node)
        if _is_same(_compile(node, function), function.__code__):
            return node
    return None


def _find_source(code: CodeType) -> str:
    """The source of a function, as `inspect.getsource` finds it, without its search through all modules."""
    lines = linecache.getlines(code.co_filename)
    return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))


def _compile(definition: ast.FunctionDef, function) -> CodeType:
    """Compile a definition with the free variables of the original around it.

    Modules it names are imported around it too: Python compiles `np.sin` differently where it knows the import.
    """
    used, namespace = function.__code__.co_names, function.__globals__
    modules = [ast.Import([ast.alias(name)]) for name in used if isinstance(namespace.get(name), ModuleType)]
    free = [ast.arg(name) for name in function.__code__.co_freevars]
    arguments = ast.arguments([], free, None, [], [], None, [])
    names = [ast.Expr(ast.Name(name, ast.Load())) for name in function.__code__.co_freevars]
    outer = ast.FunctionDef("outer", arguments, [definition, *names], [])
    module = ast.fix_missing_locations(ast.Module([*modules, outer], []))
    return _find_first_code(_find_first_code(compile(module, function.__code__.co_filename, "exec")))


def _find_first_code(code: CodeType) -> CodeType:
    return next(item for item in code.co_consts if isinstance(item, CodeType))


def _is_same(code: CodeType, other: CodeType) -> bool:
    if len(code.co_consts) != len(other.co_consts) or code.co_names != other.co_names:
        return False
    for mine, theirs in zip(code.co_consts, other.co_consts, strict=True):
        is_code = isinstance(mine, CodeType) and isinstance(theirs, CodeType)
        if not (_is_same(mine, theirs) if is_code else mine == theirs and type(mine) is type(theirs)):
            return False
    return (
        code.co_code == other.co_code
        and code.co_varnames == other.co_varnames
        and code.co_freevars == other.co_freevars
    )

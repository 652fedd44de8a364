"""Who may import whom, what may not occur at all, and how long things may be; read from the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
CORE = "dlock_core"
SUITE = "dlock_conformance"
CONTRIB = "dlock_contrib"

DRIVERS = {
    "dlock_dynamodb": {"boto3", "botocore"},
    "dlock_etcd": {"google", "grpc"},
    "dlock_mongodb": {"bson", "gridfs", "pymongo"},
    "dlock_mysql": {"pymysql"},
    "dlock_postgres": {"psycopg"},
    "dlock_redis": {"redis"},
    "dlock_sqlite": set(),
    "dlock_zookeeper": {"kazoo"},
}
# What each module for a framework may import; it is only there with the extra of the module's name.
FRAMEWORKS = {
    "apscheduler": {"apscheduler"},
    "celery": {"celery"},
    "django": {"django"},
    "fastapi": {"fastapi", "starlette"},
    "opentelemetry": {"opentelemetry"},
    "starlette": {"starlette"},
}
CONTRIB_MAY_IMPORT = {f"{CORE}.{name}" for name in ("errors", "options", "slots")}
COMMAND_ONLY = {"click", "rich"}
PYTEST_MODULES = {"dlock_core/pytest_plugin.py", "dlock_core/testing.py"}
ADAPTER_FILES = {"__init__.py", "_wire.py", "options.py", "provision.py", "store.py"}
_PORT = (
    "record",
    "store",
    "errors",
    "backend",
    "options",
    "clock",
    "kit",
    "kit.outcome",  # the function, which has the name of its module
)
ADAPTER_MAY_IMPORT = {f"{CORE}.{name}" for name in _PORT}

PURE_MAY_IMPORT = {"__future__", "collections", "dataclasses", "enum", "functools", "typing"}
PURE_MAY_IMPORT_OURS = {
    f"{CORE}.{name}" for name in ("early", "errors", "members", "timings", "record", "states", "store")
}
EFFECTS = {
    "asyncio",
    "datetime",
    "logging",
    "os",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uuid",
}

FUNCTION_LINES_MAX = 50
MODULE_LINES_MAX = 400
# A longer module needs a reason.
LONGER_MODULES: dict[str, int] = {
    "conformance_tests/dlock_conformance/client_suite.py": 410,  # one list of scenarios of one API
    "conformance_tests/dlock_conformance/wire/wired.py": 465,  # one wire, and both faces of the store behind it
    "dlock_core/aio.py": 450,  # the asyncio face, in one piece beside its twin
    "dlock_core/client.py": 440,  # the blocking face, in one piece beside its twin
    "dlock_core/command/run.py": 440,  # one run, from the wait to the release
    "dlock_core/engine/engine.py": 490,  # every operation of a client, written once
    "dlock_core/engine/driver.py": 515,  # the one loop, beside the step that it feeds
    "dlock_core/engine/sharing.py": 425,  # one attempt at a place, from the look to the refusal
    "dlock_core/memory.py": 425,  # the reference for whoever writes a store: the space, and both faces of it
    "dlock_core/lease.py": 1210,  # one state machine with all its decisions and its table, to be read in one piece
    "dlock_core/record.py": 405,  # one record, and every bound of its format
    "dlock_core/store.py": 485,  # the port: all clauses, and the Protocols that they are about
    "dlock_core/states.py": 415,  # the whole vocabulary of the machine
    "dlock_redis/_scripts.py": 410,  # all that the server runs, from shared parts
    "dlock_redis/_wire.py": 485,  # one exchange for each verb, and how its answers are read
    "proof/explore/world.py": 445,  # what a world is made of, and each step of a client in it
    "proof/explore/members.py": 450,  # one record, and each step of its members
    "proof/explore/sessions.py": 480,  # both records, and each step of the three parties
    "tests/core/test_cancel.py": 430,  # each operation, and its interruption at every point
    "tests/core/test_lease_seeking.py": 475,  # the transitions of one state
    "tests/core/test_options.py": 405,  # every option, and what each of them refuses
    "tests/core/test_shared_locks.py": 510,  # one list of what users see of semaphores and read/write locks
    "tests/core/test_traces.py": 475,  # one trace, written by the two faces that it compares
    "tests/core/worlds.py": 620,  # one text for both colours: a world and what it is made of, which no other file needs
    "tests/dynamodb/test_dialects.py": 410,  # one table of rows, read by every dialect
    "tests/migration/methods_exercised.py": 455,  # one function for each method
    "tests/mongodb/test_store.py": 425,  # one list of verbs against one server
    "tests/test_architecture.py": 510,  # one reader of syntax trees under all rules
}
# A longer function needs a reason, too.
LONGER_FUNCTIONS: dict[str, int] = {
    "tests/core/test_fork.py:test_childs_copy_of_a_lease_and_a_client_is_dead": 60,  # the program of the child is its text
    "tests/core/test_traces.py:run_async": 55,  # beside its blocking twin
    "proof/explore/search.py:explore": 55,  # the hot loop of the exploration
}
# What is not shipped keeps to the same sizes.
UNSHIPPED = ("benchmarks", "conformance_tests", "docs", "examples", "proof", "tests")

WALL_CLOCK = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "time.time",
    "time.time_ns",
}
# Wall-clock time is for people. Each module that reads it, and what for.
WALL_CLOCK_READERS: dict[str, str] = {
    "dlock_core/clock.py": "for the option clock_skew, whose user has said how far two are apart, and for rows of Node clients",
    "dlock_core/slots.py": "names the runs of a schedule, in the schedule's time zone",
}

FORBIDDEN_IMPORTS = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load"}

# Fewer modules than this and the scan has looked in the wrong place.
MODULES_MIN = {CONTRIB: 2, CORE: 12, SUITE: 4}
ADAPTER_MODULES_MIN = len(ADAPTER_FILES)
UNSHIPPED_MIN = 100


class Import(NamedTuple):
    """One imported name; *module* is what has to be loaded for it."""

    module: str
    name: str | None
    line: int
    lazy: bool
    for_types: bool

    @property
    def top(self) -> str:
        """The distribution-level name, the part before the first dot."""
        return self.module.partition(".")[0]


class Module(NamedTuple):
    """A module of a shipped package."""

    package: str
    path: Path
    tree: ast.Module

    @property
    def where(self) -> str:
        """Its path from the root of the project."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_command(self) -> bool:
        """Whether it belongs to the command, and so may need click and rich."""
        inside = self.path.relative_to(ROOT / self.package).parts[0]
        return self.package == CORE and inside == "command"


@cache
def folders() -> dict[str, Path]:
    """Return the packages that the wheel ships, by import name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    paths = [ROOT / path for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    return {path.name: path for path in paths}


@cache
def adapters() -> list[str]:
    """Return the names of our adapter packages."""
    return sorted(set(folders()) - {CONTRIB, CORE, SUITE})


@cache
def modules(package: str) -> tuple[Module, ...]:
    """Parse every module of *package*; an implausibly small number of them is a failure."""
    paths = sorted(folders()[package].rglob("*.py"))
    least = MODULES_MIN.get(package, ADAPTER_MODULES_MIN)
    assert len(paths) >= least, f"{package}: {len(paths)} modules found, at least {least} expected"
    return tuple(Module(package, path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


def shipped() -> Iterator[Module]:
    """Yield every module of every shipped package."""
    for package in folders():
        yield from modules(package)


def all_but_the_suite() -> Iterator[Module]:
    """Yield every module that takes part in a lock."""
    for package in (CORE, CONTRIB, *adapters()):
        yield from modules(package)


def imports(module: Module) -> Iterator[Import]:
    """Yield what *module* imports, wherever it does."""
    yield from _imports(module, module.tree, lazy=False, for_types=False)


def _imports(module: Module, node: ast.AST, *, lazy: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, None, child.lineno, lazy, for_types)
        elif isinstance(child, ast.ImportFrom):
            source = _absolute(module, child)
            for alias in child.names:
                yield Import(source, alias.name, child.lineno, lazy, for_types)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            in_guard = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from _imports(module, child, lazy=lazy or in_function, for_types=for_types or in_guard)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = [module.package, *module.path.relative_to(folders()[module.package]).parts[:-1]]
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def loaded(found: Import) -> str:
    """Return the module that *found* loads, where a name of a package may be a module itself."""
    submodule = f"{found.module}.{found.name}"
    if (
        found.name
        and found.top in folders()
        and (folders()[found.top].parent / submodule.replace(".", "/")).with_suffix(".py").is_file()
    ):
        return submodule
    return found.module


def public_names() -> set[str]:
    """Return the names in the core's ``__all__``, and ``__version__``."""
    tree = ast.parse((folders()[CORE] / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {*ast.literal_eval(node.value), "__version__"}
    raise AssertionError(f"{CORE} has no __all__")


def dotted_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield each name that *module* uses, with its imports resolved: ``time.time`` for ``from time import time``."""
    origins: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            origins.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            origins.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            head, dot, rest = ast.unparse(node).partition(".")
            yield node.lineno, origins.get(head, head) + dot + rest


def test_every_adapter_names_its_driver() -> None:
    """An adapter that these rules don't know would escape them."""
    assert adapters() == sorted(DRIVERS)


def test_the_core_imports_the_standard_library_and_pydantic_only() -> None:
    """No driver, no adapter: what the core needs is what a plain install brings."""
    allowed = sys.stdlib_module_names | {CORE, "pydantic", "pydantic_core"}
    offenders = [
        f"{module.where}:{found.line} imports {found.module}"
        for module in modules(CORE)
        for found in imports(module)
        if found.top not in allowed
        and not (found.top in COMMAND_ONLY and module.is_command)
        and not (found.top in COMMAND_ONLY and module.path.name == "__main__.py" and found.lazy)
        and not (found.top == "pytest" and module.where in PYTEST_MODULES)
    ]

    assert offenders == []


def test_the_command_is_imported_by_its_entry_point_only() -> None:
    """The modules that may need click and rich are loaded from a function of ``__main__``, and from each other."""
    command = {
        module.path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for module in modules(CORE)
        if module.is_command
    }
    offenders = [
        f"{module.where}:{found.line} imports {loaded(found)}"
        for module in modules(CORE)
        for found in imports(module)
        if loaded(found) in command
        and not module.is_command
        and not (module.path.name == "__main__.py" and found.lazy)
        and not found.for_types
    ]

    assert offenders == []


@pytest.mark.parametrize("adapter", adapters())
def test_an_adapter_imports_the_port_and_its_own_driver_only(adapter: str) -> None:
    """An adapter knows the core's port, its driver, and no other adapter."""
    allowed = sys.stdlib_module_names | {"pydantic", "pydantic_core", adapter} | DRIVERS[adapter]
    offenders = [
        f"{module.where}:{found.line} imports {loaded(found)}"
        for module in modules(adapter)
        for found in imports(module)
        if found.top not in allowed
        and loaded(found) not in ADAPTER_MAY_IMPORT
        and found.module != f"{CORE}.kit"
        and not (found.module == CORE and found.name in public_names())
    ]

    assert offenders == []


def test_a_module_for_a_framework_imports_what_users_see_and_its_framework_only() -> None:
    """Whoever has one framework needs no other, and can write such a module themselves."""
    inside = {
        module: module.path.relative_to(folders()[CONTRIB]).parts[0].removesuffix(".py") for module in modules(CONTRIB)
    }
    offenders = [
        f"{module.where}:{found.line} imports {loaded(found)}"
        for module, name in inside.items()
        for found in imports(module)
        if found.top not in sys.stdlib_module_names | FRAMEWORKS.get(name, set())
        and loaded(found) not in CONTRIB_MAY_IMPORT
        and not (found.module == CORE and found.name in public_names())
        and not any(
            loaded(found).startswith(f"{CONTRIB}.{other}")
            for other in FRAMEWORKS
            if FRAMEWORKS[other] <= FRAMEWORKS[name]
        )
    ]

    assert offenders == []
    assert set(inside.values()) - {"__init__"} == FRAMEWORKS.keys()


def test_the_suite_imports_no_adapter_and_nothing_private() -> None:
    """The conformance suite is made of public things, as it is for strangers."""
    foreign = set(adapters()).union(*DRIVERS.values())
    offenders = [
        f"{module.where}:{found.line} imports {loaded(found)}"
        for module in modules(SUITE)
        for found in imports(module)
        if found.top in foreign
        or (found.top == CORE and any(part.startswith("_") for part in loaded(found).split(".")))
    ]

    assert offenders == []


def test_the_state_machine_imports_nothing_with_effects() -> None:
    """The protocol is a function of its arguments, and so is all of ours that it imports."""
    pure = {f"{CORE}.lease"} | PURE_MAY_IMPORT_OURS
    by_name = {f"{CORE}.{module.path.stem}": module for module in modules(CORE)}
    offenders = [
        f"{by_name[name].where}:{found.line} imports {loaded(found)}"
        for name in sorted(pure & set(by_name))
        for found in imports(by_name[name])
        if not found.for_types
        and (
            (found.top == CORE and loaded(found) not in pure)
            or found.top in EFFECTS
            or (name == f"{CORE}.lease" and found.top not in PURE_MAY_IMPORT | {CORE})
        )
    ]

    assert pure & set(by_name) >= {f"{CORE}.{name}" for name in ("errors", "lease", "record", "store")}
    assert offenders == []


def test_the_engine_waits_through_its_ports_only() -> None:
    """The engine is the same for threads and for asyncio because it knows neither."""
    [engine] = [module for module in modules(CORE) if module.path.name == "engine.py"]
    offenders = [
        f"{engine.where}:{found.line} imports {found.module}"
        for found in imports(engine)
        if found.top in {"asyncio", "threading", "time"} and not found.for_types
    ]

    assert offenders == []


def test_hazard_15_wall_clock_time_is_read_where_it_is_allowed_only() -> None:
    """No decision can read a clock that somebody may set."""
    readers = {
        module.where: f"{module.where}:{line} reads {name}"
        for module in all_but_the_suite()
        for line, name in dotted_names(module)
        if name in WALL_CLOCK
    }

    assert [found for where, found in readers.items() if where not in WALL_CLOCK_READERS] == []
    assert set(WALL_CLOCK_READERS) <= set(readers), "an entry of WALL_CLOCK_READERS is not needed any more"


def test_nothing_read_from_a_store_can_run() -> None:
    """Nothing shipped unpickles or evaluates."""
    offenders = [
        f"{module.where}:{found.line} imports {found.module}"
        for module in shipped()
        for found in imports(module)
        if found.top in FORBIDDEN_IMPORTS
    ]
    offenders += [
        f"{module.where}:{line} uses {name}"
        for module in shipped()
        for line, name in dotted_names(module)
        if name in FORBIDDEN_CALLS
    ]

    assert offenders == []


def test_no_error_is_swallowed() -> None:
    """A handler for every exception does something with it."""
    broad = {"None", "BaseException", "Exception"}
    offenders = [
        f"{module.where}:{node.lineno} swallows {ast.unparse(node.type) if node.type else 'everything'}"
        for module in shipped()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and broad & set(_names(node.type))
        and all(isinstance(line, ast.Pass) or ast.unparse(line) == "..." for line in node.body)
    ]
    offenders += [
        f"{module.where}:{node.lineno} suppresses everything"
        for module in shipped()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == "suppress"
        and broad & {ast.unparse(argument) for argument in node.args}
    ]

    assert offenders == []


def _names(caught: ast.expr | None) -> list[str]:
    if isinstance(caught, ast.Tuple):
        return [ast.unparse(element) for element in caught.elts]
    return [ast.unparse(caught) if caught else "None"]


@cache
def of_any_kind() -> tuple[Module, ...]:
    """Return every module that has to be of a readable size."""
    paths = [path for folder in UNSHIPPED for path in sorted((ROOT / folder).rglob("*.py"))]
    unshipped = [path for path in paths if ROOT / "conformance_tests" / SUITE not in path.parents]
    assert len(unshipped) >= UNSHIPPED_MIN, f"{len(unshipped)} modules found, at least {UNSHIPPED_MIN} expected"
    return (*shipped(), *(Module("", path, ast.parse(path.read_text(encoding="utf-8"))) for path in unshipped))


def test_functions_are_short() -> None:
    """A function fits on a screen."""
    sizes = [
        (f"{module.where}:{node.name}", node.end_lineno - node.lineno + 1)
        for module in of_any_kind()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]

    limits = {where: LONGER_FUNCTIONS.get(where, FUNCTION_LINES_MAX) for where, _ in sizes}
    assert [f"{where} has {lines} lines" for where, lines in sizes if lines > limits[where]] == []
    assert set(LONGER_FUNCTIONS) <= set(limits)


def test_modules_are_short() -> None:
    """A module is one concept, short enough to be read at once."""
    sizes = {module.where: len(module.path.read_text(encoding="utf-8").splitlines()) for module in of_any_kind()}

    limits = {where: LONGER_MODULES.get(where, MODULE_LINES_MAX) for where in sizes}
    assert [f"{where} has {lines} lines" for where, lines in sizes.items() if lines > limits[where]] == []
    assert set(LONGER_MODULES) <= set(sizes)


@pytest.mark.parametrize("adapter", adapters())
def test_every_adapter_has_the_same_files(adapter: str) -> None:
    """Who knows one adapter finds the way in all."""
    files = {path.name for path in folders()[adapter].glob("*.py")}

    assert files >= ADAPTER_FILES


def test_importing_the_core_loads_no_driver() -> None:
    """What an import costs is the core and pydantic."""
    unwanted = COMMAND_ONLY.union({"pytest", CONTRIB, *adapters()}, *DRIVERS.values(), *FRAMEWORKS.values())
    program = "import sys, dlock_core; print(*sorted({name.partition('.')[0] for name in sys.modules}))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    tops = set(done.stdout.split())
    assert CORE in tops
    assert tops & unwanted == set()

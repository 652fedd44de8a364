"""What an installation gets: the wheel, built from the source distribution as an index would have it."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "dlock_conformance",
    "dlock_contrib",
    "dlock_core",
    "dlock_dynamodb",
    "dlock_etcd",
    "dlock_mongodb",
    "dlock_mysql",
    "dlock_postgres",
    "dlock_redis",
    "dlock_sqlite",
    "dlock_zookeeper",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = target.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    """List the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """Read the project table."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def read(wheel: Path, name: str) -> str:
    """Read one file of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        [path] = [path for path in archive.namelist() if path.endswith(f".dist-info/{name}")]
        return archive.read(path).decode()


def test_the_wheel_holds_our_packages_and_nothing_else(files: set[str]) -> None:
    """No tests, examples, proofs or tools come along."""
    tops = {name.partition("/")[0] for name in files}

    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_module(files: set[str]) -> None:
    """Nothing that an import would look for is left behind."""
    folders = [ROOT / "conformance_tests" / name if name == "dlock_conformance" else ROOT / name for name in PACKAGES]
    modules = {path.relative_to(folder.parent).as_posix() for folder in folders for path in folder.rglob("*.py")}

    assert len(modules) > len(PACKAGES)
    assert modules - files == set()


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_says_that_it_is_typed(files: set[str], package: str) -> None:
    """Type checkers read the annotations of a package that ships ``py.typed``."""
    assert f"{package}/py.typed" in files


def test_the_wheel_holds_the_licence(files: set[str]) -> None:
    """The licence goes where the code goes."""
    assert [name for name in files if name.endswith(".dist-info/licenses/LICENSE")]


def test_the_description_links_to_no_file(wheel: Path) -> None:
    """An index shows it where the repository's files are not; what was linked is there in words."""
    description = read(wheel, "METADATA").partition("\n\n")[2]

    assert "# dlock" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []
    assert "the architecture, the protocol" in description
    assert "*A recording of make demo" in description


def test_the_entry_points_are_in_the_wheel(wheel: Path, project: dict[str, Any]) -> None:
    """Every scheme, the command and the pytest plugin are found after an installation."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of entry points keep their case
    parser.read_string(read(wheel, "entry_points.txt"))
    found = {section: dict(parser[section]) for section in parser.sections()}

    assert found == {**project["entry-points"], "console_scripts": project["scripts"]}
    assert set(found["dlock.stores"]) >= {
        "dynamodb",
        "etcd",
        "memory",
        "mongodb",
        "mongodb+srv",
        "mysql",
        "mariadb",
        "postgresql",
        "redis",
        "rediss",
        "sqlite",
        "zookeeper",
    }


def test_the_oldest_drivers_are_told_as_they_are_required(project: dict[str, Any]) -> None:
    """An adapter whose driver is missing, and the page of the stores, name what the extra asks for."""
    extras = {
        name: [re.sub(r"\[\w+\]", "", each) for each in wanted]
        for name, wanted in project["optional-dependencies"].items()
    }
    packages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("dlock_*/__init__.py"))
    told = re.findall(r'importing\("([^"]+)", "(\w+)"\)', packages)
    page = (ROOT / "docs" / "stores.md").read_text(encoding="utf-8")
    drivers = re.findall(r"hrough (\S+) ([\d.]+) or newer", page)

    assert len(told) == len(drivers) == 7
    for text, extra in told:
        assert set(re.findall(r"\S+>=[\d.]+", text)) <= set(extras[extra]), text
    for name, version in drivers:
        assert f"{name.removesuffix('-py')}>={version}" in [each for wanted in extras.values() for each in wanted], name


def test_a_plain_install_needs_pydantic_only(wheel: Path) -> None:
    """Every other requirement belongs to an extra."""
    lines = read(wheel, "METADATA").partition("\n\n")[0].splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]

    assert [line for line in required if "extra ==" not in line] == ["pydantic>=2.7"]

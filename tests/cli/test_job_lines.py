"""The lines for cron, systemd and Kubernetes in the documentation: each starts a job once for its slot, or a candidate of an election."""

from __future__ import annotations

import configparser
import shlex
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]  # it comes with myst-parser

from tests.cli.support import finish, line
from tests.documentation import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.support import Shell

URL = "redis://locks/0"


def on_the_page(page: str, language: str, holding: str) -> str:
    """Return the block of the page that holds this text."""
    [found] = [block.text for block in blocks(language) if block.page.name == page and holding in block.text]
    return found


NIGHT = 1768435200  # the midnight of 2026-01-15, in UTC


def with_programs(shell: Shell) -> dict[str, str]:
    """Return the environment of the tests, with ``dlock`` and the programs of the lines in PATH."""
    programs = shell.folder / "bin"
    programs.mkdir(exist_ok=True)
    lines = {
        "dlock": f'exec {sys.executable} -m dlock_core "$@"',
        "make": 'echo "made $*"',
        "date": f'exec {shutil.which("date")} -d "@${{NOW:-$({shutil.which("date")} +%s)}}" "$@"',
        "billing-server": "trap 'exit 0' TERM; echo serving; while :; do sleep 0.1; done",
    }
    for name, text in lines.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return {**shell.environment, "PATH": f"{programs}:{shell.environment['PATH']}"}


def run(shell: Shell, argv: list[str], now: int | None = None) -> tuple[int, str]:
    """Run *argv* at the store of the tests, at *now* for its ``date``; return its code and what it printed."""
    environment = with_programs(shell) | ({} if now is None else {"NOW": str(now)})
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout


def runs_once(shell: Shell, argv: list[str]) -> None:
    """Check that the first run makes the report, and that the second finds it made."""
    assert run(shell, argv) == (0, "made report\n")
    assert run(shell, argv) == (0, "")


def runs_late_and_on_time(shell: Shell, argv: list[str]) -> None:
    """Check that a run at half past midnight, for a 02:00 that was missed, leaves the coming 02:00 due for a host of any clock."""
    on_time = NIGHT + 2 * 3600
    assert run(shell, argv, NIGHT + 1800) == (0, "made report\n")
    assert run(shell, argv, on_time - 5) == (0, "made report\n")
    assert run(shell, argv, on_time + 5) == (0, "")


def leads_until_it_is_told_to_end(shell: Shell, argv: list[str]) -> None:
    """Check that the candidate's command serves, and that both end at a TERM to ``dlock`` alone."""
    programs = [each.removeprefix("/usr/bin/") for each in argv]
    process = subprocess.Popen(
        programs, env=with_programs(shell), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert line(process.stdout) == "serving"

    process.send_signal(signal.SIGTERM)

    assert finish(process)[0] == 0


def test_line_of_cron_runs_once(shell: Shell) -> None:
    """Five fields and a user stand before the command, in which cron takes back the backslash before each %."""
    *_, user, command = on_the_page("cron.md", "text", "dlock once").split(maxsplit=6)
    assert user == "root"
    assert URL in command

    runs_once(shell, ["sh", "-c", command.replace(r"\%", "%").replace(URL, shell.url)])


def test_service_of_systemd_runs_once(shell: Shell, tmp_path: Path) -> None:
    """Systemd itself finds nothing wrong with the units, where it is installed; in ExecStart it takes %% for %."""
    service, timer = on_the_page("jobs.md", "ini", "dlock once"), on_the_page("jobs.md", "ini", "OnCalendar")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(service)
    assert parser["Service"]["Environment"] == f"DLOCK_URL={URL}"

    argv = shlex.split(parser["Service"]["ExecStart"].replace("%%", "%"))
    runs_late_and_on_time(shell, argv)
    runs_once(shell, argv)

    if systemd := shutil.which("systemd-analyze"):
        for name, text in (("service", service), ("timer", timer)):
            (tmp_path / f"nightly-report.{name}").write_text(text)
        units = [str(tmp_path / f"nightly-report.{name}") for name in ("service", "timer")]
        told = subprocess.run([systemd, "verify", *units], capture_output=True, text=True, check=False)
        assert (told.returncode, told.stderr) == (0, "")


def test_cron_job_of_kubernetes_runs_once(shell: Shell) -> None:
    """The command of its only container."""
    job: Any = yaml.safe_load(on_the_page("kubernetes.md", "yaml", "dlock once"))
    assert (job["kind"], job["spec"]["schedule"]) == ("CronJob", "0 2 * * *")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["env"] == [{"name": "DLOCK_URL", "value": URL}]
    assert pod["restartPolicy"] in ("OnFailure", "Never")

    runs_late_and_on_time(shell, container["command"])
    runs_once(shell, container["command"])


def test_service_of_systemd_leads(shell: Shell) -> None:
    """%H stands for the name of the host."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(on_the_page("leader-election.md", "ini", "dlock elect"))

    leads_until_it_is_told_to_end(shell, shlex.split(parser["Service"]["ExecStart"].replace("%H", "host")))


def test_deployment_of_kubernetes_leads(shell: Shell) -> None:
    """The command of its only container."""
    deployment: Any = yaml.safe_load(on_the_page("leader-election.md", "yaml", "elect"))
    [container] = deployment["spec"]["template"]["spec"]["containers"]

    leads_until_it_is_told_to_end(shell, container["command"])


def test_job_that_skips_waits_as_long_as_it_is_told(shell: Shell) -> None:
    """With a time-out it skips only if the lock is held until then."""
    shell.holding(script="sleep 1")

    done = shell.run("run", "--skip-if-held", "--timeout", "30", "k", "--", "echo", "ran")

    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr

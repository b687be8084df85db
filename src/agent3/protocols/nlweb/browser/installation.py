"""Finding a Chromium on this machine, and getting one where it is missing.

The order is: AGENT3_BROWSER, Playwright's own download, then chromium-headless-shell, chromium and chrome on PATH. It
knows files and commands only: it never imports Playwright and starts no browser beyond asking for its version.

    python -m agent3.protocols.nlweb.browser.installation find       prints the path of the browser that would be used
    python -m agent3.protocols.nlweb.browser.installation ensure     gets one if there is none
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent3.errors import SetupError
from agent3.settings import data_folder

__all__ = ["Browser", "Host", "Kind", "ensure", "find", "main", "require"]

Kind = Literal["headless-shell", "chromium", "chrome"]
Announce = Callable[[str], object]

PACKAGE = "chromium-headless-shell"
DOWNLOAD_SECONDS = 300.0
APT_SECONDS = 300.0
START_SECONDS = 30.0
LOG = "browser.log"

# The light one first: it costs a third of the time and memory of a full Chromium per page.
ON_PATH: tuple[tuple[str, Kind], ...] = (
    ("chromium-headless-shell", "headless-shell"),
    ("chrome-headless-shell", "headless-shell"),
    ("chromium", "chromium"),
    ("chromium-browser", "chromium"),
    ("google-chrome", "chrome"),
    ("google-chrome-stable", "chrome"),
    ("chrome", "chrome"),
)
# How Playwright's folders and the executables in them are called, over its versions and the three platforms.
DOWNLOADED: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("chromium_headless_shell-", "headless-shell", ("chrome-headless-shell", "headless_shell")),
    (
        "chromium-",
        "chromium",
        ("chrome", "*.app/Contents/MacOS/Google Chrome for Testing", "*.app/Contents/MacOS/Chromium"),
    ),
)
REMEDIES = (
    f"Either download Playwright's own: '{Path(sys.executable).name} -m playwright install --only-shell chromium' "
    "(after pip install 'agent3[browser]'), "
    f"or install one that this system offers, on Debian: 'apt-get install {PACKAGE}'. "
    "AGENT3_BROWSER=/path/to/chromium names one that is somewhere else."
)


@dataclass(frozen=True, slots=True)
class Browser:
    """An executable Chromium; ``kind`` says which of its forms it is."""

    path: Path
    kind: Kind


@dataclass(frozen=True, slots=True)
class Host:
    """What there is to work with: a test hands in another one."""

    environ: Mapping[str, str]
    playwright: tuple[str, ...] | None
    """The command that starts Playwright's installer; None without the package."""
    root: bool

    @classmethod
    def this(cls) -> Host:
        """The machine and process that this runs in."""
        there = importlib.util.find_spec("playwright") is not None
        command = (sys.executable, "-m", "playwright") if there else None
        return cls(os.environ, command, hasattr(os, "geteuid") and os.geteuid() == 0)

    def which(self, name: str) -> str | None:
        """Where PATH leads for a command."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def may_apt(self) -> bool:
        """Whether packages of the system can, and may, be installed."""
        return self.root and self.which("apt-get") is not None and not self.environ.get("AGENT3_NO_APT")


def find(host: Host | None = None) -> Browser | None:
    """The browser that would be used, or None. SetupError if AGENT3_BROWSER names something that cannot be run."""
    host = host or Host.this()
    if given := host.environ.get("AGENT3_BROWSER"):
        return _given(given, host)
    return next(_downloaded(host), None) or next(_on_path(host), None)


def require(host: Host | None = None) -> Browser:
    """The browser that would be used; SetupError with the two remedies if there is none."""
    if browser := find(host):
        return browser
    raise SetupError(f"No Chromium found on this machine. {REMEDIES}")


def ensure(announce: Announce = print, host: Host | None = None) -> Browser:
    """The browser that would be used, got first if there is none. Bounded in time, but that is minutes.

    What changes the machine is announced before it happens. AGENT3_NO_APT=1 forbids installing system packages.
    SetupError if nothing helped.
    """
    host = host or Host.this()
    if browser := find(host):
        return browser
    if host.playwright:
        _download(host.playwright, host, announce)
    if not find(host) and host.may_apt():
        _install(host, announce)
    return require(host)


def _given(name: str, host: Host) -> Browser:
    path = host.which(str(Path(name).expanduser()))
    if path is None:
        raise SetupError(
            f"AGENT3_BROWSER={name}: there is no such executable. Correct it, or unset it to have a browser looked for."
        )
    return Browser(Path(path), _kind(Path(path).name.lower()))


def _kind(name: str) -> Kind:
    if "headless" in name:
        return "headless-shell"
    return "chromium" if "chromium" in name else "chrome"


def _downloaded(host: Host) -> Iterator[Browser]:
    """Playwright's complete downloads, the newest revision of each form first."""
    for prefix, kind, names in DOWNLOADED:
        for folder in _revisions(_download_folder(host), prefix):
            for name in names:
                for path in (*folder.glob(f"*/{name}"), *folder.glob(f"*/{name}.exe")):
                    if os.access(path, os.X_OK):
                        yield Browser(path, kind)


def _revisions(folder: Path, prefix: str) -> list[Path]:
    # Playwright leaves this marker when everything is unpacked: without it, the folder is half a browser.
    complete = [path.parent for path in folder.glob(f"{prefix}*/INSTALLATION_COMPLETE")]
    numbered = [path for path in complete if path.name.removeprefix(prefix).isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix(prefix)), reverse=True)


def _download_folder(host: Host) -> Path:
    given = host.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    if given == "0":  # Playwright's word for "inside the package"
        spec = importlib.util.find_spec("playwright")
        inside = Path(spec.origin).parent if spec and spec.origin else Path()
        return inside / "driver" / "package" / ".local-browsers"
    return Path(given) if given else _cache_folder(host.environ) / "ms-playwright"


def _cache_folder(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache")


def _on_path(host: Host) -> Iterator[Browser]:
    for name, kind in ON_PATH:
        if path := host.which(name):
            yield Browser(Path(path), kind)


def _download(playwright: Sequence[str], host: Host, announce: Announce) -> None:
    announce("No Chromium found: downloading Playwright's own …")
    environ = {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000", **host.environ}
    install = [*playwright, "install", "--only-shell", "--no-progress", "chromium"]
    failure = _run(install, environ, DOWNLOAD_SECONDS)
    if failure is not None:
        announce(f"That download did not succeed: {failure}")
    elif (browser := find(host)) and (missing := _run([str(browser.path), "--version"], environ, START_SECONDS)):
        announce(f"{browser.path} does not start: {missing}")
        _add_libraries(playwright, host, announce)


def _add_libraries(playwright: Sequence[str], host: Host, announce: Announce) -> None:
    """A bare system lacks libraries that the downloaded browser links against; Playwright knows which."""
    command = [*playwright, "install-deps", "chromium-headless-shell"]
    if not host.may_apt():
        announce(f"An administrator can add the libraries that it needs: {' '.join(command)}")
        return
    announce("Installing the system libraries that it needs with apt-get (AGENT3_NO_APT=1 would forbid it) …")
    failure = _run(command, {**host.environ, "DEBIAN_FRONTEND": "noninteractive"}, APT_SECONDS)
    if failure is not None:
        announce(f"That did not succeed: {failure}")


def _install(host: Host, announce: Announce) -> None:
    announce(f"Installing the system package {PACKAGE} with apt-get (AGENT3_NO_APT=1 would forbid it) …")
    environ = {**host.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = [host.which("apt-get") or "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    steps = ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", PACKAGE])
    # A failed update is no reason to stop: one broken source of many fails it, and the package may still be known.
    for step in steps:
        failure = _run(step, environ, APT_SECONDS)
        if failure is not None:
            announce(f"{' '.join(step)} did not succeed: {failure}")


def _run(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> str | None:
    """Run it to its end or to the end of its time, with all that it started; why it failed, or None."""
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - fixed commands, no shell, nothing from outside
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as wrong:
            return str(wrong)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"no end within {seconds:.0f} seconds"
        except BaseException:  # Ctrl-C does not reach the other session
            _end(process)
            raise
        output.seek(0)
        return None if code == 0 else _reason(output.read().decode("utf-8", "replace").splitlines(), code)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group, then insist."""
    if os.name != "posix":
        process.kill()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10.0)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _reason(lines: Iterable[str], code: int) -> str:
    """The first line that calls itself an error, else the last one: the rest is a stack trace or progress."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if line.startswith(("Error", "E:"))]
    return (errors or said[-1:] or [f"exit code {code}"])[0]


def main(arguments: Sequence[str] | None = None, announce: Announce = print, host: Host | None = None) -> int:
    """The command line; 0 if there is a browser, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m agent3.protocols.nlweb.browser.installation", description="Find or get a Chromium."
    )
    parser.add_argument("what", choices=("find", "ensure"))
    parser.add_argument(
        "--background",
        action="store_true",
        help=f"say one line if a browser must be got, and the rest into {LOG} in the data folder",
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.what == "find":
            announce(str(require(host).path))
        elif chosen.background:
            _ensure_quietly(announce, host or Host.this())
        else:
            announce(str(ensure(announce, host).path))
    except SetupError as wrong:
        announce(wrong.message)
        return 1
    return 0


def _ensure_quietly(announce: Announce, host: Host) -> None:
    if find(host):
        return
    log = data_folder(host.environ) / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    announce(
        f"No Chromium found; getting one in the background: Playwright's own or, as root on Debian, {PACKAGE}. "
        f"Log: {log}. AGENT3_NO_BROWSER=1 turns this off, AGENT3_NO_APT=1 leaves the system's packages alone."
    )
    with log.open("a", encoding="utf-8", buffering=1) as file:
        try:
            file.write(f"{ensure(lambda line: file.write(line + chr(10)), host).path}\n")
        except SetupError as wrong:
            file.write(f"{wrong.message}\n")
            raise


if __name__ == "__main__":
    sys.exit(main())

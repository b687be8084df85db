"""Find a Chromium on this machine, and install one if there is none.

The order is: AGENT3_BROWSER, Playwright's own download, then chromium-headless-shell, chromium and chrome on PATH. It
knows files and commands only: it never imports Playwright, and starts a browser only to ask for its version.

    python -m agent3.protocols.nlweb.browser.installation find       prints the path of the browser that would be used
    python -m agent3.protocols.nlweb.browser.installation ensure     installs one if there is none
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent3.errors import SetupError
from agent3.protocols.nlweb.browser.sdk import choose_environment
from agent3.settings import data_folder

__all__ = ["Browser", "Host", "Kind", "ensure", "find", "main", "require"]

Kind = Literal["headless-shell", "chromium", "chrome"]
Announce = Callable[[str], object]

PACKAGE = "chromium-headless-shell"
DOWNLOAD_SECONDS = 300.0
APT_SECONDS = 300.0
START_SECONDS = 30.0
LOG = "browser.log"

# The light one first: per page it needs a third of the time and memory of a full Chromium.
ON_PATH: tuple[tuple[str, Kind], ...] = (
    ("chromium-headless-shell", "headless-shell"),
    ("chrome-headless-shell", "headless-shell"),
    ("chromium", "chromium"),
    ("chromium-browser", "chromium"),
    ("google-chrome", "chrome"),
    ("google-chrome-stable", "chrome"),
    ("chrome", "chrome"),
)
# The names of Playwright's folders and of the executables in them, over its versions and the three platforms.
DOWNLOADED: tuple[tuple[str, Kind, tuple[str, ...]], ...] = (
    ("chromium_headless_shell-", "headless-shell", ("chrome-headless-shell", "headless_shell")),
    (
        "chromium-",
        "chromium",
        ("chrome", "*.app/Contents/MacOS/Google Chrome for Testing", "*.app/Contents/MacOS/Chromium"),
    ),
)
REMEDIES = (
    f"Either download Playwright's own: '{Path(sys.executable).name} -m playwright install --only-shell "
    "chromium' (after pip install 'agent3[browser]'), or install a system package, on Debian: 'apt-get "
    f"install {PACKAGE}'. If it is elsewhere, set AGENT3_BROWSER=/path/to/chromium."
)


@dataclass(frozen=True, slots=True)
class Browser:
    """An executable Chromium of one of three kinds."""

    path: Path
    kind: Kind


@dataclass(frozen=True, slots=True)
class Host:
    """What this machine offers; tests pass another one."""

    environ: Mapping[str, str]
    playwright: tuple[str, ...] | None
    """The command of Playwright's installer; None without the package."""
    root: bool

    @classmethod
    def this(cls) -> Host:
        """The real one."""
        installed = importlib.util.find_spec("playwright") is not None
        command = (sys.executable, "-m", "playwright") if installed else None
        return cls(os.environ, command, hasattr(os, "geteuid") and os.geteuid() == 0)

    def which(self, name: str) -> str | None:
        """The path of a command, or None."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def may_apt(self) -> bool:
        """Whether system packages can and may be installed."""
        return self.root and self.which("apt-get") is not None and not self.environ.get("AGENT3_NO_APT")


def find(host: Host | None = None) -> Browser | None:
    """The browser that would be used, or None. SetupError if AGENT3_BROWSER names something that cannot be run."""
    host = host or Host.this()
    if given := host.environ.get("AGENT3_BROWSER"):
        path = host.which(str(Path(given).expanduser()))
        if path is None:
            raise SetupError(
                f"AGENT3_BROWSER={given}: not an executable file. Correct it, or unset it to search for one."
            )
        name = Path(path).name.lower()
        kind: Kind = "headless-shell" if "headless" in name else "chromium" if "chromium" in name else "chrome"
        return Browser(Path(path), kind)
    if downloaded := next(_list_downloads(host), None):
        return downloaded
    for name, kind in ON_PATH:
        if path := host.which(name):
            return Browser(Path(path), kind)
    return None


def require(host: Host | None = None) -> Browser:
    """The browser that would be used; SetupError with the remedies if there is none."""
    if browser := find(host):
        return browser
    raise SetupError(f"No Chromium found on this machine. {REMEDIES}")


def ensure(announce: Announce = print, host: Host | None = None) -> Browser:
    """The browser that would be used, installed first if there is none. That may take minutes, but not forever.

    Whatever changes the machine is announced first. AGENT3_NO_APT=1 forbids installing system packages. SetupError if
    nothing helped.
    """
    host = host or Host.this()
    if browser := find(host):
        return browser
    if host.playwright:
        _download(host.playwright, host, announce)
    if not find(host) and host.may_apt():
        announce(f"Installing the system package {PACKAGE} with apt-get (AGENT3_NO_APT=1 prevents that) …")
        apt = [host.which("apt-get") or "apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
        # A failed update does not stop the installation: one broken source of many fails it, and the package may still
        # be known.
        for step in ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", PACKAGE]):
            failure = _run(step, {**host.environ, "DEBIAN_FRONTEND": "noninteractive"}, APT_SECONDS)
            if failure is not None:
                announce(f"{' '.join(step)} failed: {failure}")
    return require(host)


def _list_downloads(host: Host) -> Iterator[Browser]:
    """Playwright's complete downloads, the light kind first, then the newest revision."""
    given = host.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    home = Path(host.environ.get("HOME") or Path.home())
    if given == "0":  # Playwright's way to say "inside the package"
        spec = importlib.util.find_spec("playwright")
        package = Path(spec.origin).parent if spec and spec.origin else Path()
        folder = package / "driver" / "package" / ".local-browsers"
    elif given:
        folder = Path(given)
    elif sys.platform == "darwin":
        folder = home / "Library" / "Caches" / "ms-playwright"
    elif sys.platform == "win32":
        folder = Path(host.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ms-playwright"
    else:
        folder = Path(host.environ.get("XDG_CACHE_HOME") or home / ".cache") / "ms-playwright"
    for prefix, kind, names in DOWNLOADED:
        # Playwright writes the marker when everything is unpacked: without it, the folder is half a browser.
        complete = [marker.parent for marker in folder.glob(f"{prefix}*/INSTALLATION_COMPLETE")]
        revisions = {path: path.name.removeprefix(prefix) for path in complete}
        numbered = [path for path in complete if revisions[path].isdecimal()]
        for revision in sorted(numbered, key=lambda path: int(revisions[path]), reverse=True):
            for name in names:
                for path in (*revision.glob(f"*/{name}"), *revision.glob(f"*/{name}.exe")):
                    if os.access(path, os.X_OK):
                        yield Browser(path, kind)


def _download(playwright: Sequence[str], host: Host, announce: Announce) -> None:
    """Download Playwright's browser, and the system libraries that it lacks on a bare system."""
    announce("No Chromium found: downloading Playwright's own …")
    environ = {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000", **host.environ}
    failure = _run([*playwright, "install", "--only-shell", "--no-progress", "chromium"], environ, DOWNLOAD_SECONDS)
    if failure is not None:
        announce(f"The download failed: {failure}")
        return
    browser = find(host)
    missing = (
        _run([str(browser.path), "--version"], choose_environment(host.environ), START_SECONDS) if browser else None
    )
    if browser is None or missing is None:
        return
    announce(f"{browser.path} does not start: {missing}")
    install_libraries = [*playwright, "install-deps", "chromium-headless-shell"]
    if not host.may_apt():
        announce(f"An administrator can install the missing libraries: {' '.join(install_libraries)}")
        return
    announce("Installing the missing system libraries with apt-get (AGENT3_NO_APT=1 prevents that) …")
    failure = _run(install_libraries, {**host.environ, "DEBIAN_FRONTEND": "noninteractive"}, APT_SECONDS)
    if failure is not None:
        announce(f"That failed: {failure}")


def _run(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> str | None:
    """Run a command to its end or for so long, then kill it with all that it started; why it failed, or None."""
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
        except OSError as error:
            return str(error)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            return f"not finished within {seconds:.0f} seconds"
        except BaseException:  # Ctrl-C does not reach the other session
            _kill(process)
            raise
        if code == 0:
            return None
        output.seek(0)
        lines = [line.strip() for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        # The first line that calls itself an error, else the last one: the rest is progress or a stack trace.
        errors = [line for line in lines if line.startswith(("Error", "E:"))]
        return (errors or lines[-1:] or [f"exit code {code}"])[0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Terminate the whole process group, then kill it."""
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


def main(arguments: Sequence[str] | None = None, announce: Announce = print, host: Host | None = None) -> int:
    """The command line; 0 if there is a browser, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m agent3.protocols.nlweb.browser.installation", description="Find or install a Chromium."
    )
    parser.add_argument("what", choices=("find", "ensure"))
    parser.add_argument(
        "--background",
        action="store_true",
        help=f"print one line if a browser must be installed, and write the rest to {LOG} in the data folder",
    )
    chosen = parser.parse_args(arguments)
    host = host or Host.this()
    try:
        if chosen.what == "find":
            announce(str(require(host).path))
        elif not chosen.background:
            announce(str(ensure(announce, host).path))
        elif not find(host):
            path = data_folder(host.environ) / LOG
            path.parent.mkdir(parents=True, exist_ok=True)
            announce(
                "No Chromium found; installing one in the background (Playwright's own or, as root on "
                f"Debian, {PACKAGE}). Log: {path}. AGENT3_NO_BROWSER=1 turns this off; AGENT3_NO_APT=1 "
                "leaves system packages alone."
            )
            with path.open("a", encoding="utf-8", buffering=1) as log:

                def note(line: str) -> None:
                    log.write(f"{line}\n")

                try:
                    note(str(ensure(note, host).path))
                except SetupError as error:
                    note(error.message)
                    raise
    except SetupError as error:
        announce(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Finding and getting a Chromium, with executables that the tests write themselves: no download, no system package."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from agent3.errors import SetupError
from agent3.protocols.nlweb.browser import installation as browsers
from agent3.protocols.nlweb.browser.installation import Browser, Host

SHELL = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.fixture
def host(tmp_path: Path, bin_folder: Path) -> Host:
    """A bare machine: nothing on PATH, an empty home, no Playwright, not root."""
    environ = {
        "PATH": str(bin_folder),
        "HOME": str(tmp_path / "home"),
        "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "downloads"),
        "AGENT3_DATA": str(tmp_path / "data"),
    }
    return Host(environ, playwright=None, root=False)


def with_environ(host: Host, **more: str) -> Host:
    return Host({**host.environ, **more}, host.playwright, host.root)


def program(path: Path, text: str = SHELL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path


def download(tmp_path: Path, folder: str, executable: str, *, complete: bool = True) -> Path:
    path = program(tmp_path / "downloads" / folder / executable)
    if complete:
        (tmp_path / "downloads" / folder / "INSTALLATION_COMPLETE").touch()
    return path


def test_a_bare_machine_has_none_and_the_error_names_both_remedies(host: Host) -> None:
    assert browsers.find(host) is None
    with pytest.raises(
        SetupError, match=r"playwright install --only-shell chromium.*apt-get install chromium-headless"
    ):
        browsers.require(host)


def test_the_order_is_the_given_one_then_playwrights_then_path(tmp_path: Path, bin_folder: Path, host: Host) -> None:
    expected: list[Browser] = []

    def add(path: Path, kind: browsers.Kind) -> None:
        expected.insert(0, Browser(path, kind))
        assert browsers.find(host) == expected[0]

    add(program(bin_folder / "chrome"), "chrome")
    add(program(bin_folder / "google-chrome"), "chrome")
    add(program(bin_folder / "chromium"), "chromium")
    add(program(bin_folder / "chromium-headless-shell"), "headless-shell")
    add(download(tmp_path, "chromium-1200", "chrome-linux64/chrome"), "chromium")
    add(
        download(tmp_path, "chromium_headless_shell-1200", "chrome-headless-shell-linux64/chrome-headless-shell"),
        "headless-shell",
    )
    given = program(tmp_path / "my own" / "chromium")
    assert browsers.find(with_environ(host, AGENT3_BROWSER=str(given))) == Browser(given, "chromium")


def test_the_newest_complete_download_is_taken(tmp_path: Path, host: Host) -> None:
    download(tmp_path, "chromium_headless_shell-999", "chrome-linux/headless_shell")
    newest = download(tmp_path, "chromium_headless_shell-1254", "chrome-linux/headless_shell")
    download(tmp_path, "chromium_headless_shell-1300", "chrome-linux/headless_shell", complete=False)
    assert browsers.find(host) == Browser(newest, "headless-shell")


def test_a_download_lies_in_the_users_cache_unless_told_otherwise(tmp_path: Path) -> None:
    host = Host({"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}, None, root=False)
    caches = {"darwin": tmp_path / "Library" / "Caches", "linux": tmp_path}
    folder = caches.get(sys.platform, tmp_path) / "ms-playwright" / "chromium-7"
    path = program(folder / "chrome-linux" / "chrome")
    (folder / "INSTALLATION_COMPLETE").touch()
    assert browsers.find(host) == Browser(path, "chromium")


def test_a_given_browser_that_is_not_there_is_an_error_and_not_passed_over(bin_folder: Path, host: Host) -> None:
    program(bin_folder / "chromium")
    with pytest.raises(SetupError, match=r"AGENT3_BROWSER=/no/such/chromium"):
        browsers.find(with_environ(host, AGENT3_BROWSER="/no/such/chromium"))


def test_nothing_is_done_where_a_browser_is_found(bin_folder: Path, host: Host) -> None:
    there = program(bin_folder / "chromium")
    said: list[str] = []
    eager = Host(host.environ, playwright=("/no/such/command",), root=True)
    assert browsers.ensure(said.append, eager).path == there
    assert said == []


def installer(tmp_path: Path) -> Path:
    """Stands where Playwright's installer would: notes its arguments, and puts a browser where Playwright would."""
    folder = tmp_path / "downloads" / "chromium_headless_shell-1"
    return program(
        tmp_path / "installer",
        "#!/bin/sh\nPATH=/bin:/usr/bin\n"
        f'echo "$@" >>"{tmp_path}/installed"\n'
        f'mkdir -p "{folder}/chrome-linux"\n'
        f'printf "#!/bin/sh\\nexit 0\\n" >"{folder}/chrome-linux/headless_shell"\n'
        f'chmod +x "{folder}/chrome-linux/headless_shell"\n'
        f'touch "{folder}/INSTALLATION_COMPLETE"\n',
    )


def apt(tmp_path: Path, bin_folder: Path) -> None:
    """Stands where apt-get would: notes its arguments, and brings the browser on install."""
    program(
        bin_folder / "apt-get",
        "#!/bin/sh\nPATH=/bin:/usr/bin\n"
        f'echo "$DEBIAN_FRONTEND $*" >>"{tmp_path}/apt"\n'
        f'case "$*" in *" install "*) cp "{bin_folder}/apt-get" "{bin_folder}/chromium-headless-shell" ;; esac\n',
    )


def test_playwrights_own_is_downloaded_first(tmp_path: Path, bin_folder: Path, host: Host) -> None:
    apt(tmp_path, bin_folder)
    said: list[str] = []
    able = Host(host.environ, playwright=(str(installer(tmp_path)),), root=True)
    assert browsers.ensure(said.append, able).path.name == "headless_shell"
    assert (tmp_path / "installed").read_text() == "install --only-shell --no-progress chromium\n"
    assert not (tmp_path / "apt").exists()
    assert "downloading" in said[0]


def test_a_download_that_does_not_start_gets_its_libraries(tmp_path: Path, bin_folder: Path, host: Host) -> None:
    apt(tmp_path, bin_folder)
    broken = installer(tmp_path)
    broken.write_text(broken.read_text().replace("exit 0", "echo Error: no libnss3 >&2; exit 127"), "utf-8")
    said: list[str] = []
    browsers.ensure(said.append, Host(host.environ, playwright=(str(broken),), root=True))
    assert (tmp_path / "installed").read_text().splitlines()[1] == "install-deps chromium-headless-shell"
    assert any("does not start: Error: no libnss3" in line for line in said)


def test_as_root_on_debian_a_failed_download_is_followed_by_the_package(
    tmp_path: Path, bin_folder: Path, host: Host
) -> None:
    apt(tmp_path, bin_folder)
    failing = program(
        tmp_path / "fails", "#!/bin/sh\necho progress\necho 'Error: no network'\necho at x.js:1\nexit 1\n"
    )
    said: list[str] = []
    got = browsers.ensure(said.append, Host(host.environ, playwright=(str(failing),), root=True))
    assert got == Browser(bin_folder / "chromium-headless-shell", "headless-shell")
    steps = (tmp_path / "apt").read_text().splitlines()
    assert [step.split()[0] for step in steps] == ["noninteractive", "noninteractive"]
    assert steps[0].endswith(" update")
    assert steps[1].endswith(" install -y --no-install-recommends chromium-headless-shell")
    assert said[1] == "The download failed: Error: no network"
    assert "apt-get" in said[2]


@pytest.mark.parametrize(("root", "environ"), [(False, {}), (True, {"AGENT3_NO_APT": "1"})])
def test_the_system_is_left_alone_without_root_or_with_the_opt_out(
    tmp_path: Path, bin_folder: Path, host: Host, root: bool, environ: dict[str, str]
) -> None:
    apt(tmp_path, bin_folder)
    with pytest.raises(SetupError, match="No Chromium found"):
        browsers.ensure(lambda line: None, Host({**host.environ, **environ}, None, root))
    assert not (tmp_path / "apt").exists()


def ends_within(fifo: Path, seconds: float) -> bool:
    """Whether the last writer of the fifo is gone, or goes in that time."""
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return bool(select.select([reader], [], [], seconds)[0]) and os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    slow = program(tmp_path / "slow", f'#!/bin/sh\nsleep 60 >"{fifo}" &\nread line <"{fifo}"\n')
    assert browsers._run([str(slow)], {"PATH": "/bin:/usr/bin"}, 1.0) == "not finished within 1 seconds"
    assert ends_within(fifo, 60.0)


def test_the_command_line_finds_and_says_what_is_missing(bin_folder: Path, host: Host) -> None:
    said: list[str] = []
    assert browsers.main(["find"], said.append, host) == 1
    there = program(bin_folder / "chromium")
    assert browsers.main(["find"], said.append, host) == 0
    assert browsers.main(["ensure"], said.append, host) == 0
    assert said[1:] == [str(there), str(there)]


def test_in_the_background_one_line_is_said_and_the_log_has_the_rest(tmp_path: Path, host: Host) -> None:
    said: list[str] = []
    able = Host(host.environ, playwright=(str(installer(tmp_path)),), root=False)
    assert browsers.main(["ensure", "--background"], said.append, able) == 0
    assert len(said) == 1
    assert "AGENT3_NO_BROWSER=1" in said[0]
    assert "downloading" in (tmp_path / "data" / "browser.log").read_text()
    assert browsers.main(["ensure", "--background"], said.append, able) == 0
    assert len(said) == 1, "with a browser there, nothing is said"

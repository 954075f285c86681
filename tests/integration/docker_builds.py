"""Build what a Dockerfile builds, in a folder and without Docker, as far as files and pip are concerned.

COPY copies what the builder would get (`.dockerignore` respected); RUN runs the lines that call pip. Absolute paths
lead into one folder that all stages share, so that what a later stage copies has to be there under the same name.
Users, ports and base images are not imitated.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ABSOLUTE = re.compile(r"(?<![\w.$/}])/(?=(?:opt|source|var|wheel)\b)")
"""A path of the image, where a word begins."""

IS_OF_PIP = re.compile(r"PIP_|SSL_CERT_|REQUESTS_CA_BUNDLE$|(https?|all|no)_proxy$", re.IGNORECASE)
"""A variable that says from where, and through what, pip may fetch on this machine."""

LONGEST_S = 400.0


def read_instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Its instructions with their arguments, continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def read_ignored(context: Path) -> list[tuple[bool, re.Pattern[str]]]:
    """The patterns of .dockerignore, each with whether it leaves out (or, with `!`, takes in again); one that leads to
    a folder means all that is in it.
    """
    patterns = []
    for line in (context / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            name = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
            patterns.append((not line.startswith("!"), re.compile(f"{name}(?:/.*)?")))
    return patterns


def send_context(context: Path, sent: Path) -> None:
    """Copy what Docker's builder is sent."""
    ignored = read_ignored(context)

    def is_left_out(path: str) -> bool:
        """The last pattern that fits decides, as with Docker."""
        return next((leaves_out for leaves_out, pattern in reversed(ignored) if pattern.fullmatch(path)), False)

    def leave_out(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name).relative_to(context).as_posix() for name in names}
        return {name for name, path in paths.items() if is_left_out(path)}

    shutil.copytree(context, sent, ignore=leave_out)


@dataclass
class Build:
    """A build: `root` is the image's file system, `path` where its programs are found."""

    context: Path
    root: Path
    path: str
    work: Path = field(init=False)
    command: list[str] = field(init=False, default_factory=list)

    def run(self, dockerfile: Path) -> None:
        """Carry out its instructions."""
        self.work = self.root
        for word, rest in read_instructions(dockerfile):
            if word == "WORKDIR":
                self.work = self._inside(rest)
                self.work.mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(rest.split())
            elif word == "RUN" and re.search(r"\bpip\b", rest):
                self._run(rest)
            elif word in {"ENTRYPOINT", "CMD"}:
                words = shlex.split(rest.strip("[]").replace(",", " "))
                self.command += [self._map(one) for one in words]

    def _map(self, text: str) -> str:
        return ABSOLUTE.sub(f"{self.root}/", text)

    def _inside(self, name: str) -> Path:
        return Path(self._map(name)) if name.startswith("/") else self.work / name

    def _copy(self, words: list[str]) -> None:
        if words[0].startswith("--from="):
            made, wanted = (self._inside(word) for word in words[1:])
            assert made == wanted, "a stage that moves what another one made is not imitated"
            assert made.exists(), made
            return
        *sources, last = words
        target = self._inside(last)
        for source in sources:
            found = list(self.context.glob(source)) if source != "." else [self.context]
            assert found, f"COPY {source}: the builder is sent no such file"
            for path in found:
                if path.is_dir():
                    shutil.copytree(path, target, dirs_exist_ok=True)
                else:
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)

    def _run(self, line: str) -> None:
        # Docker's layers keep no cache of pip; here the one of this machine makes it quick.
        line = self._map(line.replace("--no-cache-dir ", ""))
        environment = {"PATH": self.path, "HOME": os.environ.get("HOME", "/"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment |= {name: value for name, value in os.environ.items() if IS_OF_PIP.match(name)}
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=self.work, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

"""Runs the built ktune program in a private world: its own cache, temporary folder and environment."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# Sanitizers make everything several times slower; limits on time allow for it.
SLOWNESS = float(os.environ.get("KTUNE_TEST_SLOWNESS", "1"))


class Options:
    """What CMake says of the build under test."""

    ktune = ""
    device = ""
    mlir = False
    source = ""


OPTIONS = Options()


def parse_arguments(parser=None):
    """Fills OPTIONS; returns the parser's own options and the arguments that are none of ours."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--ktune", required=True, help="the program under test")
    parser.add_argument("--device", required=True, help="device to tune for: fake or cpu")
    parser.add_argument("--mlir", type=int, default=0, help="1: the build has MLIR")
    options, rest = parser.parse_known_args()
    OPTIONS.ktune = os.path.abspath(options.ktune)
    OPTIONS.device = options.device
    OPTIONS.mlir = bool(options.mlir)
    OPTIONS.source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return options, rest


class Finished:
    """A run that ended."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def error_lines(self):
        return [line for line in self.err.splitlines() if line.startswith("ktune: error: ")]

    def __repr__(self):
        return f"exit code {self.code} after {self.seconds:.2f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def events(text):
    """The unit events among the lines of a run's standard error; a last line cut by a kill is left out."""
    found = []
    for line in text.split("\n")[:-1]:
        if line.startswith("{"):
            event = json.loads(line)
            if event["event"] == "unit":
                found.append(event)
    return found


def kept(text):
    """(key, bucket) of every unit that the events say is durable."""
    return {(e["key"], e["bucket"]) for e in events(text) if e["outcome"] in ("tuned", "hit")}


class World:
    """A folder with a cache and a temporary folder of its own. Use as a context."""

    def __enter__(self):
        self.root = tempfile.mkdtemp(prefix="ktune-cli-")
        self.cache = os.path.join(self.root, "cache")
        self.temp = os.path.join(self.root, "tmp")
        os.mkdir(self.temp)
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["chmod", "-R", "u+rwX", self.root], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("KTUNE_")}
        env.update(TMPDIR=self.temp, HOME=self.root, KTUNE_CACHE=self.cache)
        env.update(extra)
        return env

    def write(self, name, content):
        path = os.path.join(self.root, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def start(self, *arguments, env=None, **popen):
        return subprocess.Popen([OPTIONS.ktune, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(**(env or {})), **popen)

    def run(self, *arguments, env=None, timeout=600, stdin=None):
        began = time.monotonic()
        done = subprocess.run([OPTIONS.ktune, *map(str, arguments)], input=stdin or "", capture_output=True, text=True,
                              env=self.environment(**(env or {})), timeout=timeout, check=False)
        return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def processes(self):
        """Processes of this world: every child inherits TMPDIR."""
        mark = f"TMPDIR={self.temp}".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] != "Z":  # A zombie waits for its parent, not for us.
                        found.append(int(pid))
            except OSError:
                pass  # It ended meanwhile, or belongs to somebody else.
        return found

    def leaked_processes(self, patience=5.0):
        """Processes of this world that are still there after PATIENCE seconds."""
        deadline = time.monotonic() + patience * SLOWNESS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left


def wait_for_units(process, count):
    """Reads a running ktune's standard error until COUNT units are done; returns what was read."""
    text = ""
    while len(events(text)) < count:
        line = process.stderr.readline()
        if not line:
            raise AssertionError(f"ended after {len(events(text))} units of {count}:\n{text}")
        text += line
    return text


def manifest(sizes, tokens=(1, 4)):
    """Small operators of all kinds: three for each size."""
    operators = []
    for n in sizes:
        operators.append({"op": "add", "columns": n, "tokens": list(tokens), "name": f"add_{n}"})
        operators.append({"op": "rms_norm", "columns": n, "tokens": list(tokens), "name": f"norm_{n}"})
        operators.append({"op": "linear", "n": n, "k": 32, "tokens": list(tokens), "name": f"linear_{n}"})
    return {"version": 1, "operators": operators}


def log(text):
    print(text, file=sys.stderr, flush=True)

#!/usr/bin/env python3
"""ktune on one NVIDIA GPU against PyTorch: tunes, measures and compares in one run.

Every case (operator, row length, number of tokens) is tuned by `ktune tune` as a bucket of its own with a budget of its
own; its time is that of the bucket's high end, from the record's final duel. Once ktune has ended (it refuses a GPU
that another process uses), one Python process measures PyTorch eager and torch.compile on the same sizes.

The run is resumable. OUT/ktune.jsonl keeps what is tuned, OUT/results.jsonl one line per case and peer; both are
written line by line, and what is in results.jsonl for this --commit is not done again. With --deadline a call stops
before a case that would not fit, and the same command goes on.
"""

import argparse
import contextlib
import dataclasses
import glob
import importlib.util
import io
import json
import math
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

EXIT_OK, EXIT_INTERNAL, EXIT_USAGE, EXIT_INCOMPLETE, EXIT_UNAVAILABLE = 0, 1, 2, 3, 4

EPILOG = """exit codes:
  0    every case that was asked for is in results.jsonl (a peer or a case that failed is there with its error)
  1    internal error
  2    wrong options
  3    incomplete: the deadline came first, or the peers' process was stopped; the same command goes on
  4    no GPU, no torch, no ktune, the cache is unavailable, or ktune's lease of the GPU was refused
  130, 143   SIGINT, SIGTERM; what was done is kept

examples:
  python3 bench/gpu_bench.py --program build/cuda/tools/ktune --out /tmp/g --commit 1a2b3c4 --deadline 520
  python3 bench/gpu_bench.py --program build/cuda/tools/ktune --out /tmp/g --commit 1a2b3c4 --only "linear M=64"
  python3 bench/gpu_bench.py --out /tmp/g --commit 1a2b3c4 --report
"""

DTYPE_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
OPERATORS = ("add", "rms_norm", "linear")
PEERS = ("torch-eager", "torch-compile")
NO_PEER = "none"

# Seconds beside the budget or the samples, until this run knows better: tuning (start, references, final duel), and one
# peer of a case (torch.compile's first call; max-autotune of a matrix product tries dozens of kernels).
TUNING_EXTRA_SECONDS = 6
PEER_SECONDS = {
    "add": {"torch-eager": 1, "torch-compile": 4},
    "rms_norm": {"torch-eager": 1, "torch-compile": 6},
    "linear": {"torch-eager": 2, "torch-compile": 15},
}
PEERS_START_SECONDS = 25  # Importing torch, a context, the copy rate.
PEER_LIMIT_SECONDS = 240  # A peer that says nothing for longer has failed.
GRACE_SECONDS = 10


class BenchError(Exception):
    """An error of one line, with the exit code to leave with."""

    def __init__(self, message, code=EXIT_UNAVAILABLE):
        super().__init__(" ".join(str(message).split()))
        self.code = code


class Stopped(BaseException):
    def __init__(self, number):
        super().__init__(number)
        self.number = number


# ---------------------------------------------------------------------------------------------------------------- cases


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    low: int  # The bucket is M=low..tokens.
    tokens: int
    hidden: int
    dtype: str

    @property
    def shape(self):
        m, h = self.tokens, self.hidden
        return [m, h, h] if self.op == "linear" else [m, h]

    @property
    def name(self):
        return f"{self.op} M={self.tokens} {self.hidden} {self.dtype}"

    @property
    def bytes(self):
        """Every input read and every output written once."""
        m, h = self.tokens, self.hidden
        elements = {"add": 3 * m * h, "rms_norm": 2 * m * h + h, "linear": 2 * m * h + h * h}[self.op]
        return elements * DTYPE_BYTES[self.dtype]

    @property
    def matrix_operations(self):
        return 2 * self.tokens * self.hidden * self.hidden if self.op == "linear" else 0

    def floor_us(self, copy_gbps, matrix_tflops):
        """The time that moving the bytes at the copy rate takes, or the operations at the matrix rate."""
        if not copy_gbps:
            return None
        return max(self.bytes / copy_gbps * 1e-3, self.matrix_operations / matrix_tflops * 1e-6)

    def description(self):
        """The description (docs/manifest.md) with this case's bucket as its only one."""
        rows, h, t = ["M", self.hidden], self.hidden, self.dtype
        if self.op == "add":
            inputs = [{"name": "a", "shape": rows}, {"name": "b", "shape": rows}]
            node = {"op": "add", "inputs": ["a", "b"]}
        elif self.op == "rms_norm":
            inputs = [{"name": "x", "shape": rows}, {"name": "weight", "shape": [h], "constant": True}]
            node = {"op": "rms_norm", "inputs": ["x", "weight"], "attributes": {"eps": 1e-6}}
        else:
            inputs = [{"name": "x", "shape": rows}, {"name": "weight", "shape": [h, h], "constant": True}]
            node = {"op": "linear", "inputs": ["x", "weight"]}
        return {
            "symbols": [{"name": "M", "min": self.low, "max": self.tokens, "edges": [self.tokens]}],
            "inputs": [dict(i, dtype=t) for i in inputs],
            "nodes": [dict(node, result="y")],
            "outputs": [{"value": "y"}],
        }


def case_key(entry):
    return entry["op"], tuple(entry["shape"]), entry["dtype"]


def key_of(case):
    return case.op, tuple(case.shape), case.dtype


def suite(ops, hidden, tokens, dtypes):
    """Cases, cheap ones first: operators by what their peers take to compile, then by the work of a call."""
    edges = sorted(set(tokens))
    cases = [
        Case(op, m, m, h, dtype)
        for op in ops for dtype in dtypes for h in sorted(set(hidden)) for m in edges
    ]
    return sorted(cases, key=lambda c: (sum(PEER_SECONDS[c.op].values()), c.floor_us(4000, 700), c.name))


# ---------------------------------------------------------------------------------------------------------------- files


class JsonLines:
    """A file of JSON lines to which a run that may be killed at any moment appends."""

    def __init__(self, path):
        self.path = path

    def read(self):
        entries = []
        with contextlib.suppress(FileNotFoundError), open(self.path, encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # A torn line: its case is done again.
                    entry = json.loads(line)
                    if isinstance(entry, dict):
                        entries.append(entry)
        return entries

    def append(self, entry):
        with open(self.path, "ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def result_line(case, tuned, peer, measured, matrix_tflops):
    """One line of results.jsonl. MEASURED: what the peers' process said of the peer; {} without one."""
    ktune_us, peer_us = tuned.get("ktune_us"), measured.get("us")
    copy = measured.get("copy_gbps") or tuned.get("ktune_copy_gbps")
    floor = case.floor_us(copy, matrix_tflops)
    line = {
        "op": case.op,
        "shape": case.shape,
        "dtype": case.dtype,
        "ktune_us": ktune_us,
        "default_us": tuned.get("default_us"),
        "peer": peer,
        "peer_us": peer_us,
        "speedup": peer_us / ktune_us if peer_us and ktune_us else None,
        "floor_us": floor,
        "floor_share": floor / ktune_us if floor and ktune_us else None,
        "copy_gbps": copy,
        "ktune_copy_gbps": tuned.get("ktune_copy_gbps"),
        "matrix_tflops": matrix_tflops if case.matrix_operations else None,
        "candidates": tuned.get("candidates"),
        "measured": tuned.get("measured"),
        "rejections": tuned.get("rejections"),
        "tuning_s": tuned.get("tuning_s"),
        "measuring_share": tuned.get("measuring_share"),
        "steady_share": tuned.get("steady_share"),
        "refining_share": tuned.get("refining_share"),
        "counters": tuned.get("counters"),
        "decision": tuned.get("decision"),
        "genome": tuned.get("genome"),
        "commit": tuned.get("commit"),
        "device": tuned.get("device"),
        "stamp": tuned.get("stamp"),
        "regime": tuned.get("regime"),
        "conditions": {"ktune": tuned.get("conditions"), "peer": measured.get("conditions")},
        # False: the case was tuned in an earlier call, so that the halves are minutes (or a machine) apart.
        "same_run": peer == NO_PEER or tuned.get("run") == measured.get("run"),
        "ktune_wall_s": tuned.get("wall_s"),
        "unix_time": int(time.time()),
    }
    for field in ("p10_us", "p90_us", "samples", "calls", "sets", "compile_s", "wall_s", "host_late", "torch"):
        if field in measured:
            line["peer_" + field] = measured[field]
    if tuned.get("error"):
        line["error"] = tuned["error"]
    if measured.get("error"):
        line["peer_error"] = measured["error"]
    return line


# ------------------------------------------------------------------------------------------------------- other programs


def end(process):
    """Ends a child that leads a session of its own, and everything that it started."""
    for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def last_line(path):
    lines = []
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1][:300] if lines else ""


def call_ktune(options, arguments, stdin, limit_s):
    """(exit code, JSON object or None, what went wrong in one line)."""
    log = os.path.join(options.out, "ktune.log")
    with open(log, "ab") as errors:
        try:
            process = subprocess.Popen([options.program, *arguments, "--cache", options.cache, "--json"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                       start_new_session=True)
        except OSError as error:
            raise BenchError(f"cannot run {options.program}: {error.strerror}; give the ktune program with --program")
        try:
            output, _ = process.communicate(stdin.encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            return -1, None, f"ktune took longer than {limit_s:.0f} s"
        except BaseException:
            end(process)
            raise
    try:
        reply = json.loads(output)
    except ValueError:
        reply = None
    message = ((reply or {}).get("error") or {}).get("message", "")
    if not message and process.returncode != 0:
        message = last_line(log) or f"ktune ended with exit code {process.returncode}"
    return process.returncode, reply, message


def budget_of(options, case):
    return options.linear_seconds if case.op == "linear" else options.seconds_per_unit


def tune(options, case, again=False):
    """Tunes CASE and returns the line for ktune.jsonl. Throws BenchError when nothing can be tuned at all."""
    begin, budget = time.monotonic(), budget_of(options, case)
    arguments = ["tune", "-", "--device", options.device, "--budget", f"{budget:.3f}s", "--seed", str(options.seed)]
    if options.jobs:
        arguments += ["--jobs", str(options.jobs)]
    if options.share_device:
        arguments += ["--share-device"]
    if again:
        arguments += ["--retune"]
    code, reply, message = call_ktune(options, arguments, json.dumps(case.description()), 2 * budget + 120)
    if code in (2, 4, 5) or code in (130, 143):
        raise BenchError(f"ktune tune ({case.name}): {message}")
    line = {"op": case.op, "shape": case.shape, "dtype": case.dtype, "commit": options.commit, "run": options.run,
            "budget_s": budget, "unix_time": int(time.time())}
    unit = (reply or {}).get("units", [{}])[0]
    if "decision" not in unit:
        line["error"] = unit.get("error") or message or "ktune says nothing of the unit"
        if not isinstance(line["error"], str):
            line["error"] = line["error"].get("message", json.dumps(line["error"]))
        return dict(line, wall_s=time.monotonic() - begin)
    points = {tuple(p["symbols"]): p for p in unit.get("points", [])}
    point = points.get((case.tokens,), {})
    hit = unit["outcome"] == "hit"
    counters = reply["counters"]
    busy = counters["check_seconds"] + counters["measure_seconds"]
    waiting = counters.get("wait_seconds", 0)
    again = counters.get("refine_seconds", 0)
    line.update(
        device=reply["hardware"], key=unit["key"], hit=hit, decision=unit["decision"],
        ktune_us=point.get("median_ns", 0) / 1e3 or None, default_us=point.get("default_median_ns", 0) / 1e3 or None,
        duel_samples=point.get("samples"), ratio=[unit.get("ratio_low"), unit.get("ratio_high")],
        candidates=unit.get("candidates"), measured=unit.get("measured"), rejections=unit.get("rejections"),
        tuning_s=unit["seconds"], proposer=unit.get("proposer"),
        # A hit was tuned by another call, whose counters are gone.
        counters=None if hit else counters,
        measuring_share=busy / (busy + waiting) if busy > 0 and not hit else None,
        steady_share=counters.get("measuring_share") if busy > 0 and not hit else None,
        refining_share=again / (busy + waiting) if busy > 0 and not hit else None)
    if unit["decision"] == "use-fallback":
        line["error"] = "nothing of ktune's was proven right (use-fallback)"
    _, shown, _ = call_ktune(options, ["show", unit["key"], "--bucket", str(unit["bucket"])], "", 60)
    record = (shown or {}).get("records", [{}])[0]
    evidence = record.get("evidence", {})
    copy = evidence.get("copy_bytes_per_second", 0)
    line.update(ktune_copy_gbps=copy * 1e-9 or None, regime=evidence.get("regime"),
                conditions=evidence.get("conditions"), genome=record.get("genome"), stamp=record.get("stamp"))
    if hit:
        line["tuning_s"] = evidence.get("tuning_seconds")
        # A call that was stopped in the middle of a search kept what it had: no figure for this budget.
        if not again and line["tuning_s"] is not None and line["tuning_s"] < 0.7 * budget:
            return tune(options, case, again=True)
    return dict(line, wall_s=time.monotonic() - begin)


def peers_command(options, path):
    return [sys.executable, os.path.abspath(__file__), "--peers", path]


def measure_peers(options, wanted, left_s, costs, keep):
    """Measures WANTED, pairs of a case and a peer, in a process of its own, and gives each to KEEP(case, peer,
    measured) at once. Returns the pairs that there was no time for. A process that dies costs the peer that it was
    at."""
    log = os.path.join(options.out, "peers.log")
    deadline = time.monotonic() + left_s
    while wanted:
        asked = {"device": options.device, "samples": options.samples, "sample_us": options.sample_us,
                 "warm_ms": options.warm_ms, "seconds": deadline - time.monotonic() if left_s < math.inf else None,
                 "jobs": [dict(dataclasses.asdict(c), peer=p, cost_s=costs(c, p)) for c, p in wanted]}
        path = os.path.join(options.out, "peers.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(asked, file)
        with open(log, "ab") as errors:
            process = subprocess.Popen(peers_command(options, path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=errors, start_new_session=True)
        lines = queue.Queue()

        def read():
            for text in process.stdout:
                lines.put(text)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        facts, begun, why, asked_for = {}, None, "", len(wanted)
        try:
            while True:
                patience = min(PEER_LIMIT_SECONDS, deadline + GRACE_SECONDS - time.monotonic())
                try:
                    text = lines.get(timeout=max(0.1, patience))
                except queue.Empty:
                    if time.monotonic() >= deadline:
                        return wanted
                    why = f"no answer for {PEER_LIMIT_SECONDS} s"
                    break
                if text is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(GRACE_SECONDS)
                    break
                try:
                    event = json.loads(text)
                except ValueError:
                    continue
                if event["event"] == "fatal":
                    raise BenchError(event["message"])
                if event["event"] == "device":
                    facts = {k: event[k] for k in ("copy_gbps", "torch") if k in event}
                    facts["run"] = options.run
                    print(f"peers: {event.get('name')}, torch {event.get('torch')}, copy {event['copy_gbps']:.0f} GB/s",
                          flush=True)
                elif event["event"] == "begin":
                    begun = wanted[0]
                elif event["event"] == "peer":
                    case, peer = wanted.pop(0)
                    begun = None
                    keep(case, peer, dict(facts, **{k: v for k, v in event.items() if k != "event"}))
                elif event["event"] == "end":
                    return wanted
        finally:
            end(process)
        why = why or f"the process ended with {process.returncode}: {last_line(log)}"
        if begun is not None:
            wanted.pop(0)
            keep(*begun, dict(facts, error=why))
        elif len(wanted) == asked_for:
            raise BenchError(f"the peers' process failed ({why}); its log is {log}", EXIT_INTERNAL)
    return wanted


# ------------------------------------------------------------------------------------------- the peers' process (torch)


def buffer_sets(call_bytes, cache_bytes):
    """Sets of buffers such that between two uses of a set at least twice the cache is touched."""
    return max(2, math.ceil(2 * cache_bytes / max(1, call_bytes)) + 1)


def graph_plan(sets, call_us, sample_us):
    """Lists of set numbers, one CUDA graph each, that together go through whole rounds of the sets: several graphs of
    about SAMPLE_US where many sets take longer, else one graph of a round or more."""
    calls = max(1, math.ceil(sample_us / max(call_us, 0.2)))
    if calls >= sets or sets <= 8:
        return [list(range(sets)) * math.ceil(calls / sets)]
    graphs = math.ceil(sets / calls)
    return [list(range(sets * g // graphs, sets * (g + 1) // graphs)) for g in range(graphs)]


class Conditions:
    """Clock, power and temperature by the management library; says nothing where it is missing."""

    def __init__(self, uuid):
        import ctypes
        self.c, self.handle = ctypes, None
        with contextlib.suppress(OSError, AttributeError):
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else "GPU-" + uuid
            if self.nvml.nvmlInit_v2() == 0 and self.nvml.nvmlDeviceGetHandleByUUID(
                    name.encode(), ctypes.byref(handle)) == 0:
                self.handle = handle

    def read(self):
        if self.handle is None:
            return None
        c, values = self.c, {}

        def ask(name, kind, *arguments):
            value = kind()
            function = getattr(self.nvml, name, None)
            return value.value if function and function(self.handle, *arguments, c.byref(value)) == 0 else None

        values["clock_mhz"] = ask("nvmlDeviceGetClockInfo", c.c_uint, c.c_int(1))
        milliwatts = ask("nvmlDeviceGetPowerUsage", c.c_uint)
        values["power_watts"] = None if milliwatts is None else milliwatts / 1e3
        values["temperature_c"] = ask("nvmlDeviceGetTemperature", c.c_uint, c.c_int(0))
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", c.c_ulonglong) or 0
        names = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}
        values["throttle"] = ", ".join(sorted({text for bit, text in names.items() if reasons & bit}))
        return values


def peers_main(path):
    # What torch and its compiler print goes to the log.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(event, **fields):
        print(json.dumps(dict(event=event, **fields)), file=out, flush=True)

    def fatal(message):
        say("fatal", message=message)
        return EXIT_UNAVAILABLE

    with open(path, encoding="utf-8") as file:
        asked = json.load(file)
    begin = time.monotonic()
    try:
        import torch
    except Exception as error:  # A broken installation is as good as none.
        return fatal(f"torch cannot be imported ({error}); run with a Python that has it, or with --no-peers")
    if not torch.cuda.is_available():
        return fatal("torch sees no GPU; run on a machine with one, or with --no-peers")
    number = int((asked["device"] + ":0").split(":")[1])
    if number >= torch.cuda.device_count():
        return fatal(f"torch sees {torch.cuda.device_count()} GPUs, not {asked['device']}")
    try:
        torch.cuda.set_device(number)
        torch.manual_seed(1)
        facts = torch.cuda.get_device_properties(number)
        conditions = Conditions(str(getattr(facts, "uuid", "")))
        copy_gbps, how = copy_rate(torch)
    except RuntimeError as error:
        return fatal(f"the GPU cannot be used by torch: {str(error).splitlines()[0]}")
    say("device", name=facts.name, torch=torch.__version__, l2=facts.L2_cache_size, copy_gbps=copy_gbps,
        copy_method=how)
    for job in asked["jobs"]:
        if asked["seconds"] is not None and time.monotonic() - begin + job["cost_s"] > asked["seconds"]:
            break
        case = Case(job["op"], job["low"], job["tokens"], job["hidden"], job["dtype"])
        say("begin", case=case.name, peer=job["peer"])
        at = time.monotonic()
        try:
            with torch.no_grad():
                measured = measure_peer(torch, case, job["peer"], facts.L2_cache_size, conditions, asked)
        except Exception as error:  # A peer that cannot run the case is itself a finding.
            text = next((t for t in str(error).splitlines() if t.strip()), "")
            measured = {"error": f"{type(error).__name__}: {text}"[:300]}
        say("peer", wall_s=time.monotonic() - at, **measured)
        try:
            if job["peer"] == "torch-compile":
                torch._dynamo.reset()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError as error:  # The context is lost; a new process does the rest.
            print(error, file=sys.stderr, flush=True)
            os._exit(EXIT_UNAVAILABLE)
    say("end")
    return EXIT_OK


def copy_rate(torch, megabytes=2048):
    """The faster of the driver's copy and of a kernel that copies, bytes read and written, in GB/s."""
    count = megabytes << 19
    a = torch.empty(count, device="cuda", dtype=torch.bfloat16).normal_()
    b = torch.empty_like(a)
    best = (0, "")
    for how, copy in (("driver", lambda: b.copy_(a)), ("kernel", lambda: torch.mul(a, 1, out=b))):
        for _ in range(10):
            copy()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(22)]
        for event in events:
            event.record()
            copy()
        torch.cuda.synchronize()
        ms = statistics.median(x.elapsed_time(y) for x, y in zip(events, events[1:]))
        best = max(best, (4 * count / ms * 1e-6, how))
    del a, b
    torch.cuda.empty_cache()
    return best


def measure_peer(torch, case, peer, l2, conditions, asked):
    """Device time of a call: CUDA graphs over rotating buffers, inputs and outputs cold, timed back to back."""
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[case.dtype]
    functional = torch.nn.functional
    function = {
        "add": lambda a, b: a + b,
        "rms_norm": lambda x, w: functional.rms_norm(x, (x.shape[-1],), w, 1e-6),
        "linear": lambda x, w: x @ w.t(),
    }[case.op]
    sets = buffer_sets(case.bytes, l2)
    shapes = [[case.tokens if d == "M" else d for d in i["shape"]] for i in case.description()["inputs"]]
    # One allocation per input: thousands of sets of a few kilobytes are views of it.
    inputs = list(zip(*(torch.empty([sets, *shape], device="cuda", dtype=dtype).normal_().unbind(0)
                        for shape in shapes)))
    compile_s = None
    if peer == "torch-compile":
        function = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        at = time.monotonic()
        function(*inputs[0])
        torch.cuda.synchronize()
        compile_s = time.monotonic() - at

    # Outputs are kept until their set's turn comes again: else the allocator gives every call the same memory, which
    # then never leaves the cache.
    outputs = [None] * sets
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for s in range(3):
            function(*inputs[s % sets])
    torch.cuda.synchronize()

    def capture(order):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            for s in order:
                outputs[s] = None
                outputs[s] = function(*inputs[s])
        return graph

    def events(count):
        return [torch.cuda.Event(enable_timing=True) for _ in range(count)]

    trial = capture([s % sets for s in range(min(sets, 32))])
    start, stop = events(2)
    for _ in range(3):
        start.record()
        trial.replay()
        stop.record()
    torch.cuda.synchronize()
    call_us = start.elapsed_time(stop) * 1e3 / min(sets, 32)
    plan = graph_plan(sets, call_us, asked["sample_us"])
    graphs = [capture(order) for order in plan]
    graph_ms = call_us * len(plan[0]) * 1e-3
    samples = max(asked["samples"], len(graphs))
    warm = max(len(graphs), math.ceil(asked["warm_ms"] / graph_ms))
    lead = 40_000_000  # Cycles of a kernel that only waits, 20 ms: so long the host may queue ahead.
    for _ in range(4):
        marks = events(samples + 1)
        torch.cuda._sleep(lead)
        for i in range(warm):
            graphs[(i - warm) % len(graphs)].replay()
        marks[0].record()
        for i in range(samples):
            graphs[i % len(graphs)].replay()
            marks[i + 1].record()
        # True: the device may have waited for the host inside a sample. Again, with more queued ahead.
        host_late = marks[0].query()
        if host_late:
            torch.cuda.synchronize()
            lead *= 3
            continue
        marks[samples // 2].synchronize()
        seen = conditions.read()
        torch.cuda.synchronize()
        break
    else:
        seen = conditions.read()
    times = sorted(marks[i].elapsed_time(marks[i + 1]) * 1e3 / len(plan[i % len(plan)]) for i in range(samples))
    result = {"us": statistics.median(times), "p10_us": times[len(times) // 10], "p90_us": times[-1 - len(times) // 10],
              "samples": samples, "calls": len(plan[0]), "sets": sets, "conditions": seen, "host_late": host_late}
    if compile_s is not None:
        result["compile_s"] = compile_s
    return result


# --------------------------------------------------------------------------------------------------------------- report


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def time_text(us):
    if us is None:
        return "-"
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} us" if us >= 10 else f"{us:.2f} us"


def number_text(value, pattern="{:.2f}"):
    return "-" if value is None else pattern.format(value)


def report(lines, cases):
    """The table (Markdown, as in docs/performance.md), geometric means per operator, losses and failures."""
    by_case = {}
    for line in lines:  # A later line of the same case and peer takes the place of the earlier one.
        by_case.setdefault(case_key(line), {})[line["peer"]] = line
    text = ["| operator | size | record | ktune | default / ktune | eager | eager / ktune | compile | compile / ktune "
            "| floor | floor / ktune | candidates | tuning | GPU measuring | steady | again |", "| --- " * 16 + "|"]
    speedups, losses, failures, apart = {}, [], [], 0
    for case in cases:
        peers = by_case.get(key_of(case))
        if not peers:
            continue
        line = next(iter(peers.values()))
        row = [f"{case.op}_{case.dtype}", "x".join(map(str, case.shape)), line.get("decision") or "failed",
               time_text(line["ktune_us"]),
               number_text(line["default_us"] / line["ktune_us"] if line["default_us"] and line["ktune_us"] else None)]
        if line.get("error"):
            failures.append(f"{case.name}: ktune: {line['error']}")
        best = []
        for peer in PEERS:
            other = peers.get(peer, {})
            row += ["failed" if other.get("peer_error") else time_text(other.get("peer_us")),
                    number_text(other.get("speedup"))]
            if other.get("peer_error"):
                failures.append(f"{case.name}: {peer}: {other['peer_error']}")
            if other.get("peer_host_late"):
                failures.append(f"{case.name}: {peer}: the host may have been late; the time is an upper bound")
            if other and not other.get("same_run", True):
                apart += 1
            if other.get("speedup"):
                speedups.setdefault((case.op, peer), []).append(other["speedup"])
                best.append((other["speedup"], peer))
                if other["speedup"] < 1:
                    losses.append((other["speedup"], f"{case.name} against {peer}: {other['speedup']:.2f} "
                                   f"({time_text(line['ktune_us'])}, {peer} {time_text(other['peer_us'])})"))
        if best:
            speedups.setdefault((case.op, "the faster of them"), []).append(min(best)[0])
        last = list(peers.values())[-1]
        row += [time_text(last["floor_us"]), number_text(last["floor_share"]), number_text(line["candidates"], "{}"),
                number_text(line["tuning_s"], "{:.1f} s"),
                *(number_text(None if line.get(share) is None else 100 * line[share], "{:.0f} %")
                  for share in ("measuring_share", "steady_share", "refining_share"))]
        text.append("| " + " | ".join(row) + " |")
    text.append("")
    for (op, peer), values in speedups.items():
        text.append(f"geometric mean, {op} against {peer}: {geometric_mean(values):.3f} over {len(values)} cases")
    text.append(f"losses (speed-up below 1): {len(losses)}")
    text += ["  " + loss for _, loss in sorted(losses)]
    if failures:
        text.append(f"failures and doubts: {len(failures)}")
        text += ["  " + failure for failure in failures]
    if apart:
        text.append(f"note: {apart} lines compare a time of an earlier call with a peer of a later one (same_run "
                    "false)")
    return "\n".join(text)


# ----------------------------------------------------------------------------------------------------------------- main


class Costs:
    """Wall seconds that a case's parts took so far, by operator; the constants above until there are any."""

    def __init__(self, options, tuned, results):
        self.options, self.tuning, self.peers = options, {}, {}
        for line in tuned:
            self.learn_tuning(line)
        for line in results:
            self.learn_peer(line["op"], line["peer"], line.get("peer_wall_s"))

    def learn_tuning(self, line):
        if not line.get("hit") and line.get("wall_s"):
            extra = line["wall_s"] - line.get("budget_s", 0)
            self.tuning[line["op"]] = max(self.tuning.get(line["op"], 0), extra)

    def learn_peer(self, op, peer, seconds):
        if seconds:
            self.peers[op, peer] = max(self.peers.get((op, peer), 0), seconds)

    def tuning_of(self, case):
        return budget_of(self.options, case) + 1.1 * self.tuning.get(case.op, TUNING_EXTRA_SECONDS)

    def peer_of(self, case, peer):
        return 1.1 * self.peers.get((case.op, peer), PEER_SECONDS[case.op][peer])


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu_bench.py", description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    numbers = lambda text: [int(v) for v in text.split(",")]
    names = lambda text: text.split(",")
    add("--suite", choices=["slice"], default="slice", help="which cases (default: slice)")
    add("--ops", type=names, default=list(OPERATORS), metavar="A,B", help="operators (default: add,rms_norm,linear)")
    add("--dtype", type=names, default=["bf16"], metavar="T", help="bf16, f16 or f32 (default: bf16)")
    add("--hidden", type=numbers, default=[4096, 8192], metavar="N,N", help="row lengths (default: 4096,8192)")
    add("--tokens", type=numbers, default=[1, 64, 2048, 16384], metavar="N,N",
        help="token counts, each tuned and compared alone at just that size, as torch.compile has it with dynamic=False "
        "(default: 1,64,2048,16384)")
    add("--only", default="", metavar="TEXT", help='only cases with TEXT in their name, as --list shows it')
    add("--list", action="store_true", help="print the cases and what is done of each")
    add("--report", action="store_true", help="print the table of what is in --out, and measure nothing")
    add("--program", default="build/cuda/tools/ktune", metavar="PATH", help="the ktune program (default: %(default)s)")
    add("--out", metavar="DIR", help="folder of results.jsonl, ktune.jsonl and logs")
    add("--cache", metavar="DIR", help="ktune's cache folder (default: OUT/cache)")
    add("--device", default="cuda:0", help="cuda:N, or cpu with --no-peers (default: cuda:0)")
    add("--seconds-per-unit", type=float, default=15, metavar="S", help="budget of a case (default: 15)")
    add("--linear-seconds", type=float, metavar="S", help="budget of a linear case (default: as the others)")
    add("--jobs", type=int, metavar="N", help="ktune's compile workers (default: ktune's)")
    add("--seed", type=int, default=1, help="ktune's seed (default: 1)")
    add("--share-device", action="store_true", help="passed to ktune: measure although others use the GPU")
    add("--matrix-tflops", type=float, default=790, metavar="T", help="matrix rate for linear's floor (default: 790)")
    add("--deadline", type=float, metavar="S", help="start nothing that would not end S seconds after the start")
    add("--commit", metavar="ID", help="commit of the program, part of what makes a case done (default: git's HEAD)")
    add("--no-peers", action="store_true", help="only ktune")
    add("--retry", action="store_true", help="do again what is in results.jsonl with an error")
    add("--samples", type=int, default=25, help="samples of a peer, at least 20 (default: 25)")
    add("--sample-us", type=float, default=1000, help="least length of a peer's sample (default: 1000)")
    add("--warm-ms", type=float, default=200, help="a peer runs so long before its samples (default: 200)")
    add("--self-test", action="store_true", help="test this script; needs no GPU and no torch")
    add("--peers", metavar="CASES.json", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [o for o in options.ops if o not in OPERATORS] + [t for t in options.dtype if t not in DTYPE_BYTES]
    if unknown:
        parser.error(f"{unknown[0]}: operators are {', '.join(OPERATORS)}, types {', '.join(DTYPE_BYTES)}")
    if options.samples < 20 or min(options.tokens + options.hidden) < 1:
        parser.error("--samples is at least 20, --tokens and --hidden are positive")
    if options.linear_seconds is None:
        options.linear_seconds = options.seconds_per_unit
    if options.out is None and not (options.list or options.self_test or options.peers):
        parser.error("--out is missing")
    if not options.device.startswith("cuda") and not (options.no_peers or options.list or options.report):
        parser.error("the peers need --device cuda:N; give --no-peers")
    return options


def head_commit():
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        where = os.path.dirname(os.path.abspath(__file__))
        return subprocess.run(["git", "-C", where, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                              timeout=10, check=True).stdout.strip()
    return "unknown"


def bench(options):
    began = time.monotonic()
    options.commit = options.commit or head_commit()
    options.run = f"{time.time_ns()}-{os.getpid()}"
    cases = [c for c in suite(options.ops, options.hidden, options.tokens, options.dtype) if options.only in c.name]
    if not cases:
        raise BenchError(f'no case has "{options.only}" in its name; --list shows them', EXIT_USAGE)
    peers = [NO_PEER] if options.no_peers else list(PEERS)
    results, tuned_file = None, None
    lines, tuned = [], {}
    if options.out:
        results = JsonLines(os.path.join(options.out, "results.jsonl"))
        tuned_file = JsonLines(os.path.join(options.out, "ktune.jsonl"))
        lines = [e for e in results.read() if e.get("commit") == options.commit]
        tuned = {case_key(e): e for e in tuned_file.read() if e.get("commit") == options.commit}
    failed = lambda e: e.get("error") or e.get("peer_error")
    done = {(case_key(e), e["peer"]) for e in lines if not (options.retry and failed(e))}
    if options.retry:
        tuned = {k: e for k, e in tuned.items() if not e.get("error")}
    missing = lambda case: [p for p in peers if (key_of(case), p) not in done]

    if options.list:
        for case in cases:
            state = "done" if not missing(case) else "tuned" if key_of(case) in tuned else ""
            print(f"{case.name:32} M={case.low}..{case.tokens}  {case.bytes / 1e6:.1f} MB  {state}".rstrip())
        return EXIT_OK
    if options.report:
        print(report(lines, cases))
        return EXIT_OK

    options.program = os.path.abspath(options.program)
    if not os.access(options.program, os.X_OK):
        raise BenchError(f"there is no ktune program at {options.program}; build it, or give --program")
    if not options.no_peers and importlib.util.find_spec("torch") is None:
        raise BenchError(f"{sys.executable} has no torch; use a Python that has it, or give --no-peers")
    if options.device.startswith("cuda") and not glob.glob("/dev/nvidia[0-9]*") and not shutil.which("nvidia-smi"):
        raise BenchError("there is no NVIDIA GPU here (no /dev/nvidia*); for a try without one give --device cpu "
                         "--no-peers")
    os.makedirs(options.out, exist_ok=True)
    options.cache = options.cache or os.path.join(options.out, "cache")

    costs = Costs(options, tuned.values(), lines)
    left = lambda: options.deadline - (time.monotonic() - began) if options.deadline else math.inf

    def keep(case, peer, measured):
        line = result_line(case, tuned[key_of(case)], peer, measured, options.matrix_tflops)
        results.append(line)
        lines.append(line)
        costs.learn_peer(case.op, peer, measured.get("wall_s"))
        if peer != NO_PEER:
            print(f"{case.name}: {peer} {measured.get('error') or time_text(measured.get('us'))}, speed-up "
                  f"{number_text(line['speedup'])}", flush=True)

    waiting = []  # Pairs that are tuned and whose peer is not measured.
    peers_cost = lambda pairs: sum(costs.peer_of(c, p) for c, p in pairs) + PEERS_START_SECONDS if pairs else 0
    wanted = lambda case: [(case, p) for p in missing(case) if p != NO_PEER]
    for case in cases:
        if missing(case) and key_of(case) in tuned:
            waiting += wanted(case)
    late = 0
    for at, case in enumerate(cases):
        if not missing(case):
            continue
        if key_of(case) not in tuned:
            if costs.tuning_of(case) + peers_cost(waiting + wanted(case)) > left():
                late = sum(1 for c in cases[at:] if missing(c) and key_of(c) not in tuned)
                break
            line = tune(options, case)
            tuned_file.append(line)
            tuned[key_of(case)] = line
            costs.learn_tuning(line)
            waiting += wanted(case)
            print(f"{case.name}: ktune {time_text(line.get('ktune_us'))}, default {time_text(line.get('default_us'))}, "
                  f"{line.get('error') or line['decision']}, {line.get('candidates', 0)} candidates, "
                  f"{line['wall_s']:.1f} s", flush=True)
        if options.no_peers:
            keep(case, NO_PEER, {})
    if waiting:
        waiting = measure_peers(options, waiting, left(), costs.peer_of, keep)
    print(report(lines, cases))
    if late or waiting:
        message = (f"incomplete: {late} cases are not tuned and {len(waiting)} peers not measured; the same command "
                   "goes on")
        if not lines:
            message += ", with a larger --deadline"
        raise BenchError(message, EXIT_INCOMPLETE)
    return EXIT_OK


def main(arguments):
    options = parse(arguments)
    if options.peers:
        return peers_main(options.peers)
    if options.self_test:
        return self_test()

    def stop(number, frame):
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        return bench(options)
    except BenchError as error:
        sys.stdout.flush()
        print(f"gpu_bench: error: {error}", file=sys.stderr)
        return error.code
    except Stopped as stopped:
        print("gpu_bench: stopped; what was done is kept", file=sys.stderr)
        return 128 + stopped.number
    except OSError as error:
        print(f"gpu_bench: error: {error}", file=sys.stderr)
        return EXIT_INTERNAL


# ------------------------------------------------------------------------------------------------------------ self-test

FAKE_KTUNE = """#!%s
import json, os, sys
folder = os.path.dirname(os.path.abspath(__file__))
with open(folder + "/calls", "a") as file: file.write(sys.argv[1] + "\\n")
if os.path.exists(folder + "/refuse"):
    print(json.dumps({"error": {"code": "unavailable", "exit_code": 4, "message": "the GPU is in use by process 7"}}))
    sys.exit(4)
if sys.argv[1] == "show":
    print(json.dumps({"records": [{"genome": "g", "stamp": {}, "evidence": {"copy_bytes_per_second": 4e12,
                      "regime": "r", "tuning_seconds": 3.0, "conditions": {"clock_mhz": 1980}}}]}))
    sys.exit(0)
m = json.load(sys.stdin)["symbols"][0]["max"]
if m == 3:
    print(json.dumps({"units": [{"key": "k", "bucket": 0, "outcome": "failed", "error": "no luck"}], "error":
                      {"message": "1 of 1 units failed: no luck"}}))
    sys.exit(3)
hit = os.path.exists(folder + "/hit") and "--retune" not in sys.argv
print(json.dumps({"hardware": "fake", "counters": {"compiles": 9, "compile_seconds": 1.0, "check_seconds": 1.0,
    "measure_seconds": 2.0, "wait_seconds": 1.0}, "units": [{"key": "k", "bucket": 0,
    "outcome": "hit" if hit else "tuned", "seconds": 5.0, "decision": "tuned", "candidates": 12, "measured": 7,
    "rejections": {"illegal": 2}, "points": [
    {"symbols": [m - 1], "median_ns": 1.0, "default_median_ns": 1.0, "samples": 1},
    {"symbols": [m], "median_ns": 2000.0, "default_median_ns": 3000.0, "samples": 9}]}]}))
"""

FAKE_PEERS = """
import json, os, sys
with open(sys.argv[1]) as file: asked = json.load(file)
say = lambda **f: print(json.dumps(f), flush=True)
if os.path.exists(sys.argv[2] + "/notorch"):
    say(event="fatal", message="torch sees no GPU"); sys.exit(4)
say(event="device", name="fake", torch="9", copy_gbps=4000.0)
for job in asked["jobs"]:
    say(event="begin")
    if job["op"] == "linear" and job["peer"] == "torch-compile" and job["tokens"] == 1: os.abort()
    odd = job["op"] == "linear" and job["peer"] == "torch-compile"
    if odd: say(event="peer", error="RuntimeError: odd", wall_s=1.0)
    else: say(event="peer", us=1.0 if job["op"] == "add" else 4.0, wall_s=1.0)
say(event="end")
"""


class SelfTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gpu_bench-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.ktune = os.path.join(self.folder, "ktune")
        with open(self.ktune, "w", encoding="utf-8") as file:
            file.write(FAKE_KTUNE % sys.executable)
        os.chmod(self.ktune, 0o755)
        peers = os.path.join(self.folder, "peers.py")
        with open(peers, "w", encoding="utf-8") as file:
            file.write(FAKE_PEERS)
        self.out = os.path.join(self.folder, "out")
        replaced = {"peers_command": lambda _, path: [sys.executable, peers, path, self.folder]}
        for name, value in replaced.items():
            self.addCleanup(globals().__setitem__, name, globals()[name])
            globals()[name] = value
        for holder, name, value in ((importlib.util, "find_spec", lambda _: True), (glob, "glob", lambda _: ["x"])):
            self.addCleanup(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)

    def run_main(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--out", self.out, "--program", self.ktune, "--commit", "c", "--hidden", "4096", *arguments])
        return code, out.getvalue(), err.getvalue()

    def lines(self):
        return JsonLines(os.path.join(self.out, "results.jsonl")).read()

    def calls(self, command="tune"):
        try:
            with open(os.path.join(self.folder, "calls"), encoding="utf-8") as file:
                return file.read().split().count(command)
        except FileNotFoundError:
            return 0

    def test_suite_has_every_bucket_once_and_cheap_cases_first(self):
        cases = suite(OPERATORS, [8192, 4096], [1, 64, 2048, 16384], ["bf16"])
        self.assertEqual(len(cases), 24)
        self.assertEqual([c.op for c in cases], ["add"] * 8 + ["rms_norm"] * 8 + ["linear"] * 8)
        self.assertEqual((cases[0].name, cases[-1].name), ("add M=1 4096 bf16", "linear M=16384 8192 bf16"))
        self.assertEqual({(c.low, c.tokens) for c in cases}, {(1, 1), (64, 64), (2048, 2048), (16384, 16384)})

    def test_floors(self):
        table = [
            (Case("add", 1, 2048, 4096, "bf16"), 3 * 2048 * 4096 * 2 / 4e6),
            (Case("rms_norm", 1, 64, 8192, "f32"), (2 * 64 * 8192 + 8192) * 4 / 4e6),
            (Case("linear", 1, 1, 4096, "bf16"), (2 * 4096 + 4096 * 4096) * 2 / 4e6),
            (Case("linear", 1, 16384, 4096, "bf16"), 2 * 16384 * 4096 * 4096 / 500e6),  # Operations bind.
        ]
        for case, floor in table:
            self.assertAlmostEqual(case.floor_us(4000, 500), floor, places=9, msg=case.name)
        self.assertIsNone(table[0][0].floor_us(None, 500))

    def test_buffers_and_graphs_go_through_whole_rounds(self):
        for size in (24576, 10 << 20, 100 << 20, 1 << 30):
            sets = buffer_sets(size, 60 << 20)
            self.assertGreaterEqual((sets - 1) * size, 2 * (60 << 20))
        self.assertEqual(buffer_sets(1 << 30, 60 << 20), 2)
        self.assertEqual(graph_plan(2, 2800.0, 1000), [[0, 1]])
        self.assertEqual(graph_plan(2, 300.0, 1000), [[0, 1, 0, 1]])
        many = graph_plan(5121, 2.0, 1000)
        self.assertEqual(sum(many, []), list(range(5121)))
        self.assertTrue(all(abs(len(g) - 466) <= 1 for g in many) and len(many) == 11, [len(g) for g in many])

    def test_a_run_writes_lines_and_the_next_does_nothing(self):
        code, out, err = self.run_main("--ops", "add", "--tokens", "1,64")
        self.assertEqual((code, err), (0, ""))
        lines = self.lines()
        self.assertEqual([(e["shape"], e["peer"]) for e in lines],
                         [([1, 4096], "torch-eager"), ([1, 4096], "torch-compile"),
                          ([64, 4096], "torch-eager"), ([64, 4096], "torch-compile")])
        line = lines[0]
        self.assertEqual((line["ktune_us"], line["default_us"], line["peer_us"], line["speedup"]), (2.0, 3.0, 1.0, 0.5))
        self.assertEqual((line["candidates"], line["measuring_share"], line["tuning_s"]), (12, 0.75, 5.0))
        self.assertEqual(line["rejections"], {"illegal": 2})
        self.assertAlmostEqual(line["floor_share"], 3 * 4096 * 2 / 4e6 / 2)
        self.assertTrue(line["same_run"])
        self.assertIn("losses (speed-up below 1): 4", out)
        self.assertIn("geometric mean, add against torch-eager: 0.500 over 2 cases", out)
        self.assertEqual(self.calls(), 2)
        self.assertEqual(self.run_main("--ops", "add", "--tokens", "1,64")[0], 0)
        self.assertEqual((self.calls(), len(self.lines())), (2, 4))

    def test_another_commit_is_not_done(self):
        self.run_main("--ops", "add", "--tokens", "1")
        self.assertEqual(self.run_main("--ops", "add", "--tokens", "1", "--commit", "d")[0], 0)
        self.assertEqual((self.calls(), len(self.lines())), (2, 4))

    def test_a_torn_line_is_done_again(self):
        self.run_main("--ops", "add", "--tokens", "1")
        path = os.path.join(self.out, "results.jsonl")
        with open(path, "rb+") as file:
            file.truncate(os.path.getsize(path) - 9)
        self.assertEqual(len(self.lines()), 1)
        self.assertEqual(self.run_main("--ops", "add", "--tokens", "1")[0], 0)
        self.assertEqual(self.calls(), 1)  # Tuned it was already.
        self.assertEqual([e["peer"] for e in self.lines()], list(PEERS))
        self.assertFalse(self.lines()[1]["same_run"])

    def test_failing_peers_and_cases_are_reported_never_dropped(self):
        code, out, _ = self.run_main("--ops", "linear", "--tokens", "1,3,64")
        self.assertEqual(code, 0)
        lines = {(e["shape"][0], e["peer"]): e for e in self.lines()}
        self.assertEqual(len(lines), 6)
        self.assertIn("the process ended with", lines[1, "torch-compile"]["peer_error"])
        self.assertEqual(lines[64, "torch-compile"]["peer_error"], "RuntimeError: odd")
        self.assertEqual(lines[3, "torch-eager"]["error"], "no luck")
        self.assertIsNone(lines[3, "torch-eager"]["speedup"])
        self.assertEqual(lines[64, "torch-eager"]["speedup"], 2)
        self.assertIn("linear M=64 4096 bf16: torch-compile: RuntimeError: odd", out)
        self.assertIn("linear M=3 4096 bf16: ktune: no luck", out)
        self.assertIn("over 2 cases", out)
        self.run_main("--ops", "linear", "--tokens", "1,3,64", "--retry")
        self.assertEqual(self.calls(), 4)

    def test_the_deadline_leaves_time_for_the_peers(self):
        # 15 + 6.6 s of tuning, 25 s of start and 5.5 s of peers: one case fits, two do not.
        code, _, err = self.run_main("--ops", "add", "--tokens", "1,64", "--deadline", "40")
        self.assertEqual((code, self.calls()), (EXIT_INCOMPLETE, 0))
        self.assertIn("larger --deadline", err)
        code, _, err = self.run_main("--ops", "add", "--tokens", "1,64,65,66", "--deadline", "55")
        self.assertEqual(code, EXIT_INCOMPLETE, err)
        done = self.calls()
        self.assertTrue(1 <= done < 4 or not self.lines(), done)
        self.assertEqual(self.run_main("--ops", "add", "--tokens", "1,64,65,66", "--deadline", "500")[0], 0)
        self.assertEqual(len(self.lines()), 8)

    def test_errors_are_one_line(self):
        open(os.path.join(self.folder, "refuse"), "w").close()
        code, _, err = self.run_main("--ops", "add", "--tokens", "1")
        self.assertEqual((code, err.count("\n")), (EXIT_UNAVAILABLE, 1))
        self.assertIn("the GPU is in use by process 7", err)
        self.assertEqual(self.lines(), [])
        os.remove(os.path.join(self.folder, "refuse"))
        open(os.path.join(self.folder, "notorch"), "w").close()
        code, _, err = self.run_main("--ops", "add", "--tokens", "1")
        self.assertEqual((code, err), (EXIT_UNAVAILABLE, "gpu_bench: error: torch sees no GPU\n"))
        code, _, err = self.run_main("--program", self.folder + "/none")
        self.assertEqual((code, err.count("\n")), (EXIT_UNAVAILABLE, 1))
        glob.glob = lambda _: []
        with tempfile.TemporaryDirectory() as empty:
            path, os.environ["PATH"] = os.environ["PATH"], empty
            try:
                code, _, err = self.run_main("--ops", "add", "--tokens", "1")
            finally:
                os.environ["PATH"] = path
        self.assertEqual((code, err.count("\n")), (EXIT_UNAVAILABLE, 1))
        self.assertIn("no NVIDIA GPU", err)

    def test_a_record_of_a_stopped_search_is_tuned_again(self):
        open(os.path.join(self.folder, "hit"), "w").close()
        arguments = ["--ops", "add", "--no-peers", "--tokens"]
        self.assertEqual(self.run_main(*arguments, "1", "--seconds-per-unit", "4")[0], 0)
        self.assertEqual((self.calls(), self.lines()[0]["measuring_share"], self.lines()[0]["tuning_s"]), (1, None, 3))
        self.assertEqual(self.run_main(*arguments, "1,64", "--seconds-per-unit", "15")[0], 0)
        self.assertEqual((self.calls(), self.lines()[1]["measuring_share"], self.lines()[1]["tuning_s"]), (3, 0.75, 5))

    def test_the_table_without_peers(self):
        code, out, _ = self.run_main("--ops", "rms_norm", "--tokens", "64", "--no-peers")
        self.assertEqual(code, 0)
        self.assertEqual([e["peer"] for e in self.lines()], [NO_PEER])
        self.assertIn("| rms_norm_bf16 | 64x4096 | tuned | 2.00 us | 1.50 | - | - | - | - | 0.26 us | 0.13 | 12 "
                      "| 5.0 s | 75 % |", out)


def self_test():
    # The handlers of main() stay in place, for the tests call it.
    suite_ = unittest.defaultTestLoader.loadTestsFromTestCase(SelfTest)
    return EXIT_OK if unittest.TextTestRunner(verbosity=1).run(suite_).wasSuccessful() else EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

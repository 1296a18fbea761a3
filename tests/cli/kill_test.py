#!/usr/bin/env python3
"""Kills ktune warm-cache with SIGKILL at random moments. At most the unit in flight may be lost: every unit that was
announced is in the cache afterwards, which opens without repair; no worker survives; no temporary folder survives the
next run."""

import argparse
import os
import random
import signal
import sys
import time

import harness
from harness import OPTIONS, World, events, kept, log


def one_kill(world, arguments, delay, seed):
    """Returns (was killed, units announced)."""
    process = world.start(*arguments, "--seed", seed)
    killed = False
    try:
        out, err = process.communicate(timeout=delay)
    except harness.subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        killed = True
    assert killed or process.returncode == 0, f"exit code {process.returncode}\n{err}"
    announced = kept(err)
    leaked = world.leaked_processes()
    assert not leaked, f"processes survived the kill: {leaked}"
    if announced or os.path.isdir(os.path.join(world.cache, "db")):
        listing = world.run("list", "--json")
        if listing.code != 0 and not announced:  # Killed while the database was being made.
            return killed, announced
        assert listing.code == 0, f"the cache does not open after a kill: {listing}"
        present = {(r["key"], r["bucket"]) for r in listing.json["records"]}
        assert announced <= present, f"announced and lost: {announced - present}"
        assert listing.json["quarantined"] == 0, "a kill damaged a record"
        assert "repair" not in listing.err, listing
    return killed, announced


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options, _ = harness.parse_arguments(parser)
    choose = random.Random(options.seed)
    kills = runs = 0
    while kills < options.kills:
        with World() as world:
            path = world.write("manifest.json", harness.manifest([16, 48, 80, 112]))
            arguments = ["warm-cache", "--manifest", path, "--device", OPTIONS.device, "--candidates", 6, "--budget",
                         "10m", "--json", "--jobs", 2]
            # How long does it take undisturbed? Kills are spread over that time.
            with World() as calibration:
                other = calibration.write("manifest.json", harness.manifest([16, 48, 80, 112]))
                whole = calibration.run(*[other if a == path else a for a in arguments])
            assert whole.code == 0, whole
            units = len(events(whole.err))
            finished = False
            while not finished and kills < options.kills:
                runs += 1
                # Each run begins where the last one was killed, so that moments early in a run hit late units too.
                killed, announced = one_kill(world, arguments, choose.uniform(0, 0.6 * whole.seconds), runs)
                kills += killed
                finished = not killed
                log(f"run {runs}: {'killed' if killed else 'finished'}, {len(announced)} of {units} units announced")
            last = world.run(*arguments)
            assert last.code == 0, last
            assert len(kept(last.err)) == units, last
            assert "repair" not in last.err, last
            left = os.listdir(world.temp)
            assert not left, f"left in the temporary folder: {left}"
            again = world.run(*arguments)
            assert again.json["counters"]["compiles"] == 0 and again.json["counters"]["measurements"] == 0, again
    log(f"{kills} kills in {runs} runs: nothing that was announced was lost")
    return 0


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    log(f"{time.monotonic() - began:.1f} s")
    sys.exit(code)

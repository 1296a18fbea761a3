#!/usr/bin/env python3
"""Drives the ktune program from outside: what a user types, and what comes back."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import harness
from harness import OPTIONS, SLOWNESS, World, events, kept, log, manifest, wait_for_units

TINY_QWEN3 = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "vocab_size": 160,
    "torch_dtype": "bfloat16",
}


def with_field(config, **fields):
    return {k: v for k, v in {**config, **fields}.items() if v is not ...}


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.world = self.enterContext(World()) if hasattr(self, "enterContext") else World().__enter__()
        if not hasattr(self, "enterContext"):
            self.addCleanup(self.world.__exit__)

    def tearDown(self):
        self.assertEqual(self.world.leaked_processes(), [], "processes left behind")

    def ok(self, run, code=0):
        self.assertEqual(run.code, code, run)
        return run

    def fails(self, run, code, fragment):
        """One clear line, and nothing else."""
        self.assertEqual(run.code, code, run)
        self.assertEqual(len(run.error_lines), 1, run)
        self.assertEqual(len(run.err.strip().splitlines()), 1, run)
        self.assertIn(fragment, run.err)
        return run

    def warm(self, path, *more, env=None, candidates=6, budget="5m"):
        return self.world.run("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--candidates", candidates,
                              "--budget", budget, "--jobs", 2, "--json", *more, env=env)


class WarmCacheTest(CliTest):
    def test_second_run_costs_nothing(self):
        model = self.world.write("config.json", TINY_QWEN3)
        arguments = ("warm-cache", "--model", model, "--tokens", "1,4", "--device", OPTIONS.device, "--candidates", 4,
                     "--budget", "5m", "--json")
        first = self.ok(self.world.run(*arguments)).json
        # 11 operators (two of the three norms of the hidden size and the final one are the same), 2 buckets each.
        self.assertEqual(len(first["units"]), 2 * 11, first)
        self.assertEqual(first["counters"]["tuned"], len(first["units"]))
        self.assertGreater(first["counters"]["compiles"], 0)
        self.assertGreater(first["counters"]["measurements"], 0)
        shares = [u["share"] for u in first["units"]]
        self.assertEqual(shares, sorted(shares, reverse=True))
        self.assertAlmostEqual(sum(shares), 1)
        names = {name for u in first["units"] for name in u["names"]}
        self.assertEqual(names, {"input_layernorm", "post_attention_layernorm", "norm", "qkv_proj", "q_norm", "k_norm",
                                 "o_proj", "residual_add", "add_rms_norm", "gate_up_proj", "silu_mul", "down_proj",
                                 "lm_head"})
        self.assertEqual({o["operator"] for o in first["out_of_scope"]}, {"attention", "rope", "embedding"})

        second_run = self.ok(self.world.run(*arguments))
        second = second_run.json
        self.assertEqual(second["counters"]["compiles"], 0)
        self.assertEqual(second["counters"]["measurements"], 0)
        self.assertEqual(second["counters"]["checks"], 0)
        self.assertEqual(second["counters"]["hits"], len(first["units"]))
        self.assertEqual({u["outcome"] for u in second["units"]}, {"hit"})
        self.assertLess(second_run.seconds, 0.5 * SLOWNESS)
        self.assertEqual(os.listdir(self.world.temp), [])

    def test_warm_run_starts_no_worker(self):
        path = self.world.write("m.json", manifest([16]))
        self.ok(self.warm(path))
        if OPTIONS.device != "fake":
            self.skipTest("only the fake device can be told to refuse to start")
        # Workers that cannot do anything are no hindrance when none is needed.
        run = self.ok(self.warm(path, env={"KTUNE_FAULT": "start=1"}))
        self.assertEqual(run.json["counters"]["hits"], 6)

    def test_equal_operators_are_tuned_once(self):
        linear = {"op": "linear", "n": 32, "k": 32, "tokens": [1, 4]}
        path = self.world.write("m.json", {"version": 1, "operators": [{**linear, "name": "a"}, {**linear, "name": "b"}]})
        result = self.ok(self.warm(path)).json
        self.assertEqual([u["bucket"] for u in result["units"]], [1, 0] if result["units"][0]["bucket"] else [0, 1])
        self.assertEqual(result["units"][0]["names"], ["a", "b"])
        self.assertEqual(result["units"][0]["count"], 2)

    def test_retune_measures_again(self):
        path = self.world.write("m.json", manifest([16]))
        self.ok(self.warm(path))
        again = self.ok(self.warm(path, "--retune")).json
        self.assertEqual(again["counters"]["hits"], 0)
        self.assertGreater(again["counters"]["measurements"], 0)

    def test_events_follow_the_records(self):
        path = self.world.write("m.json", manifest([16]))
        run = self.ok(self.warm(path))
        self.assertEqual(len(events(run.err)), 6)
        for line in run.err.splitlines():
            json.loads(line)  # With --json, standard error is JSON lines too.

    def test_table_and_lines(self):
        path = self.world.write("m.json", manifest([16]))
        run = self.ok(self.world.run("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--candidates", 4))
        self.assertEqual(len(run.err.strip().splitlines()), 6, run)
        self.assertTrue(run.err.startswith("[1/6] "), run)
        self.assertNotIn("\r", run.err)
        header, *rows = run.out.splitlines()
        for column in ("operator", "bucket", "decision", "default", "tuned", "speed-up", "candidates", "rejected"):
            self.assertIn(column, header)
        self.assertEqual(len(rows), 7, run)  # 6 units and the summary.
        quiet = self.ok(self.world.run("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--quiet"))
        self.assertEqual(quiet.err, "")

    def test_budget_that_ends_first(self):
        path = self.world.write("m.json", manifest(range(16, 16 * 40, 16)))
        run = self.warm(path, budget="0.5s", candidates=1000)
        self.assertEqual(run.code, 3, run)
        result = run.json
        self.assertGreater(result["counters"]["not_reached"], 0)
        self.assertIn("budget", result["error"]["message"])
        self.assertEqual(len(run.error_lines), 1, run)
        done = {(u["key"], u["bucket"]) for u in result["units"] if u["outcome"] == "tuned"}
        present = {(r["key"], r["bucket"]) for r in self.ok(self.world.run("list", "--json")).json["records"]}
        self.assertEqual(done, present)

    def test_bad_candidates_are_data(self):
        if OPTIONS.device != "fake":
            self.skipTest("only the fake compiler misbehaves on request")
        path = self.world.write("m.json", manifest([16]))
        faults = "compile-error=3,wrong=4,unwritten=5,overrun=7"
        result = self.ok(self.warm(path, env={"KTUNE_FAULT": faults}, candidates=20)).json
        rejections = {}
        for unit in result["units"]:
            for reason, count in unit["rejections"].items():
                rejections[reason] = rejections.get(reason, 0) + count
        self.assertIn("compile-error", rejections)
        self.assertTrue({"wrong-result", "unwritten-output", "guard-band"} & set(rejections), rejections)

    def test_models(self):
        for name, units in (("qwen3-8b", 22), ("llama-3-8b", 18)):
            # Nothing is reached in no time, but the plan of work is there.
            path = os.path.join(OPTIONS.source, "examples", "models", name + ".json")
            run = self.world.run("warm-cache", "--model", path, "--device", OPTIONS.device, "--budget", "0.000001s",
                                 "--json", "--tokens", "1,16")
            self.assertEqual(run.code, 3, run)
            self.assertEqual(len(run.json["units"]), units, run)
            self.assertIn("lm_head", [n for u in run.json["units"][:10] for n in u["names"]])


class BadInputTest(CliTest):
    def test_table(self):
        w = self.world
        good = w.write("good.json", manifest([16]))
        model = w.write("config.json", TINY_QWEN3)
        operator = {"op": "linear", "n": 16, "k": 16}

        def operators(*entries):
            return {"version": 1, "operators": list(entries)}

        def m(content):
            m.count += 1
            return ["warm-cache", "--manifest", w.write(f"bad{m.count}.json", content)]

        def c(**fields):
            m.count += 1
            return ["warm-cache", "--model", w.write(f"bad{m.count}.json", with_field(TINY_QWEN3, **fields))]

        m.count = 0
        a_file = w.write("a-file", "")
        table = [
            # The command line.
            ([], 2, "no command"),
            (["fly"], 2, "fly"),
            (["list", "--nonsense"], 2, "--nonsense"),
            (["warm-cache"], 2, "--model"),
            (["warm-cache", "--model", model, "--manifest", good], 2, "not both"),
            (["warm-cache", "--model"], 2, "--model"),
            (["warm-cache", "--manifest", good, "--budget", "soon"], 2, "no duration"),
            (["warm-cache", "--manifest", good, "--budget", "-3s"], 2, "no duration"),
            (["warm-cache", "--manifest", good, "--budget", "0"], 2, "no duration"),
            (["warm-cache", "--manifest", good, "--budget", "nan"], 2, "no duration"),
            (["warm-cache", "--manifest", good, "--budget", "3 parsecs"], 2, "no duration"),
            (["warm-cache", "--manifest", good, "--tokens", "16,1"], 2, "ascending"),
            (["warm-cache", "--manifest", good, "--tokens", "0,1"], 2, "from 1"),
            (["warm-cache", "--manifest", good, "--tokens", "1,,2"], 2, "ascending"),
            (["warm-cache", "--manifest", good, "--tokens", ""], 2, "--tokens"),
            (["warm-cache", "--manifest", good, "--candidates", "0"], 2, "--candidates"),
            (["warm-cache", "--manifest", good, "--candidates", "many"], 2, "--candidates"),
            (["warm-cache", "--manifest", good, "--jobs", "-1"], 2, "--jobs"),
            (["warm-cache", "--manifest", good, "--log", "loud"], 2, "loud"),
            (["warm-cache", "--manifest", good, "--device", "abacus"], 4, "abacus"),
            (["warm-cache", "--manifest", good, "--device", "cuda:99"], 4, "cuda:99"),
            (["warm-cache", "--manifest", good, "--device", ","], 4, "empty name"),
            (["warm-cache", "--manifest", good, "--device", f"{OPTIONS.device},"], 4, "empty name"),
            (["warm-cache", "--manifest", good, "--device", f",{OPTIONS.device}"], 4, "empty name"),
            # Files.
            (["warm-cache", "--manifest", w.root + "/absent.json"], 2, "absent.json"),
            (["warm-cache", "--manifest", w.root], 2, w.root),
            (["warm-cache", "--model", w.root + "/absent.json"], 2, "absent.json"),
            # Manifests.
            (m(""), 2, "bad1.json:1:1"),
            (m("{\"version\": 1,\n \"operators\": [}"), 2, "bad2.json:2:"),
            (m([]), 2, "object"),
            (m({}), 2, "version"),
            (m({"version": 2, "operators": []}), 2, "version"),
            (m({"version": "1", "operators": []}), 2, "version"),
            (m(operators()), 2, "operators"),
            (m({"version": 1, "operators": {}}), 2, "operators"),
            (m({"version": 1, "operators": [operator], "oprators": 1}), 2, "oprators"),
            (m(operators(1)), 2, "operators[0]"),
            (m(operators(operator, {"op": "conv", "n": 1})), 2, "operators[1]"),
            (m(operators({"op": "linear", "n": 16})), 2, "k"),
            (m(operators({**operator, "n": 0})), 2, "operators[0].n"),
            (m(operators({**operator, "n": -5})), 2, "operators[0].n"),
            (m(operators({**operator, "n": 1e3})), 2, "operators[0].n"),
            (m(operators({**operator, "n": 1 << 62})), 2, "operators[0].n"),
            (m(operators({**operator, "columns": 3})), 2, "columns"),
            (m(operators({**operator, "dtype": "f33"})), 2, "f33"),
            (m(operators({**operator, "tokens": []})), 2, "tokens"),
            (m(operators({**operator, "tokens": [4, 1]})), 2, "tokens"),
            (m(operators({**operator, "tokens": [0]})), 2, "tokens"),
            (m(operators({**operator, "tokens": "1,16"})), 2, "tokens"),
            (m(operators({**operator, "count": 0})), 2, "count"),
            (m(operators({"inputs": []})), 2, "operators[0]"),
            (m(operators({"inputs": [], "nodes": [], "outputs": []})), 2, "operators[0]"),
            # Models.
            (["warm-cache", "--model", good], 2, "model_type"),
            (c(model_type="mamba"), 2, "mamba"),
            (c(model_type="qwen3_moe", num_experts=128), 2, "mixture of experts (num_experts = 128)"),
            (c(model_type="deepseek_v3", kv_lora_rank=512), 2, "multi-head latent attention (kv_lora_rank = 512)"),
            (c(quantization_config={"quant_method": "fp8"}), 2, "quantised"),
            (c(hidden_size=...), 2, "hidden_size"),
            (c(hidden_size="64"), 2, "hidden_size"),
            (c(hidden_size=0), 2, "hidden_size"),
            (c(num_hidden_layers=-1), 2, "num_hidden_layers"),
            (c(num_key_value_heads=3), 2, "multiple"),
            (c(head_dim=..., hidden_size=66), 2, "multiple"),
            # One operator.
            (["tune"], 2, "say what to tune"),
            (["tune", "--op", "linear", "--n", "16"], 2, "k"),
            (["tune", "--op", "linear", "--n", "16", "--k", "x"], 2, "--k"),
            (["tune", "--op", "linear", "--n", "16", "--k", "16", "--columns", "4"], 2, "columns"),
            (["tune", good, "--op", "linear"], 2, "not both"),
            (["tune", good], 2, "good.json"),
            (["tune", "-"], 2, "standard input"),
            # Records.
            (["list", "--cache", w.root + "/none"], 5, w.root + "/none"),
            (["show"], 2, "key"),
            (["show", "abc", "--cache", w.root + "/none"], 5, w.root + "/none"),
            (["show", "abc", "--stage", "poetry"], 2, "linalg"),
            (["show", "abc", "--bucket", "-1"], 2, "--bucket"),
            (["verify"], 2, "--all"),
            (["verify", "abc", "--all"], 2, "not both"),
            (["list", "--cache", a_file], 2, a_file),
            (["warm-cache", "--manifest", good, "--cache", a_file], 2, a_file),
            (["worker", "compile", "--device", OPTIONS.device], 2, "started by ktune itself"),
            (["worker", "dance"], 2, "dance"),
        ]
        for arguments, code, fragment in table:
            if "--device" not in arguments and arguments[:1] in (["warm-cache"], ["tune"]):
                arguments = [arguments[0], "--device", OPTIONS.device, *arguments[1:]]
            with self.subTest(arguments=arguments):
                run = self.fails(w.run(*arguments), code, fragment)
                self.assertEqual(run.out, "")
                if arguments[:1] in (["list"], ["show"], ["verify"], ["warm-cache"], ["tune"]):
                    run = w.run(arguments[0], "--json", *arguments[1:])
                    self.assertEqual(run.code, code, run)
                    error = run.json["error"]
                    self.assertIn(fragment, error["message"])
                    self.assertTrue(re.fullmatch("[a-z-]+", error["code"]), error)
        self.assertFalse(os.path.exists(w.cache), "bad input made a cache")

    def test_environment(self):
        self.fails(self.world.run("list", env={"KTUNE_LOG": "loud"}), 2, "KTUNE_LOG")
        self.fails(self.world.run("list", env={"KTUNE_JOBS": "two"}), 2, "KTUNE_JOBS")

    def test_help(self):
        run = self.ok(self.world.run("--help"))
        for command in ("warm-cache", "tune", "list", "show", "verify", "devices", "doctor"):
            self.assertIn(command, run.out)
            text = self.ok(self.world.run(command, "--help")).out
            self.assertRegex(text, r"Examples?:\n  ktune " + command)
        self.assertNotIn("worker", run.out)
        self.assertRegex(self.ok(self.world.run("--version")).out, r"^ktune \d+\.\d+\.\d+\n$")


class TuneTest(CliTest):
    def test_flags_and_description_give_the_same_key(self):
        options = ("--tokens", "1,4", "--device", OPTIONS.device, "--candidates", 4, "--json")
        first = self.ok(self.world.run("tune", "--op", "linear", "--n", 32, "--k", 16, *options)).json
        self.assertEqual(first["counters"]["tuned"], 2)
        description = self.ok(self.world.run("show", first["units"][0]["key"], "--json")).json["records"][0]["description"]
        path = self.world.write("description.json", description)
        second = self.ok(self.world.run("tune", path, *options)).json
        self.assertEqual(second["counters"]["hits"], 2, second)
        third = self.ok(self.world.run("tune", "-", *options, stdin=json.dumps(description))).json
        self.assertEqual(third["counters"]["hits"], 2, third)

    def test_every_short_form(self):
        options = ("--tokens", "4", "--device", OPTIONS.device, "--candidates", 3, "--json")
        for flags in (("--op", "add", "--columns", 48), ("--op", "linear", "--n", 16, "--k", 48, "--bias"),
                      ("--op", "rms_norm", "--columns", 48, "--rows-per-token", 2, "--eps", "1e-5"),
                      ("--op", "softmax", "--columns", 48), ("--op", "layer_norm", "--columns", 48, "--eps", "1e-4"),
                      ("--op", "silu_mul", "--columns", 48), ("--op", "reduce_max", "--columns", 48)):
            with self.subTest(flags=flags):
                result = self.ok(self.world.run("tune", *flags, *options)).json
                self.assertEqual(result["counters"]["tuned"], 1)
        for flags, words in ((("--op", "matmul", "--columns", 8), "has no short form"),
                             (("--op", "gelu", "--columns", 8, "--eps", 1), "unknown field"),
                             (("--op", "clamp", "--columns", 8), "'low'"), (("--op", "silu"), "columns")):
            with self.subTest(flags=flags):
                run = self.world.run("tune", *flags, "--device", OPTIONS.device)
                self.assertEqual(run.code, 2, run)
                self.assertIn(words, run.err)


class RecordsTest(CliTest):
    def setUp(self):
        super().setUp()
        self.path = self.world.write("m.json", manifest([16]))
        self.units = self.ok(self.warm(self.path, candidates=10)).json["units"]

    def test_list(self):
        listing = self.ok(self.world.run("list", "--json")).json
        self.assertEqual({(r["key"], r["bucket"]) for r in listing["records"]},
                         {(u["key"], u["bucket"]) for u in self.units})
        for record in listing["records"]:
            self.assertEqual(record["stamp"], "fresh")
            self.assertIn(record["decision"], ("tuned", "default", "use-fallback"))
        text = self.ok(self.world.run("list")).out
        for unit in self.units:
            self.assertIn(unit["key"][:12], text)
        self.assertIn("6 records", text)

    def test_show(self):
        key = self.units[0]["key"]
        text = self.ok(self.world.run("show", key[:10])).out
        for word in ("decision", "genome", "#ktune.genome<", "candidates", "checks", "hardware", "made by", "fresh"):
            self.assertIn(word, text)
        shown = self.ok(self.world.run("show", key.upper(), "--json")).json
        self.assertEqual([r["bucket"] for r in shown["records"]], [0, 1])
        self.assertTrue(shown["records"][0]["evidence"]["checks"])
        one = self.ok(self.world.run("show", key, "--bucket", 1, "--json")).json
        self.assertEqual([r["bucket"] for r in one["records"]], [1])
        self.fails(self.world.run("show", key, "--bucket", 7), 2, "bucket 7")
        self.fails(self.world.run("show", "xyz"), 2, "hex")
        absent = "0" * 32
        self.fails(self.world.run("show", absent), 2, absent)

    def test_ambiguous_prefix(self):
        keys = {u["key"] for u in self.units}
        by_digit = {}
        for key in keys:
            by_digit.setdefault(key[0], []).append(key)
        shared = [keys for keys in by_digit.values() if len(keys) > 1]
        if not shared:  # Three random keys seldom share a digit; add some until two do.
            path = self.world.write("more.json", manifest(range(24, 24 + 8 * 8, 8), tokens=[1]))
            more = self.ok(self.warm(path, candidates=1)).json["units"]
            for unit in more:
                by_digit.setdefault(unit["key"][0], []).append(unit["key"])
            shared = [keys for keys in by_digit.values() if len(keys) > 1]
        run = self.fails(self.world.run("show", shared[0][0][0]), 2, "more digits")
        for key in shared[0]:
            self.assertIn(key, run.err)

    def test_export(self):
        key = self.units[0]["key"]
        path = self.world.write("record.ktune", "")
        self.fails(self.world.run("show", key, "--export", path), 2, "--bucket")
        wrote = self.ok(self.world.run("show", key, "--bucket", 0, "--export", path, "--json")).json
        self.assertEqual(os.path.getsize(path), wrote["bytes"])
        self.assertGreater(wrote["bytes"], 100)
        self.fails(self.world.run("show", key, "--bucket", 0, "--export", "/proc/none/record"), 2, "--export")

    def test_stage(self):
        unit = self.units[0]
        arguments = ("show", unit["key"], "--stage")
        if not OPTIONS.mlir:
            self.fails(self.world.run(*arguments, "llvm", "--bucket", 0), 4, "KTUNE_WITH_MLIR")
            return
        self.fails(self.world.run(*arguments, "llvm"), 2, "--bucket")
        for stage, fragment in (("linalg", "func.func"), ("decomposed", "linalg."), ("tiles", "ktune."),
                                ("vector", "vector."), ("llvm", "define"), ("assembly", ".text")):
            with self.subTest(stage=stage):
                self.assertIn(fragment, self.ok(self.world.run(*arguments, stage, "--bucket", 0)).out)

    def test_verify(self):
        run = self.world.run("verify", "--all", "--json")
        result = run.json
        if OPTIONS.device == "fake":
            self.assertEqual(result["holds"], 6, result)
        # On a busy machine a win of a percent may not be seen again; right is right all the same.
        self.assertEqual(run.code, 6 if result["slower"] else 0, run)
        self.assertEqual(result["holds"] + result["slower"], 6, result)
        for record in result["records"]:
            self.assertEqual(record["differences"], [])
        text = self.world.run("verify", self.units[0]["key"][:10]).out
        self.assertEqual(len(re.findall("^(?:holds|slower) .*: right", text, re.M)), 2, text)

    def test_verify_removes_what_is_wrong(self):
        if OPTIONS.device != "fake":
            self.skipTest("only the fake device can be told to go wrong")
        wrong = {"KTUNE_FAULT": "wrong=1"}  # Every kernel but the default.
        tuned = {(u["key"], u["bucket"]) for u in self.units if u["decision"] == "tuned"}
        self.assertTrue(tuned, "nothing was tuned: the test shows nothing")
        kept_run = self.world.run("verify", "--all", "--json", "--keep", env=wrong)
        self.assertEqual(kept_run.code, 6, kept_run)
        self.assertEqual(len(self.ok(self.world.run("list", "--json")).json["records"]), 6)
        run = self.world.run("verify", "--all", "--json", env=wrong)
        self.assertEqual(run.code, 6, run)
        found = {(r["key"], r["bucket"]) for r in run.json["records"] if r["verdict"] == "wrong"}
        self.assertEqual(found, tuned)
        self.assertTrue(all(r["removed"] for r in run.json["records"] if r["verdict"] == "wrong"))
        left = {(r["key"], r["bucket"]) for r in self.ok(self.world.run("list", "--json")).json["records"]}
        self.assertEqual(left, {(u["key"], u["bucket"]) for u in self.units} - tuned)
        again = self.ok(self.warm(self.path)).json
        self.assertEqual(again["counters"]["tuned"], len(tuned))

    def test_damaged_value_is_a_miss(self):
        """Flips a byte of the tables in which the records lie: the next run must tune what was lost again."""
        database = os.path.join(self.world.cache, "db")
        tables = [os.path.join(database, name) for name in os.listdir(database) if name.endswith(".sst")]
        self.assertTrue(tables, os.listdir(database))
        for path in tables:
            with open(path, "r+b") as file:
                content = bytearray(file.read())
                content[len(content) // 4] ^= 0xFF  # Tables begin with their data.
                file.seek(0)
                file.write(content)
        again = self.ok(self.warm(self.path)).json
        self.assertGreater(again["counters"]["tuned"], 0, again)
        self.assertEqual(again["counters"]["tuned"] + again["counters"]["hits"], 6)
        last = self.ok(self.warm(self.path)).json
        self.assertEqual(last["counters"]["hits"], 6)
        self.ok(self.world.run("list"))


class MachineTest(CliTest):
    def test_several_devices_share_the_units(self):
        model = self.world.write("config.json", TINY_QWEN3)
        both = f"{OPTIONS.device},{OPTIONS.device}"
        arguments = ("warm-cache", "--model", model, "--tokens", "1,4", "--device", both, "--candidates", 3, "--budget",
                     "5m", "--jobs", 2, "--json")
        first = self.ok(self.world.run(*arguments)).json
        self.assertEqual(first["device"], both)
        self.assertEqual(first["counters"]["tuned"], len(first["units"]))
        self.assertTrue(all(unit["outcome"] == "tuned" for unit in first["units"]), first)
        second = self.ok(self.world.run(*arguments)).json
        self.assertEqual(second["counters"]["compiles"], 0)
        self.assertEqual(second["counters"]["hits"], len(first["units"]))
        self.fails(self.world.run("warm-cache", "--model", model, "--device", f"{OPTIONS.device},abacus"), 4, "abacus")

    def test_devices(self):
        devices = self.ok(self.world.run("devices", "--json")).json["devices"]
        mine = [d for d in devices if d["name"] == OPTIONS.device]
        self.assertEqual(len(mine), 1, devices)
        self.assertTrue(mine[0]["can_compile"])
        self.assertGreaterEqual(mine[0]["cores"], 1)
        self.assertIn(OPTIONS.device, self.ok(self.world.run("devices")).out)

    def test_doctor(self):
        report = self.ok(self.world.run("doctor", "--json")).json
        self.assertEqual(report["problems"], 0, report)
        names = {c["name"] for c in report["checks"]}
        self.assertLessEqual({"cores", "memory", "device " + OPTIONS.device, "cache folder", "cache disk",
                              "cache records", "workers " + OPTIONS.device}, names)
        text = self.ok(self.world.run("doctor")).out
        self.assertIn("0 problems", text)
        self.assertFalse(os.path.exists(self.world.cache), "doctor made a cache")
        self.assertEqual(os.listdir(self.world.temp), [])

    def test_doctor_says_what_is_wrong(self):
        blocked = self.world.write("file", "")
        run = self.ok(self.world.run("doctor", "--cache", blocked + "/cache", "--json"), code=5)
        bad = [c for c in run.json["checks"] if c["level"] == "problem"]
        self.assertTrue(bad)
        self.assertTrue(all(c["advice"] for c in bad), bad)
        run = self.ok(self.world.run("doctor", "--json", env={"TMPDIR": self.world.root + "/absent"}), code=4)
        self.assertIn("TMPDIR", json.dumps(run.json))


class CacheTest(CliTest):
    def test_unwritable(self):
        path = self.world.write("m.json", manifest([16]))
        places = ["/proc/ktune-cache"]
        if os.geteuid() != 0:
            locked = os.path.join(self.world.root, "locked")
            os.mkdir(locked, 0o500)
            places.append(locked)
        else:
            log("unwritable folder: skipped, root may write everywhere")
        for place in places:
            with self.subTest(place=place):
                run = self.warm(path, "--cache", place)
                self.assertEqual(run.code, 5, run)
                self.assertEqual(len(run.error_lines), 1, run)
                self.assertIn(place, run.err)
                self.assertLess(run.seconds, 5 * SLOWNESS, "it tuned before it looked")

    def test_read_only_cache_serves_hits(self):
        path = self.world.write("m.json", manifest([16]))
        self.ok(self.warm(path))
        subprocess.run(["chmod", "-R", "a-w", self.world.cache], check=True)
        run = self.ok(self.warm(path))
        self.assertEqual(run.json["counters"]["hits"], 6)

    def test_full_disk(self):
        path = self.world.write("m.json", manifest([16]))
        place = os.path.join(self.world.root, "small")
        os.mkdir(place)
        script = ('mount -t tmpfs -o size=4m tmpfs "$0" || exit 77; exec "$@"')
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, place,
                               OPTIONS.ktune, "warm-cache", "--manifest", path, "--device", OPTIONS.device, "--cache",
                               place + "/cache"], capture_output=True, text=True, env=self.world.environment(),
                              check=False)
        if done.returncode == 77 or "unshare" in done.stderr:
            self.skipTest("this system lets no user mount a small disk: " + done.stderr.strip())
        self.assertEqual(done.returncode, 5, done)
        self.assertIn("free", done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done)

    def test_two_processes(self):
        path = self.world.write("m.json", manifest(range(16, 16 * 20, 16)))
        first = self.world.start("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--candidates", 40,
                                 "--budget", "10m", "--json")
        try:
            seen = kept(wait_for_units(first, 2))
            second = self.world.run("warm-cache", "--manifest", path, "--device", OPTIONS.device)
            self.fails(second, 5, str(first.pid))
            listing = self.ok(self.world.run("list", "--json")).json
            self.assertLessEqual(seen, {(r["key"], r["bucket"]) for r in listing["records"]})
            key = next(iter(seen))[0]
            self.ok(self.world.run("show", key))
            # What is there already is served without the lock.
            self.assertIsNone(first.poll(), "the first run ended too early for this test")
        finally:
            first.send_signal(signal.SIGTERM)
            first.communicate()
        self.assertEqual(first.returncode, 143)


class InterruptTest(CliTest):
    def test_interrupt_keeps_what_is_done(self):
        path = self.world.write("m.json", manifest(range(16, 16 * 20, 16)))
        arguments = ("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--candidates", 8, "--budget", "10m",
                     "--json")
        process = self.world.start(*arguments)
        err = wait_for_units(process, 3)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, rest = process.communicate(timeout=60 * SLOWNESS)
        self.assertLess(time.monotonic() - began, 10 * SLOWNESS)
        err += rest
        self.assertEqual(process.returncode, 130, err)
        result = json.loads(out)
        self.assertTrue(result["interrupted"])
        self.assertGreater(result["counters"]["not_reached"], 0)
        self.assertIn("interrupted", result["error"]["message"])
        self.assertEqual(os.listdir(self.world.temp), [])
        present = {(r["key"], r["bucket"]) for r in self.ok(self.world.run("list", "--json")).json["records"]}
        self.assertLessEqual(kept(err), present)
        self.assertGreaterEqual(len(present), 3)
        resumed = self.ok(self.world.run(*arguments)).json
        self.assertEqual(resumed["counters"]["hits"], len(present))
        self.assertEqual(resumed["counters"]["hits"] + resumed["counters"]["tuned"], len(resumed["units"]))

    def test_second_interrupt_kills(self):
        path = self.world.write("m.json", manifest(range(16, 16 * 20, 16)))
        process = self.world.start("warm-cache", "--manifest", path, "--device", OPTIONS.device, "--budget", "10m",
                                   "--json")
        wait_for_units(process, 1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30 * SLOWNESS)
        # The first may have been enough when the second came late.
        self.assertIn(process.returncode, (-signal.SIGTERM, 143))


if __name__ == "__main__":
    _, rest = harness.parse_arguments()
    shutil.which("unshare") or log("full disk: unshare is missing")
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)

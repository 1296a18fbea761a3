#!/usr/bin/env python3
"""Lists translation units of a build folder's compile_commands.json, or counts those with MLIR headers.

usage: units.py BUILD_DIR plain            the project's own units without MLIR headers, one a line
       units.py BUILD_DIR mlir             those with MLIR headers
       units.py BUILD_DIR check-mlir MAX   prints the count of the latter; exit code 1 when it exceeds MAX

A unit counts as one with MLIR headers when its sources (followed through the project's own includes) name a header of
mlir/ or llvm/, or when it is compiled with the MLIR precompiled header. Such units take most of a build's time and
memory, so their number is kept small.
"""
import json
import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def ownFile(root, includer, name):
    """The project's file that an include names, or None."""
    for base in (os.path.dirname(includer), root, os.path.join(root, "include")):
        path = os.path.normpath(os.path.join(base, name))
        if path.startswith(root + os.sep) and os.path.isfile(path):
            return path
    return None


def includesMlir(root, path, seen):
    if path in seen:
        return False
    seen.add(path)
    with open(path, encoding="utf-8") as f:
        names = INCLUDE.findall(f.read())
    if any(n.startswith(("mlir/", "llvm/", "mlir-c/", "lld/")) for n in names):
        return True
    return any(p and includesMlir(root, p, seen) for p in (ownFile(root, path, n) for n in names))


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("plain", "mlir", "check-mlir"):
        sys.exit(__doc__)
    build, mode = os.path.abspath(sys.argv[1]), sys.argv[2]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        database = json.load(f)
    plain, mlir = set(), set()
    for entry in database:
        path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        if not path.startswith(root + os.sep):
            continue
        generated = path.startswith(build + os.sep)
        if not generated and includesMlir(root, path, set()):
            mlir.add(path)
        elif generated and "cmake_pch" in path:
            mlir.add(path)  # The precompiled header itself is compiled once.
        elif not generated:
            plain.add(path)
    if mode == "check-mlir":
        limit = int(sys.argv[3])
        print(f"{len(mlir)} translation units with MLIR headers (at most {limit}):")
        for path in sorted(mlir):
            print("  " + os.path.relpath(path, root))
        sys.exit(len(mlir) > limit)
    for path in sorted(plain if mode == "plain" else mlir):
        print(os.path.relpath(path, root))


if __name__ == "__main__":
    main()

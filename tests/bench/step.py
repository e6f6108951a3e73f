#!/usr/bin/env python3
"""Training step, ours against PyTorch: both programs stay alive and take turns on the same machine.

  step.py PROGRAM [--model small|large|NAME...] [--rounds N] [--threads N] [--python PYTHON]

PROGRAM is bench_step (tests/bench/step_bench.cpp). It and torch_step.py take the same arguments and
speak the same way: a JSON line when ready, then for every line "N" the milliseconds of N steps. The
ratio is PyTorch's time over ours: median over rounds, each round one turn of both. Without PyTorch,
ours is measured alone and the peer is said to be missing.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {
    "small": {"layers": 4, "width": 256, "heads": 4, "context": 256, "batch": 8},
    "large": {"layers": 12, "width": 768, "heads": 12, "context": 256, "batch": 4},
}
STEPS_PER_TURN = {"small": 3, "large": 1}
# Ours, and what PyTorch offers for it; the fastest of these counts.
PRECISIONS = {"f32": ["f32"], "bf16": ["autocast", "bf16"]}


class Peer:
    """A program that trains steps when asked."""

    def __init__(self, command, arguments):
        flags = [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
        self.process = subprocess.Popen(
            command + flags, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[:2]} ended with {self.process.wait()}")
        return json.loads(line)

    def turn(self, steps):
        """Median milliseconds of so many steps; what else the program says stays in self.said."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.said = self.answer()
        return statistics.median(self.said["ms"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0


def measure(model, ours_precision, args, with_peers):
    shape = MODELS[model] | {"vocabulary": 4096, "threads": args.threads}
    ours = Peer([args.program], shape | {"precision": ours_precision})
    script = [args.python, str(HERE / "torch_step.py")]
    peers = {}
    if with_peers:
        for precision in PRECISIONS[ours_precision]:
            peers[precision] = Peer(script, shape | {"precision": precision})
    steps = STEPS_PER_TURN[model]
    for program in (ours, *peers.values()):
        program.turn(2)  # first steps touch memory and make kernels
    rounds = []
    shares = []
    for _ in range(args.rounds):
        rounds.append({"ours": ours.turn(steps)} | {n: p.turn(steps) for n, p in peers.items()})
        shares.append(ours.said["peak_share"])
    for program in (ours, *peers.values()):
        program.close()
    result = {"model": model, "precision": ours_precision, "threads": args.threads}
    result["parameters"] = ours.ready["parameters"]
    result["peak_share"] = statistics.median(shares)
    result["allocations"] = ours.said["allocations"]
    result["ours_ms"] = statistics.median(r["ours"] for r in rounds)
    line = f"{model:6} {ours_precision:5} ours {result['ours_ms']:9.1f} ms"
    line += f" ({100 * result['peak_share']:.0f} % of the multiply-add peak)"
    if peers:
        medians = {name: statistics.median(r[name] for r in rounds) for name in peers}
        best = min(medians, key=medians.get)
        ratios = sorted(r[best] / r["ours"] for r in rounds)
        result |= {"torch_ms": medians, "ratio": statistics.median(ratios)}
        line += f"  PyTorch ({best}) {medians[best]:9.1f} ms  ratio {result['ratio']:.2f}"
        line += f"  ({ratios[0]:.2f} to {ratios[-1]:.2f}, {args.rounds} rounds)"
    print(line, flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    args = parser.parse_args()
    with_peers = has_torch(args.python)
    if not with_peers:
        print(f"no PyTorch in {args.python}: ours alone (pip install torch numpy, or --python)")
    for model in args.model:
        for precision in args.precision:
            print(json.dumps(measure(model, precision, args, with_peers)), flush=True)


if __name__ == "__main__":
    main()

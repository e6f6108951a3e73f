#!/usr/bin/env python3
"""Trains a configuration of Troupe in PyTorch and compares losses and gradient norms step by step.

  train    from a checkpoint of step 0 (or of one step at learning rate 0), on the batches that `troupe data show` prints; writes JSON
  compare  that JSON against the metrics.jsonl of a run of Troupe
  run      all of it: trains with Troupe in a folder of its own, then in PyTorch, then compares
  selftest the model code by itself: gradients against finite differences, files against themselves

Needs: pip install torch numpy. NAME.golden.json beside NAME.toml is what `run --out` wrote;
tests/golden/parity_test.cpp holds the arithmetic to it without PyTorch.

examples:
  python3 tests/parity/train_reference.py run tests/parity/gpt2.toml --troupe build/troupe
  python3 tests/parity/train_reference.py train tests/parity/llama.toml --troupe build/troupe \\
      --checkpoint runs/still/checkpoints/step-00000001 --out /tmp/llama.json
  python3 tests/parity/train_reference.py compare /tmp/llama.json runs/parity/metrics.jsonl
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import models  # noqa: E402
import safetensors_file  # noqa: E402

TOLERANCE = 2e-5


def load_configuration(path):
    with open(path, "rb") as file:
        conf = tomllib.load(file)
    if conf["model"].get("dropout", 0.0) != 0.0:
        raise SystemExit(f"{path}: dropout cannot be compared; set model.dropout = 0")
    if conf["training"].get("compute", "f32") != "f32":
        raise SystemExit(f'{path}: only training.compute = "f32" is compared')
    return conf


def learning_rate(table, run_steps, step):
    """Steps count from 1: a linear rise, then constant, linear or half a cosine."""
    top = table.get("learning_rate", 1e-3)
    low = table.get("minimum", 0.0)
    warmup = table.get("warmup_steps", 0)
    total = table.get("total_steps", run_steps)
    kind = table.get("shape", "cosine")
    if step < warmup:
        return top * step / warmup
    if kind == "constant":
        return top
    if step >= total:
        return low
    progress = max(0.0, (step - warmup) / (total - warmup))
    share = 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return low + (top - low) * share


def rows(values, length):
    """Flat or nested lists of ids -> (sequences, length)."""
    return torch.tensor(values, dtype=torch.int64).reshape(-1, length)


def batch_from_troupe(troupe, conf_path, conf, step):
    """(tokens, targets) of a whole step, each (batch, T)."""
    command = [troupe, "data", "show", str(conf_path), "--step", str(step), "--json"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    length = conf["training"]["sequence_length"]
    parts = shown.get("microbatches", [shown])
    tokens = torch.cat([rows(part["tokens"], length) for part in parts])
    targets = torch.cat([rows(part["targets"], length) for part in parts])
    expected = (conf["training"]["batch_size"], length)
    if tuple(tokens.shape) != expected or tuple(targets.shape) != expected:
        raise SystemExit(f"step {step}: {tuple(tokens.shape)} token ids, expected {expected}")
    return tokens, targets


def make_optimizer(conf, parameters):
    table = conf.get("optimizer", {})
    decay = table.get("weight_decay", 0.01)
    groups = [
        {"params": [p for n, p in parameters.items() if models.decays(n)], "weight_decay": decay},
        {"params": [p for n, p in parameters.items() if not models.decays(n)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        betas=(table.get("beta1", 0.9), table.get("beta2", 0.999)),
        eps=table.get("epsilon", 1e-8),
    )


def train(conf, parameters, batches, dtype=torch.float32):
    """One dictionary a step; `batches` yields (tokens, targets)."""
    shape = models.Shape.of(conf["model"], conf["training"]["sequence_length"])
    parameters = {n: p.to(dtype).clone().requires_grad_(True) for n, p in parameters.items()}
    optimizer = make_optimizer(conf, parameters)
    clip = conf.get("optimizer", {}).get("clip_norm", 1.0)
    steps = []
    for step, (tokens, targets) in enumerate(batches, start=1):
        rate = learning_rate(conf.get("learning_rate", {}), conf["run"].get("steps", 100), step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = models.mean_loss(shape, parameters, tokens, targets)
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in parameters.values()))
        if clip > 0 and norm > clip:
            for p in parameters.values():
                p.grad.mul_(clip / norm)
        optimizer.step()
        steps.append({"step": step, "loss": loss.item(), "gradient_norm": norm, "rate": rate})
    return steps


def compare(reference, metrics_path, tolerance):
    """Prints one line a step; the number of steps that differ too much."""
    with open(metrics_path) as file:
        played = {row["step"]: row for row in map(json.loads, file) if "loss" in row}
    worst, bad = 0.0, 0
    for row in reference["steps"]:
        ours = played.get(row["step"])
        if ours is None:
            raise SystemExit(f"{metrics_path}: step {row['step']} is missing")
        apart = [
            abs(ours[key] - row[key]) / abs(row[key]) if row[key] else abs(ours[key])
            for key in ("loss", "gradient_norm")
        ]
        failed = not all(a <= tolerance for a in apart)
        bad += failed
        worst = max(worst, *apart)
        print(
            f"step {row['step']:3d}  loss {ours['loss']:.7f} / {row['loss']:.7f} ({apart[0]:.1e})"
            f"  norm {ours['gradient_norm']:.7f} / {row['gradient_norm']:.7f} ({apart[1]:.1e})"
            + ("  TOO FAR" if failed else "")
        )
    print(f"largest relative difference {worst:.2e}, allowed {tolerance:.0e}, steps {len(played)}")
    return bad


def command_train(args):
    conf = load_configuration(args.configuration)
    shape = models.Shape.of(conf["model"], conf["training"]["sequence_length"])
    parameters = safetensors_file.read_folder(args.checkpoint, models.parameter_shapes(shape))
    batches = (
        batch_from_troupe(args.troupe, args.configuration, conf, step)
        for step in range(1, args.steps + 1)
    )
    dtype = torch.float64 if args.double else torch.float32
    result = {
        "configuration": pathlib.Path(args.configuration).name,
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "steps": train(conf, parameters, batches, dtype),
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.out:
        pathlib.Path(args.out).write_text(text)
    else:
        print(text, end="")
    return 0


def command_compare(args):
    reference = json.loads(pathlib.Path(args.reference).read_text())
    return 1 if compare(reference, args.metrics, args.tolerance) else 0


def train_with_troupe(args, folder, name, *changes):
    """The folder of the finished run."""
    command = [args.troupe, "train", args.configuration]
    for change in (f"run.folder={folder}", f"run.name={name}", *changes):
        command += ["--set", change]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return pathlib.Path(folder) / name


def command_run(args):
    with tempfile.TemporaryDirectory() as folder:
        # One step at learning rate 0 leaves the weights as they were made.
        still = [f"learning_rate.{key}=0" for key in ("learning_rate", "minimum", "warmup_steps")]
        initial = train_with_troupe(args, folder, "initial", "run.steps=1", *still)
        (args.checkpoint,) = (initial / "checkpoints").glob("step-*")
        run = train_with_troupe(args, folder, "run", f"run.steps={args.steps}")
        kept, args.out = args.out, run / "reference.json"
        command_train(args)
        if kept:
            pathlib.Path(kept).write_text(args.out.read_text())
        reference = json.loads(args.out.read_text())
        return 1 if compare(reference, run / "metrics.jsonl", args.tolerance) else 0


def check_gradients(shape):
    """The directional derivative against a central difference, in double."""
    parameters = models.random_parameters(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    size = (3, shape.context)
    tokens = torch.randint(shape.vocabulary, size, generator=generator)
    targets = torch.randint(shape.vocabulary, size, generator=generator)
    targets[0, :2] = -1
    loss = models.mean_loss(shape, parameters, tokens, targets)
    loss.backward()
    assert abs(loss.item() - math.log(shape.vocabulary)) < 0.1, loss.item()
    ways = {n: torch.randn(p.shape, generator=generator).double() for n, p in parameters.items()}
    slope = sum((p.grad * ways[n]).sum().item() for n, p in parameters.items())
    with torch.no_grad():
        ends = [
            models.mean_loss(
                shape, {n: p + t * ways[n] for n, p in parameters.items()}, tokens, targets
            ).item()
            for t in (1e-5, -1e-5)
        ]
    numeric = (ends[0] - ends[1]) / 2e-5
    assert abs(numeric - slope) < 1e-5 * max(1.0, abs(slope)), (numeric, slope)
    with torch.no_grad():
        fused = models.logits(shape, parameters, tokens, fused=True)
        plain = models.logits(shape, parameters, tokens)
    assert torch.allclose(fused, plain, atol=1e-10)


def command_selftest(args):
    del args
    here = pathlib.Path(__file__).resolve().parent
    for path in sorted(here.glob("*.toml")):
        conf = load_configuration(path)
        shape = models.Shape.of(conf["model"], conf["training"]["sequence_length"])
        check_gradients(shape)
        parameters = models.random_parameters(shape)
        with tempfile.TemporaryDirectory() as folder:
            safetensors_file.write(pathlib.Path(folder) / "model.safetensors", parameters)
            again = safetensors_file.read_folder(folder, models.parameter_shapes(shape))
        assert all(torch.equal(parameters[n], again[n]) for n in parameters)
        size = (conf["training"]["batch_size"], conf["training"]["sequence_length"])
        tokens = torch.randint(shape.vocabulary, size, generator=torch.Generator().manual_seed(2))
        batch = (tokens, tokens.roll(-1, 1))
        single = train(conf, again, [batch] * 20)
        double = train(conf, again, [batch] * 20, torch.float64)
        assert single[-1]["loss"] < single[0]["loss"]
        apart = max(
            abs(a[key] - b[key]) / b[key]
            for a, b in zip(single, double)
            for key in ("loss", "gradient_norm")
        )
        print(
            f"{path.name}: loss {single[0]['loss']:.5f} -> {single[-1]['loss']:.5f}, norm "
            f"{single[0]['gradient_norm']:.4f}, f32 against f64 {apart:.1e}"
        )
        assert apart < TOLERANCE, apart
    print("ok")
    return 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trained = argparse.ArgumentParser(add_help=False)
    trained.add_argument("configuration")
    trained.add_argument("--troupe", default="build/troupe")
    trained.add_argument("--steps", type=int, default=20)
    trained.add_argument("--double", action="store_true", help="train in float64")
    trained.add_argument("--out", help="where the JSON goes")
    compared = argparse.ArgumentParser(add_help=False)
    compared.add_argument("--tolerance", type=float, default=TOLERANCE, help="relative")
    one = commands.add_parser("train", parents=[trained])
    one.add_argument("--checkpoint", required=True, help="folder of a checkpoint of step 0")
    one.set_defaults(run=command_train)
    two = commands.add_parser("compare", parents=[compared])
    two.add_argument("reference")
    two.add_argument("metrics")
    two.set_defaults(run=command_compare)
    commands.add_parser("run", parents=[trained, compared]).set_defaults(run=command_run)
    commands.add_parser("selftest").set_defaults(run=command_selftest)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The training step of a GPT-2-like model in PyTorch, tuned: the peer of tests/bench/step_bench.cpp.

Fused attention, fused AdamW, malloc told to keep its memory, denormals flushed, threads as asked.
Prints one JSON line when ready; then, for every line "N" on its input, trains N steps and prints
{"ms": [...], "loss": last}. Ends with its input. With --steps it needs no input.

Needs: pip install torch numpy

examples:
  python3 tests/bench/torch_step.py --layers 4 --width 256 --steps 10
  python3 tests/bench/torch_step.py --layers 12 --width 768 --batch 4 --precision bf16 --steps 3
"""

import argparse
import ctypes
import json
import sys
import time


def keep_memory():
    """Freed memory stays in the process: first touch of a page is dear in virtual machines."""
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 256 << 20)
    libc.mallopt(arena_max, 1)


keep_memory()  # before PyTorch allocates

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocabulary, args.width)
        self.positions = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Trainer:
    def __init__(self, args):
        torch.manual_seed(0)
        self.model = Model(args)
        if args.precision == "bf16":
            self.model.bfloat16()
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
                {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
            ],
            lr=1e-4,
            fused=True,
        )
        ids = torch.randint(args.vocabulary, (args.batch, args.context + 1))
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        self.autocast = args.precision == "autocast"
        self.loss = torch.compile(self.model) if args.compile else self.model
        self.parameters = parameters

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.tokens, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def steps(self, count):
        times, loss = [], None
        for _ in range(count):
            begin = time.perf_counter()
            loss = self.step()
            times.append(1e3 * (time.perf_counter() - begin))
        return {"ms": [round(t, 3) for t in times], "loss": loss}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--precision",
        choices=("f32", "autocast", "bf16"),
        default="f32",
        help="autocast: f32 weights, bf16 products; bf16: everything, weights and moments too",
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--steps", type=int, help="train this many steps and end")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    trainer = Trainer(args)
    ready = {"name": f"PyTorch {torch.__version__}", "precision": args.precision}
    print(json.dumps(ready | {"parameters": sum(p.numel() for p in trainer.parameters)}), flush=True)
    if args.steps:
        print(json.dumps(trainer.steps(args.steps)), flush=True)
        return
    for line in sys.stdin:
        print(json.dumps(trainer.steps(int(line))), flush=True)


if __name__ == "__main__":
    main()

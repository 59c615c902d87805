"""Several seeds at once, against the same number of runs in turn, in JAX and in PyTorch.

    python -m benchmarks.seeds [--seeds 4] [--steps 100] [--rounds 5]

The model, the batch size and the optimizer are those of `configs/quick.toml` with the scheme
`rope`. PyTorch (an equal model: same sizes, same parameter count, AdamW, clipping, float32) runs
eagerly with all cores, one seed after the other; it is not a dependency (`pip install torch`).
Rounds alternate between the contestants, in separate processes because the placement of seeds is
decided before JAX starts; compile time is not counted. Needs a quiet machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "quick.toml"


def run_jax(seeds: int, steps: int, *, spread: bool) -> dict:
    """Seconds for `steps` updates of `seeds` models as one program; `spread` over the cores."""
    from flax_pos.lab.config import load_config
    from flax_pos.lab.placement import prepare_cpu

    if spread:
        prepare_cpu(seeds, os.cpu_count() or 1)
    import dataclasses

    from flax_pos.lab.members import make_entries, make_members
    from flax_pos.lab.placement import place
    from flax_pos.lab.program import Model, Program

    config = load_config(CONFIG)
    train = dataclasses.replace(config.train, seeds=seeds)
    config = dataclasses.replace(config, schemes=("rope",), sweep={}, train=train)
    loaded = config.task.load()
    (entry,) = make_entries(config)
    program = Program(
        model=Model(config.model.resolve(config.task, loaded.vocab_size), entry.scheme),
        task=config.task,
        loaded=loaded,
        members=make_members(config, entry),
        placement=place(seeds),
        optimizer=config.optimizer,
        steps=config.train.steps,
        batch_size=config.train.batch_size,
        log_every=steps,
    )
    state = program.init()
    parameters = sum(p[0].size for p in state.params.values())
    state, _ = program.advance(state, 2)
    start = time.perf_counter()
    _, log = program.advance(state, steps)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "loss": float(log.loss[0, -1]), "parameters": int(parameters)}


def run_torch(seeds: int, steps: int) -> dict:
    """The same with PyTorch, one seed after the other."""
    import numpy as np
    import torch
    from torch import nn

    from flax_pos.lab.config import load_config

    config = load_config(CONFIG)
    loaded = config.task.load()
    sizes = config.model.resolve(config.task, loaded.vocab_size)
    data = torch.from_numpy(np.asarray(loaded.data["train"]).astype(np.int64))
    length, heads, width = config.task.train_length, sizes.heads, sizes.width
    half = width // heads // 2
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]

    def rotate(x):  # batch, token, head, channel
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.up = nn.Linear(width, sizes.hidden_width, bias=False)
            self.down = nn.Linear(sizes.hidden_width, width, bias=False)
            self.act = nn.GELU(approximate="tanh")

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, heads, -1)).unbind(-3)
            q, k, v = (t.transpose(1, 2) for t in (rotate(q), rotate(k), v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(-2))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(sizes.vocab_size, width)
            self.blocks = nn.ModuleList(Block() for _ in range(sizes.layers))
            self.norm = nn.RMSNorm(width)
            for p in self.parameters():
                if p.ndim > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids):
            x = self.table(ids)
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.table.weight.T

    def train(seed: int, steps: int):
        torch.manual_seed(seed)
        model = Model()
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0
        )
        loss = torch.zeros(())
        for _ in range(steps):
            start = torch.randint(len(data) - length, (config.train.batch_size, 1))
            window = data[start + torch.arange(length + 1)]
            logits = model(window[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model, float(loss.detach())

    train(0, 5)
    start = time.perf_counter()
    for seed in range(seeds):
        model, loss = train(seed, steps)
    seconds = time.perf_counter() - start
    parameters = sum(p.numel() for p in model.parameters())
    return {"seconds": seconds, "loss": loss, "parameters": parameters}


CONTESTANTS = {
    "jax, all seeds at once": lambda seeds, steps: run_jax(seeds, steps, spread=True),
    "jax, one seed (times the seeds)": lambda seeds, steps: run_jax(1, steps, spread=False),
    "torch, seeds in turn": run_torch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(CONTESTANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(CONTESTANTS[args.only](args.seeds, args.steps)))
        return

    results: dict[str, list[dict]] = {name: [] for name in CONTESTANTS}
    for _ in range(args.rounds):
        for name in CONTESTANTS:
            command = [sys.executable, "-m", "benchmarks.seeds", "--only", name]
            command += ["--seeds", str(args.seeds), "--steps", str(args.steps)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr}")
            results[name].append(json.loads(done.stdout.splitlines()[-1]))

    factor = {name: args.seeds if "one seed" in name else 1 for name in CONTESTANTS}
    per_step = {
        name: 1e3 * factor[name] * statistics.median(r["seconds"] for r in rows) / args.steps
        for name, rows in results.items()
    }
    ours = per_step["jax, all seeds at once"]
    print(f"{args.seeds} seeds, milliseconds per update of all of them, median of {args.rounds}")
    for name, milliseconds in per_step.items():
        row = results[name][0]
        print(
            f"{name:34s} {milliseconds:8.1f} ms {milliseconds / ours:6.2f} x"
            f"   ({row['parameters']} parameters, loss {row['loss']:.3f})"
        )


if __name__ == "__main__":
    main()

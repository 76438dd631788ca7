"""A small GPT on real text that every machine has: the source of Python's standard library.

It computes in bfloat16 with its params in float32, learns to predict the next character, and writes
some Python at the end. Bits per character are compared with counts of single characters and pairs.

python examples/char_gpt.py [--steps N] [--width 128] [--accumulate 4] [--temperature 0.8]
                            [--no-jit] [--device cuda] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import funcloop as fl

LENGTH, BATCH, STEPS = 128, 16, 1200
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # the newline is also all that is not in it
CHARACTERS = 4_000_000


class Block(nn.Module):
    """Causal attention and two layers, each added to what comes in: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, D / H)
        q, k, v = split.transpose(1, 3).unbind(2)  # (B, H, T, D / H)
        # Written out: on CPUs, fused attention in bfloat16 takes twice as long for rows this short.
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -math.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Characters (B, T) -> logits of the next ones (B, T, C)."""

    def __init__(self, width: int, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.places = (
            nn.Embedding(len(ALPHABET), width),
            nn.Embedding(LENGTH, width),
        )
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def reset_parameters(self) -> None:
        """Small weights, as GPT-2 begins, and blocks that add nothing yet."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            nn.init.zeros_(block.out.weight)
            nn.init.zeros_(block.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.characters(x) + self.places(places))))


def encode(text: str) -> Tensor:
    """Places in the alphabet, int64."""
    table = torch.zeros(256, dtype=torch.int64)
    table[[ord(character) for character in ALPHABET]] = torch.arange(len(ALPHABET))
    raw = bytearray(text.encode("latin-1", errors="replace"))
    return table[torch.frombuffer(raw, dtype=torch.uint8).long()]


def library(device: torch.device) -> tuple[Tensor, Tensor]:
    """Text to train on and, from every tenth file, text to validate on."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    train = "".join(text for n, text in enumerate(texts) if n % 10)
    return encode(train[:CHARACTERS]).to(device), encode("".join(texts[::10])).to(device)


def windows(text: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (N, T) each; a target is the character that follows."""
    count = (len(text) - 1) // LENGTH
    inputs, targets = text[: count * LENGTH], text[1 : count * LENGTH + 1]
    return inputs.view(count, LENGTH), targets.view(count, LENGTH)


def counted_bits(train: Tensor, test: Tensor) -> tuple[float, float]:
    """Bits per character of the test text by counts of characters, and of pairs of them."""
    size = len(ALPHABET)
    single = torch.bincount(train, minlength=size).double() + 1
    pairs = torch.bincount(size * train[:-1] + train[1:], minlength=size**2).double() + 1
    pairs = pairs.view(size, size)
    one = -(single / single.sum()).log2()[test].mean()
    two = -(pairs / pairs.sum(1, keepdim=True)).log2()[test[:-1], test[1:]].mean()
    return float(one), float(two)


def cross_entropy(logits: Tensor, target: Tensor, *, reduction: str) -> Tensor:
    return F.cross_entropy(logits.mT, target, reduction=reduction)  # classes in dimension 1


def sample(
    model: fl.precision.Mixed, state: fl.TrainState, prompt: str, length: int, temperature: float
) -> str:
    """What the model writes after the prompt; the same key writes the same text."""
    text = encode(prompt).to(state.key.device)
    for n in range(length):
        context = text[-LENGTH:]
        logits, _ = model.apply(state.params, state.buffers, context[None], train=False)
        key = fl.random.fold_in(state.key, n)
        text = torch.cat([text, fl.random.categorical(key, logits[:, -1] / temperature)])
    return "".join(ALPHABET[place] for place in text.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="updates")
    parser.add_argument("--width", type=int, default=128, help="of the embedding")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a batch")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampling")
    parser.add_argument("--sample", type=int, default=400, help="characters to write at the end")
    parser.add_argument("--no-jit", action="store_true", help="run every step eagerly")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--out", default="runs/char_gpt", type=Path, help="folder of the curves")
    args = parser.parse_args()
    began = time.perf_counter()

    train_text, test_text = library(args.device)
    net_key, data_key, run_key = fl.random.split(fl.random.key(0).to(args.device), 3)
    train_data = fl.loop.batches(data_key, windows(train_text), BATCH)
    test_data = fl.loop.batches(None, [x[:256] for x in windows(test_text)], 64)

    policy = fl.precision.Policy("params=float32,compute=bfloat16,output=float32")
    model = fl.precision.mixed(fl.stateless(GPT(args.width).to(args.device)), policy)
    params, buffers = model.init(net_key)
    schedule = fl.schedules.warmup_cosine(4e-3, args.steps // 10, args.steps)
    tx = fl.optim.chain(
        fl.optim.clip_by_global_norm(1.0),
        fl.optim.adamw(schedule, betas=(0.9, 0.99), weight_decay=0.1),
    )
    state = fl.TrainState.create(params, buffers, tx, key=run_key)
    print(f"{fl.tree.size(params):,} parameters, {len(train_text):,} characters to learn from")

    grad_fn = fl.value_and_grad(fl.supervised(model, cross_entropy))
    if args.accumulate > 1:
        grad_fn = fl.accumulate(grad_fn, args.accumulate)
    step = fl.train_step(grad_fn, tx)
    if not args.no_jit:
        step = fl.jit(step, donate=0)
    result = fl.loop.fit(state, step, train_data, steps=args.steps, log_dir=args.out)

    evaluate = fl.eval_step(fl.supervised(model, cross_entropy, train=False))
    loss = fl.loop.evaluator(evaluate, test_data)(result.state)["loss"]
    one, two = counted_bits(train_text, test_text)
    print(sample(model, result.state, "def ", args.sample, args.temperature))
    print(f"curves: {args.out / 'curves.png'}")
    print(f"bits per character: {loss / math.log(2):.3f}", end="  ")
    print(f"(single characters {one:.3f}, pairs {two:.3f})", end="  ")
    print(f"({result.position.step} steps in {time.perf_counter() - began:.1f} s)")


if __name__ == "__main__":
    main()

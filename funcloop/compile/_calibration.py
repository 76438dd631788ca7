"""Which library multiplies a kind of matrices faster, measured once on each machine."""

from __future__ import annotations

import functools
import json
import math
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from funcloop._atomic import replaced
from funcloop._compat import has_onednn, untraced
from funcloop.compile._cache import cache_directory
from funcloop.compile._onednn import OPERATORS, Product

#: How many times faster oneDNN has to be; ties leave a product where it is.
CLEAR = 1.15
#: Operations below which a product is not worth a look: some 20 us on one core.
SMALL = 2**22
#: Operations of what is measured for a larger product: a millisecond.
LARGE = 2**28
#: Rounds in which oneDNN has to be clearly faster, each; on a busy machine chance would win fewer.
ROUNDS = 8
#: Rounds in which it is not, after which the question is closed.
LOST = 4
#: Seconds that one measurement lasts at least.
BLOCK = 3e-4
#: Seconds that one graph may wait; what is then unknown stays where it is, until the next graph.
PATIENCE = 0.3

Answers = dict[str, bool]


def faster_in_onednn(products: Iterable[Product]) -> set[Product]:
    """Those of the products for which oneDNN is clearly faster, as measured now or before.

    The answers are kept in `products.json` in the cache directory, by machine and class. A question
    that noise leaves open is asked again with the next graph.
    """
    worth = sorted(
        {product for product in products if product.operations >= SMALL},
        key=lambda product: product.operations,
        reverse=True,
    )
    if not worth or not has_onednn():
        return set()
    answers, new = _read().get(machine(), {}), {}
    end = time.perf_counter() + PATIENCE
    for product in worth:
        name = class_of(product)
        if name in answers or time.perf_counter() >= end:
            continue
        answer = measure(product)
        if answer is not None:
            answers[name] = new[name] = answer
    if new:
        _add(new)
    return {product for product in worth if answers.get(class_of(product))}


def class_of(product: Product) -> str:
    """Products of one class are alike: sizes to the nearest power of two, forms equal."""
    sizes = "x".join(str(2 ** round(math.log2(size))) for size in product.sizes)
    forms = "".join("NT"[transposed] for transposed in product.transposed)
    return f"{product.operator} float32 {sizes} {forms}"


def measure(product: Product) -> bool | None:
    """Whether oneDNN is clearly faster, and right; None where the rounds do not agree."""
    with untraced(), torch.no_grad():
        factors = _factors(product)
        aten, onednn = getattr(torch, product.operator), OPERATORS[product.operator]
        out, other = aten(*factors), onednn(*factors)
        if not torch.allclose(out, other, rtol=1e-4, atol=1e-4 * float(out.abs().max())):
            return False  # float32 products in bfloat16, for one
        # Compiled code gives aten's products a place to write to, and lets oneDNN's find one.
        rivals = [lambda: aten(*factors, out=out), lambda: onednn(*factors)]
        calls = math.ceil(BLOCK / max(seconds(rivals[0], 1), 1e-6))
        won = lost = 0
        while won + lost < ROUNDS and lost < LOST:
            # In turn, so that neither always finds the caches warm.
            order = (0, 1) if (won + lost) % 2 else (1, 0)
            spent = {place: seconds(rivals[place], calls) for place in order}
            won, lost = (won + 1, lost) if spent[0] >= CLEAR * spent[1] else (won, lost + 1)
        return False if lost >= LOST else True if not lost else None


def seconds(run: Callable[[], object], calls: int) -> float:
    """What so many calls take."""
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - began


def _factors(product: Product) -> list[Tensor]:
    """Tensors for a product of this kind that takes no longer than a millisecond."""
    sizes = list(product.sizes)
    while 2 * math.prod(sizes) > LARGE:
        sizes[sizes.index(max(sizes))] //= 2
    batch, m, k, n = sizes
    generator = torch.Generator().manual_seed(0)  # the global one is not ours

    def factor(rows: int, columns: int, transposed: bool) -> Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        values = torch.rand((batch, *shape), generator=generator)
        values = values.transpose(1, 2) if transposed else values
        return values if product.operator == "bmm" else values[0]

    a, b = factor(m, k, product.transposed[0]), factor(k, n, product.transposed[1])
    return [torch.ones(n), a, b] if product.operator == "addmm" else [a, b]


def machine() -> str:
    """What a measurement holds for: the processor, this torch, and the number of threads."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_processor()}; {capability}; torch {torch.__version__}; {torch.get_num_threads()}"


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    kept = ("vendor_id", "cpu family", "model", "model name")
    fields = [tuple(part.strip() for part in line.partition(":")[::2]) for line in lines]
    return ", ".join(value for name, value in fields if name in kept) or platform.machine()


def _path() -> Path:
    return cache_directory() / "products.json"


def _read() -> dict[str, Answers]:
    """What is known, by machine; what is missing or broken is not."""
    try:
        known = json.loads(_path().read_text())
        return {
            machine: {name: answer for name, answer in answers.items() if isinstance(answer, bool)}
            for machine, answers in known.items()
        }
    except (OSError, ValueError, AttributeError):
        return {}


def _add(new: Answers) -> None:
    """Write the file as a whole; a directory that cannot be written to means measuring again."""
    known = _read()
    known.setdefault(machine(), {}).update(new)
    with suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        with replaced(_path()) as temporary:
            temporary.write_text(json.dumps(known, indent=1, sort_keys=True))

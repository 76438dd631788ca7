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

#: How many times faster oneDNN has to be; noise and ties leave a product where it is.
CLEAR = 1.15
#: Operations below which a product is not worth a look: some 20 us on one core.
SMALL = 2**22
#: Operations of what is measured for a larger product: a millisecond.
LARGE = 2**28
#: Rounds of a measurement; it ends after three where oneDNN has not been faster once.
ROUNDS = 9
#: Seconds that one graph may wait; what is then unknown stays where it is, until the next graph.
PATIENCE = 0.4

Ratios = dict[str, float]


def faster_in_onednn(products: Iterable[Product]) -> set[Product]:
    """Those of the products for which oneDNN is clearly faster, as measured now or before.

    The measurements are kept in `products.json` in the cache directory, by machine and class.
    """
    worth = sorted(
        {product for product in products if product.operations >= SMALL},
        key=lambda product: product.operations,
        reverse=True,
    )
    if not worth or not has_onednn():
        return set()
    ratios, new = _read().get(machine(), {}), {}
    end = time.perf_counter() + PATIENCE
    for product in worth:
        name = class_of(product)
        if name not in ratios and time.perf_counter() < end:
            ratios[name] = new[name] = measure(product)
    if new:
        _add(new)
    return {product for product in worth if ratios.get(class_of(product), 0.0) >= CLEAR}


def class_of(product: Product) -> str:
    """Products of one class are alike: sizes to the nearest power of two, forms equal."""
    sizes = "x".join(str(2 ** round(math.log2(size))) for size in product.sizes)
    forms = "".join("NT"[transposed] for transposed in product.transposed)
    return f"{product.operator} float32 {sizes} {forms}"


def measure(product: Product) -> float:
    """How many times faster oneDNN is, at the best of interleaved rounds; 0 where it is wrong."""
    with untraced(), torch.no_grad():
        factors = _factors(product)
        aten, onednn = getattr(torch, product.operator), OPERATORS[product.operator]
        out, other = aten(*factors), onednn(*factors)
        if not torch.allclose(out, other, rtol=1e-4, atol=1e-4 * float(out.abs().max())):
            return 0.0  # float32 products in bfloat16, for one
        best = [math.inf, math.inf]
        for number in range(ROUNDS):
            if number == 3 and best[0] <= best[1]:
                break
            # Compiled code gives aten's products a place to write to, and lets oneDNN's find one.
            best[0] = min(best[0], _time(lambda: aten(*factors, out=out)))
            best[1] = min(best[1], _time(lambda: onednn(*factors)))
        return round(best[0] / best[1], 3)


def _time(run: Callable[[], object]) -> float:
    began = time.perf_counter()
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


def _read() -> dict[str, Ratios]:
    """What is known, by machine; nothing where the file is missing or broken."""
    try:
        known = json.loads(_path().read_text())
        return {machine: dict(ratios) for machine, ratios in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _add(new: Ratios) -> None:
    """Write the file as a whole; a directory that cannot be written to means measuring again."""
    known = _read()
    known.setdefault(machine(), {}).update(new)
    with suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True)
        with replaced(_path()) as temporary:
            temporary.write_text(json.dumps(known, indent=1, sort_keys=True))

"""A progress bar on the terminal, and one line for each evaluation."""

from __future__ import annotations

from funcloop._errors import import_extra
from funcloop.loop._record import Record

#: Name in a record -> words, format, factor.
_SHOWN = {
    "train/loss": ("loss", ".3g", 1.0),
    "train/learning_rate": ("lr", ".3g", 1.0),
    "train/grad_norm": ("|grad|", ".3g", 1.0),
    "examples_per_second": ("ex/s", ",.0f", 1.0),
    "data_wait": ("data", ".0%", 1.0),
    "memory_bytes": ("GiB", ".2f", 2.0**-30),
}


class ProgressBar:
    """A sink that shows the last record beside a bar; without a terminal it shows evaluations only.

    Args:
        total: The steps of the whole run, or None where nobody knows.
        step: The step that the run starts from.
    """

    def __init__(self, total: int | None, step: int = 0) -> None:
        self._tqdm = import_extra("tqdm", "loop").tqdm
        self._bar = self._tqdm(
            total=total, initial=step, unit="step", disable=None, dynamic_ncols=True
        )

    def advance(self) -> None:
        """One step is done."""
        self._bar.update()

    def write(self, record: Record) -> None:
        """Show the values of the last interval, or print those of an evaluation."""
        shown = {
            words: format(record[name] * factor, form)
            for name, (words, form, factor) in _SHOWN.items()
            if name in record
        }
        if shown:
            self._bar.set_postfix(shown, refresh=False)
        evaluated = [f"{name} {v:.4f}" for name, v in record.items() if name.startswith("val/")]
        if evaluated:
            place = f"epoch {record['epoch']:<3.0f} step {record['step']:<6.0f}"
            self._tqdm.write("  ".join([place, *evaluated]))

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

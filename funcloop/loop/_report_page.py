"""The frame of a report: one HTML file that needs nothing else, in light and in dark."""

from __future__ import annotations

from html import escape

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1d2329;
  --soft: #5c6670; --rule: #e1e5ea; --c0: #2868b0; --c1: #d2483e; --c2: #23855a; --c3: #a05fb4;
  --c4: #b87708; --c5: #2b8fa3; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1d2226; --ink: #e8ebee;
  --soft: #9aa5b0; --rule: #333b42; --c0: #6ea8ea; --c1: #f1837a; --c2: #62c394; --c3: #cb96dc;
  --c4: #e3ae55; --c5: #6cc3d5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 56px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 0; } p.lead { margin: 4px 0 22px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card, .tile { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 12px 14px; } .tile b { display: block; font-size: 21px; line-height: 1.25; }
.tile span, .note { color: var(--soft); font-size: 13px; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
.card { padding: 14px 16px; min-width: 0; } .card header { display: flex; flex-wrap: wrap;
  gap: 4px 16px; align-items: baseline; justify-content: space-between; margin-bottom: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px;
  margin-right: 6px; vertical-align: middle; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--rule); } svg .frame { stroke: var(--soft); fill: none; }
svg .series path { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; }
td, th { padding: 5px 12px 5px 0; border-top: 1px solid var(--rule); vertical-align: top; }
thead th { border-top: 0; } td { overflow-wrap: anywhere; }
td.bars { width: 36%; min-width: 260px; } td.bars svg { max-width: 400px; }
.wide { overflow-x: auto; }
.bars rect { fill: var(--c0); } .bars.gradients rect { fill: var(--c4); }
.bars .base, .bars .zero { stroke: var(--soft); } .bars .zero { stroke-dasharray: 3 3; }
.bad { color: var(--c1); font-weight: 600; } code { font-size: 13px; }
.pair { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
@media print { body { background: none; } .card, .tile { break-inside: avoid; } }
"""
COLOURS = "".join(
    f".c{i} path {{ stroke: var(--c{i}); }} .c{i} circle, .legend i.c{i} {{ fill: var(--c{i}); "
    f"background: var(--c{i}); }} "
    for i in range(6)
)


def page(title: str, lead: str, sections: list[str]) -> str:
    """The whole file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{COLOURS}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>'
        f"{''.join(sections)}</main></body></html>\n"
    )


def section(title: str, body: str, note: str = "") -> str:
    """A heading and what stands below it; nothing where there is nothing."""
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2>{words}{body}" if body else ""


def tiles(values: list[tuple[str, str]]) -> str:
    """Large numbers with their words below."""
    cells = [
        f'<div class="tile"><b>{escape(v)}</b><span>{escape(n)}</span></div>' for n, v in values
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def chart_card(title: str, names: list[str], svg: str) -> str:
    """A chart under its title, with a legend."""
    legend = "".join(
        f'<span><i class="c{i % 6}"></i>{escape(name)}</span>' for i, name in enumerate(names)
    )
    return (
        f'<section class="card"><header><h3>{escape(title)}</h3>'
        f'<div class="legend">{legend}</div></header>{svg}</section>'
    )


def table_card(title: str, rows: list[tuple[str, str]]) -> str:
    """Names and values."""
    body = "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    return f'<section class="card"><h3>{escape(title)}</h3><table>{body}</table></section>'

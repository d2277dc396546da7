"""Parts of the HTML pages: the document with its style, tables, numbers and embedded images."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff; margin: 2rem auto;
       max-width: 74rem; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #dde2ea;
         vertical-align: top; }
td { overflow-wrap: anywhere; } .wide td { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; } .small { font-size: 13px; color: #55606e; }
.verdict { display: inline-block; padding: .3rem .8rem; border-radius: .3rem; color: #fff;
           font-weight: 600; }
.held { background: #1a7f4b; } .missed, .undecided { background: #b2182b; }
.open { background: #5b6675; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
img { max-width: 100%; height: auto; } figure { margin: 1rem 0; } .wide { overflow-x: auto; }
code { font-size: 13px; }
@media print { h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A complete page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    kinds = ["", *[" class=n"] * 99]
    top = "".join(f"<th{k}>{head}</th>" for head, k in zip(heads, kinds, strict=False))
    body = "".join(
        f"<tr>{''.join(f'<td{k}>{cell}</td>' for cell, k in zip(row, kinds, strict=False))}</tr>"
        for row in rows
    )
    return f"<table>{top and f'<tr>{top}</tr>'}{body}</table>"


def number(value: float | None) -> str:
    """A number with four digits; None is empty."""
    return "" if value is None else f"{value:.4g}"


def data_url(kind: str, content: bytes) -> str:
    """An image of type `kind` (jpeg, svg+xml) as a URL that contains it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

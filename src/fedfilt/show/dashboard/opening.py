"""The first view: the building is part of the page itself and visible before any script has loaded."""

from functools import lru_cache
from html import escape
from importlib.resources import files

import flask

from fedfilt._version import __version__
from fedfilt.runs.records import Records
from fedfilt.show.dashboard import page
from fedfilt.show.figures.drawing import svg
from fedfilt.show.report.page import plotly_js

PLOTLY = f"_plotly-{__version__}.js"  # used by Dash instead of its own


def html(run: Records | None, parts: dict[str, str], experiment: str = "") -> str:
    """The page as the browser first receives it; `parts` are Dash's own scripts and styles."""
    now = page.progress(run, experiment)
    return "".join(
        [
            f"<!doctype html><html lang='en'><head>{parts['metas']}<title>{parts['title']}</title>{parts['favicon']}",
            f"{parts['css']}</head><body><div id='opening'><header><h1>fedfilt</h1>",
            f"<span class='state {now['state']}'>{escape(now['words'])}</span></header>",
            f"<main><section class='panel'><h2>The building</h2>{_building(run, run.version if run else 0)}</section>",
            f"</main></div>{parts['app_entry']}{parts['config']}",
            f"<template id='rest'><script src='{PLOTLY}'></script>{parts['scripts']}{parts['renderer']}</template>",
            f"<script>{files('fedfilt.show.dashboard').joinpath('opening.js').read_text(encoding='utf-8')}</script>",
            "<noscript>This page needs JavaScript; the numbers in a fedfilt report do not.</noscript></body></html>",
        ]
    )


@lru_cache(maxsize=8)
def _building(run: Records | None, version: int) -> str:
    return svg(page.building_picture(run))


def plotly() -> flask.Response:
    """plotly.js, which a browser may cache."""
    answer = flask.Response(plotly_js(), mimetype="text/javascript")
    answer.headers["Cache-Control"] = "max-age=31536000, immutable"
    return answer

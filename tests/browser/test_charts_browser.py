"""Plots of real libraries in a real JupyterLab, and hostile data for every renderer that JupyterLab has."""

from __future__ import annotations

import json

from playwright.sync_api import expect

ALTAIR = (
    "import altair as alt, pandas as pd\n"
    "alt.Chart(pd.DataFrame({'a': [1, 2, 3], 'b': [4, 5, 6]})).mark_bar(tooltip=True).encode(x='a:O', y='b')"
)
PLOTLY = "import plotly.express as px\nfig = px.scatter(x=[1, 2, 3], y=[3, 1, 2], width=420, height=260)\nfig"
PLOTLY_HTML = "from IPython.display import HTML\nHTML(fig.to_html(include_plotlyjs=True))"
BOKEH = (
    "from bokeh.plotting import figure, show\nfrom bokeh.io import output_notebook\noutput_notebook()\n"
    "p = figure(height=200, width=420, tools='pan,reset,hover'); p.line([1, 2, 3], [2, 3, 1]); show(p)"
)
ANIMATION = (
    "import matplotlib.pyplot as plt\nfrom matplotlib.animation import FuncAnimation\n"
    "fig2, axis = plt.subplots(figsize=(3, 1.5)); line, = axis.plot([0, 1], [0, 1])\n"
    "moving = HTML(FuncAnimation(fig2, lambda n: line.set_ydata([0, n]), frames=3).to_jshtml())\n"
    "plt.close(fig2); moving"
)


def _inside(output):  # type: ignore[no-untyped-def]
    """The guest's own document in a framed output."""
    return output.frame_locator("iframe").frame_locator("iframe")


def test_plots_of_real_libraries_show_and_answer(desk):
    desk.page.set_viewport_size({"width": 1280, "height": 4200})
    cells = [ALTAIR, PLOTLY, PLOTLY_HTML, BOKEH, ANIMATION]
    desk.open(desk.lab.notebook("charts.ipynb", cells, "agently"), panel=False)
    for index in range(5):
        desk.run_cell(index)
        expect(desk.cell(index).locator(".jp-InputPrompt").first).to_have_text(f"[{index + 1}]:", timeout=60_000)

    expect(desk.output(0).locator(".vega-embed canvas, .vega-embed svg").first).to_be_visible(timeout=30_000)

    drawn = desk.cell(1).locator(".js-plotly-plot .scatterlayer .point")
    expect(drawn).to_have_count(3, timeout=30_000)
    expect(desk.output(1)).to_have_count(1)  # and no second form of the same figure

    page = _inside(desk.output(2).first)
    expect(page.locator(".scatterlayer .point")).to_have_count(3, timeout=30_000)
    page.locator(".scatterlayer .point").nth(1).hover(force=True)
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("x=2")

    expect(desk.output(3)).to_have_count(1)
    bokeh = _inside(desk.output(3).first)
    expect(bokeh.locator(".bk-Figure canvas").first).to_be_visible(timeout=30_000)

    player = _inside(desk.output(4).first)
    first = player.locator("img").first.get_attribute("src")
    player.locator("button[title='Next frame']").click()
    expect(player.locator("img").first).not_to_have_attribute("src", first or "")
    desk.shot("charts")


MARK = "top.canary=(top.canary||0)+1"
TAG = f'<img src=x onerror="{MARK}"><script>{MARK}</script><svg onload="{MARK}"></svg><a href="javascript:{MARK}">l</a>'
ADDRESS = "/api/contents/canary"
VALUES = {"values": [{"a": 1, "u": ADDRESS, "h": f"javascript:{MARK}", "t": TAG}]}
VEGA_LITE = (
    {"data": {"url": ADDRESS}, "mark": "bar"},
    {"data": VALUES, "mark": {"type": "image"}, "encoding": {"url": {"field": "u"}}},
    {"data": VALUES, "mark": {"type": "bar", "tooltip": {"content": "data"}},
     "encoding": {"x": {"field": "t"}, "href": {"field": "h"}}, "title": TAG,
     "usermeta": {"embedOptions": {"sourceHeader": TAG, "loader": {"baseURL": ADDRESS}}}},
    {"data": VALUES, "mark": "bar",
     "transform": [{"calculate": f"datum.constructor.constructor('{MARK}')()", "as": "x"}]},
)
VEGA = (
    {"data": [{"name": "d", "url": ADDRESS}]},
    {"signals": [{"name": "s", "init": f"event.view.constructor.constructor('{MARK}')()"}], "title": TAG},
)
PLOTLY_FIGURE = {
    "data": [{"type": "scatter", "y": [1, 2], "text": [TAG, TAG], "hovertemplate": TAG, "name": TAG}],
    "layout": {"title": {"text": TAG}, "images": [{"source": ADDRESS, "x": 0, "y": 1, "sizex": 1, "sizey": 1}],
               "annotations": [{"text": TAG}], "mapbox": {"style": ADDRESS}},
    "config": {"plotlyServerURL": ADDRESS, "showLink": True, "modeBarButtonsToAdd": [{"name": "x", "click": MARK}]},
}
GEO = {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]},
       "properties": {"name": TAG, "popupContent": TAG, TAG: TAG}}
HOSTILE_DATA: tuple[tuple[str, object], ...] = (
    *((f"application/vnd.vegalite.v{n}+json", spec) for n in (3, 4, 5) for spec in VEGA_LITE),
    *(("application/vnd.vega.v5+json", spec) for spec in VEGA),
    ("application/vnd.plotly.v1+json", PLOTLY_FIGURE),
    ("application/geo+json", GEO),
    ("application/json", {"a": TAG, TAG: [TAG]}),
    ("text/markdown", f"# m\n{TAG}\n\n[l](javascript:{MARK}) ![i]({ADDRESS})\n\n"
     f"```mermaid\ngraph TD; A[\"{TAG}\"]\n```"),
    ("text/latex", f"$\\href{{javascript:{MARK}}}{{x}} \\unicode{{<img src=x onerror={MARK}>}}$ {TAG}"),
    ("text/html", TAG), ("image/svg+xml", f"<svg xmlns='http://www.w3.org/2000/svg'>{TAG}</svg>"),
    ("text/plain", TAG), ("text/vnd.mermaid", f"graph TD; A[\"{TAG}\"]; click A href \"javascript:{MARK}\""),
    ("application/javascript", MARK), ("application/pdf", "JVBERi0xLjQK"),
    ("application/vdom.v1+json", {"tagName": "img"}),
    ("application/vnd.jupyter.error", {"name": TAG, "message": TAG, "stack": TAG}),
    ("application/vnd.jupyter.stdout", TAG), ("audio/wav", TAG), ("video/mp4", TAG), ("image/bmp", TAG),
)


def test_no_renderer_of_the_page_lets_hostile_data_reach_it(desk):
    asked: list[str] = []
    desk.page.on("request", lambda request: asked.append(request.url))
    data = json.dumps(HOSTILE_DATA)
    code = (
        "import json\nfrom IPython.display import display\n"
        f"for mime, value in json.loads({data!r}):\n    display({{mime: value}}, raw=True)\nprint('all shown')"
    )
    desk.page.set_viewport_size({"width": 1280, "height": 6000})
    desk.open(desk.lab.notebook("renderers.ipynb", [code], "agently"), panel=False)
    desk.run_cell(0)
    expect(desk.cell(0)).to_contain_text("all shown", timeout=60_000)
    expect(desk.cell(0).locator(".js-plotly-plot .scatterlayer").first).to_be_attached(timeout=30_000)
    expect(desk.cell(0).locator(".vega-embed").first).to_be_attached(timeout=30_000)
    desk.page.wait_for_timeout(3000)
    for box in desk.page.locator(".vega-embed, .js-plotly-plot .drag, .jp-RenderedMarkdown").all()[:20]:
        if box.is_visible():
            box.hover(force=True, timeout=2000)
    for link in desk.page.locator(".jp-OutputArea-output a").all()[:60]:
        if link.is_visible() and (link.get_attribute("href") or "").lower().startswith("javascript"):
            link.click(force=True, timeout=2000)
    desk.page.wait_for_timeout(500)
    desk.shot("renderers")
    assert desk.page.evaluate("window.canary ?? null") is None
    assert [url for url in asked if "canary" in url] == []


def test_the_same_data_reach_the_page_when_they_are_trusted(desk):
    """The control: without the filter these very bytes run, so the test above means something."""
    code = (
        "from IPython.display import display\n"
        f"display({{'text/html': {TAG!r}}}, raw=True)\nprint('shown')"
    )
    desk.open(desk.lab.notebook("control.ipynb", [code], "python3"), panel=False, linked=False)
    desk.run_cell(0)
    expect(desk.cell(0)).to_contain_text("shown", timeout=60_000)
    desk.page.wait_for_function("window.canary > 0", timeout=20_000)

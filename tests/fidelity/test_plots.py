"""Plot libraries, as one first uses them: one form of each plot, which needs neither network nor other outputs."""

from __future__ import annotations

from kernel_session import KernelSession, Run


def forms(run: Run) -> list[set[str]]:
    assert run.status == "ok", run.error
    return [set(m["content"]["data"]) for m in run.of("display_data", "execute_result")]


def test_each_library_shows_one_form_of_a_plot(kernel: KernelSession) -> None:
    chart = "import altair as alt\nc = alt.Chart(alt.Data(values=[{'a': 1}])).mark_bar().encode(x='a:O')\nc"
    assert forms(kernel.run(chart)) == [{"application/vnd.vegalite.v5+json", "text/plain"}]
    figure = "import plotly.graph_objects as go\nfig = go.Figure(go.Scatter(y=[1, 2])); fig.show()\nfig"
    assert forms(kernel.run(figure)) == [{"application/vnd.plotly.v1+json"}] * 2
    bokeh = kernel.run(
        "from bokeh.plotting import figure, show\nfrom bokeh.io import output_notebook\noutput_notebook()\n"
        "p = figure(height=90); p.line([1], [2]); show(p)"
    )
    assert forms(bokeh) == [{"text/html", "text/plain"}]
    assert "[withheld]" not in bokeh.text("stderr")


def test_what_a_person_chooses_stays(kernel: KernelSession) -> None:
    kernel.run("import altair as alt, plotly.io as pio")
    assert forms(kernel.run("alt.renderers.enable('json'); display(c)")) == [{"application/json", "text/plain"}]
    assert forms(kernel.run("fig.show('json')")) == [{"application/json"}]
    assert kernel.run("import os; os.environ['PLOTLY_RENDERER']").result == "'plotly_mimetype'"

"""Plot libraries, as one first uses them: one form of each plot, which needs neither network nor other outputs."""

from __future__ import annotations

from kernel_session import KernelSession, Run


def forms(run: Run) -> list[set[str]]:
    assert run.status == "ok", run.error
    return [set(m["content"]["data"]) for m in run.of("display_data", "execute_result")]


def create_subshell(kernel: KernelSession) -> str:
    return str(kernel.ask("create_subshell_request", {}, channel="control")["subshell_id"])


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


def test_the_figures_of_pyplot_are_those_of_the_cells_that_draw_them(kernel: KernelSession) -> None:
    subshell = create_subshell(kernel)
    kernel.run("import time, matplotlib.pyplot as plt")
    for beside in ("1 + 1", "plt.plot([3, 2, 1]); plt.title('beside')", "plt.plot([3, 2]); plt.show()", "plt.close()"):
        main = kernel.send(
            "plt.plot([1, 2, 3]); time.sleep(1.5)\n"
            "print(plt.get_fignums(), len(plt.gca().lines), plt.gca().get_title())"
        )
        kernel.settle(0.5)
        run = kernel.run(beside, subshell=subshell)
        assert not main.reply
        assert run.kinds.count("display_data") == beside.startswith("plt.plot")
        kernel.wait(main)
        assert (main.text(), main.kinds) == ("[1] 1 \n", ["stream", "display_data"])
    assert kernel.run("plt.get_fignums()").result == kernel.run("plt.get_fignums()", subshell=subshell).result == "[]"


def test_a_thread_of_a_cell_draws_for_it(kernel: KernelSession) -> None:
    code = (
        "import threading, matplotlib.pyplot as plt\n"
        "thread = threading.Thread(target=plt.plot, args=([1, 2],)); thread.start(); thread.join()"
    )
    assert kernel.run(code, subshell=create_subshell(kernel)).kinds == ["display_data"]
    assert kernel.run(code).kinds == ["display_data"]

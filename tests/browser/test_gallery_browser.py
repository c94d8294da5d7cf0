"""The gallery notebook in a real JupyterLab: run from top to bottom, looked at, and its widgets used."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import expect

GALLERY = Path(__file__).parents[2] / "notebooks" / "gallery.ipynb"


def test_the_gallery_shows_and_answers(desk):
    shutil.copy(GALLERY, desk.lab.folder / "gallery.ipynb")
    desk.page.set_viewport_size({"width": 1280, "height": 9000})  # high enough to have every cell drawn
    title = desk.page.title
    desk.open("gallery.ipynb", panel=False)
    desk.page.locator(".jp-NotebookPanel .jp-Cell").first.click()
    desk.page.locator("li.lm-MenuBar-item", has_text="Run").click()
    desk.page.locator("li.lm-Menu-item", has_text="Run All Cells").first.click()
    notebook = desk.page.locator(".jp-NotebookPanel")
    expect(notebook.locator(".jp-InputPrompt", has_text="[14]:")).to_be_visible(timeout=60_000)
    expect(notebook.locator("img[src^='data:image/png']")).to_have_count(3)  # plots, picture, the plot of interact
    expect(notebook.locator(".jp-RenderedSVG img")).to_have_count(2)
    expect(notebook.locator(".jp-RenderedHTMLCommon table")).to_have_count(4)  # one in the Output widget is hidden
    expect(notebook.locator("mjx-container").first).to_be_visible()
    expect(notebook.locator(".vega-embed canvas, .vega-embed svg").first).to_be_visible()
    expect(notebook.get_by_text("finished", exact=True)).to_be_visible()
    frames = notebook.locator("iframe[sandbox='allow-scripts']")
    expect(frames).to_have_count(2)
    bars = frames.nth(1).content_frame.frame_locator("iframe")
    expect(bars.locator("#says")).to_have_text("drawn by a script that reaches nothing outside of its frame")
    plot = frames.nth(0).content_frame.frame_locator("iframe")
    plot.locator("#plot").hover(position={"x": 10, "y": 50})
    expect(plot.locator("#says")).to_have_text("t 0, value 0.00")
    for frame, inside in ((frames.nth(0), plot), (frames.nth(1), bars)):  # as high as what it shows
        shown = inside.locator("body").evaluate("body => body.scrollHeight")
        assert shown <= frame.bounding_box()["height"] <= shown + 30
    assert "changed by a cell" not in title()
    slider = notebook.locator(".widget-slider .noUi-handle, .noUi-handle").first
    slider.focus()
    desk.page.keyboard.press("ArrowRight")
    expect(notebook.locator(".widget-readout", has_text="4").first).to_be_visible()
    desk.page.wait_for_timeout(800)
    tabs = notebook.locator(".jupyter-widget-tab, .widget-tab").locator(".lm-TabBar-tab, .p-TabBar-tab")
    tabs.nth(2).click()
    expect(notebook.locator(".jupyter-widgets pre", has_text="text in an Output widget")).to_be_visible()
    desk.shot("gallery")

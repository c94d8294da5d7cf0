"""A table of twenty megabytes: how long until it stands in the page, beside the ordinary kernel."""

from __future__ import annotations

import time

import pytest

TABLE = (
    "from IPython.display import HTML\n"
    "row = '<tr><th>{0}</th><td>{0}.5</td><td>name &amp; {0}</td></tr>\\n'\n"
    "rows = ''.join(row.format(n) for n in range(300_000))\n"
    "big = HTML('<table class=\"dataframe\"><tbody>' + rows + '</tbody></table>'); print('made')"
)
LAST = "document.querySelector('.jp-OutputArea table')?.rows.length === 300000"


@pytest.mark.timeout(400)
def test_twenty_megabytes_show_within_twice_the_time_of_the_ordinary_kernel(desk):
    seconds: dict[str, float] = {}
    for kernel in ("python3", "agently"):
        desk.open(desk.lab.notebook(f"big-{kernel}.ipynb", [TABLE, "big"], kernel), panel=False, linked=False)
        desk.run_cell(0)
        desk.output(0).filter(has_text="made").wait_for(timeout=60_000)
        started = time.monotonic()
        desk.run_cell(1)
        desk.page.wait_for_function(LAST, timeout=120_000, polling=50)
        seconds[kernel] = time.monotonic() - started
    assert seconds["agently"] <= 2 * seconds["python3"], seconds

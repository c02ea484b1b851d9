"""The planner in a browser: what it shows, by keyboard, on a phone, and once the server is gone.

VRAMBUDGET_CHROMIUM names Chromium or Chrome, VRAMBUDGET_PYODIDE the folder of Pyodide's runtime.
"""

import functools
import http.server
import json
import os
import threading
from pathlib import Path

import pytest

import vrambudget

CHROMIUM, RUNTIME = (os.environ.get(f"VRAMBUDGET_{name}") for name in ("CHROMIUM", "PYODIDE"))
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or RUNTIME is None, reason="no VRAMBUDGET_CHROMIUM, or no VRAMBUDGET_PYODIDE"
)
JOB = {"batch": 4, "block": 256, "gpu": "12GB"}
DRAWN = "document.getElementById('answer')?.dataset.drawn"
CONTROLS = "button, select, input, summary, textarea"
PEAK = "document.getElementById('headline').dataset.peak"
ADVICE = "document.getElementById('advice').textContent"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.asked.append(self.path)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve the planner's folder; a server that is closed answers nothing."""
    from vrambudget.planner.site import write_site  # noqa: PLC0415 - not where tests are skipped

    site = tmp_path_factory.mktemp("planner") / "site"
    write_site(site, pyodide=Path(RUNTIME))
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.server_close()


@pytest.fixture(scope="module")
def page(served, tmp_path_factory):
    from browser import browser  # noqa: PLC0415 - pipes as POSIX has them

    words = "&".join(f"{name}={value}" for name, value in {"model": "gpt2", **JOB}.items())
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as found:
        found.resize(1200, 900)
        found.call("Page.navigate", url=f"http://127.0.0.1:{served.server_port}/#{words}")
        found.until(DRAWN)
        yield found


def peak_of(**fields):
    peak = vrambudget.estimate("gpt2", **{**JOB, **fields}).peak
    return f"{peak.requested_bytes} {peak.allocated_bytes} {peak.reserved_bytes}"


def test_the_first_answer_is_the_library_s_and_drawn(page):
    assert page.evaluate(PEAK) == peak_of()
    assert page.evaluate("document.getElementById('headline').textContent") == "FITS"
    assert page.evaluate("document.querySelectorAll('#timeline path').length") > 3


def test_a_slider_moves_by_keyboard_and_the_address_follows(page):
    page.evaluate("document.querySelector('[aria-label=batch]').focus()")
    page.press("ArrowRight")
    page.until(f"{PEAK} === {peak_of(batch=5)!r}")
    assert "batch=5" in page.evaluate("location.hash")
    page.press("ArrowLeft")
    page.until(f"{PEAK} === {peak_of()!r}")


def test_every_control_is_reached_by_tab(page):
    page.evaluate("document.getElementById('model').focus()")
    reached = set()
    for _ in range(20):
        page.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
    told = " ".join(reached)
    for name in ('id="gpu"', 'aria-label="batch"', 'aria-label="block"', "<select", "<summary"):
        assert name in told


@pytest.mark.parametrize("width", [375, 640, 1200])
def test_nothing_is_wider_than_the_page(page, width):
    page.resize(width, 812, is_phone=width < 500)
    try:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        page.resize(1200, 900)


def test_a_recipe_is_seen_whole_on_a_phone(page):
    row = {"words": "QLoRA 16, checkpointing, adamw8bit (bitsandbytes)", "block": "1,024"}
    row |= {"batch": "1,024", "peak": "11.69 GiB", "left": "11.69 GiB", "fields": {}}
    row["costs"] = "4-bit weights; trains adapters alone; runs the forward pass again"
    shown = json.dumps({"sentence": "", "recipes": [row], "notes": []})
    page.resize(375, 812, is_phone=True)
    page.evaluate("document.getElementById('plan').open = true")
    page.evaluate(f"at('recipes').replaceChildren(...recipes({shown}))")
    try:
        inside, whole = page.evaluate(
            "(e => [e.clientWidth, e.scrollWidth])(document.querySelector('#recipes .wide'))"
        )
        assert 0 < whole <= inside
    finally:
        page.evaluate("document.getElementById('plan').open = false")
        page.resize(1200, 900)


@pytest.mark.parametrize("width", [375, 1200])
def test_every_control_is_at_least_32_pixels_high(page, width):
    """A box that is ticked by its label is as large as that."""
    page.resize(width, 812, is_phone=width < 500)
    targets = f"[...document.querySelectorAll({CONTROLS!r})].map(e => e.closest('label') ?? e)"
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    try:
        sizes = page.evaluate(f"{targets}.map(e => [e.outerHTML.slice(0, 80), e.offsetHeight])")
        assert len(sizes) > 100
        assert [size for size in sizes if 0 < size[1] < 32] == []
    finally:
        page.evaluate("document.querySelectorAll('#job details').forEach(d => d.open = false)")
        page.resize(1200, 900)


def test_near_the_gpu_s_limit_the_verdict_is_that_of_settled_memory(page):
    settled = peak_of(batch=8, block=512, gpu="10GB")  # 9 % more than after three steps
    page.evaluate("location.hash = '#model=gpt2&gpu=10GB&batch=8&block=512'")
    page.until(f"{PEAK} === {settled!r}")
    page.evaluate("location.hash = '#model=gpt2&gpu=12GB&batch=4&block=256'")
    page.until(f"{PEAK} === {peak_of()!r}")


def test_it_answers_when_the_server_is_gone(page, served):
    page.until(ADVICE)  # the second worker has all it needs, too
    served.shutdown()
    asked = len(served.asked)
    page.evaluate("document.querySelector('[aria-label=batch]').focus()")
    page.press("ArrowRight")
    page.until(f"{PEAK} === {peak_of(batch=5)!r}")
    assert len(served.asked) == asked

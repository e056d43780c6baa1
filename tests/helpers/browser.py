"""Opens pages in a real browser, and returns what a script sees in them and what the console says."""

import html
import json
import os
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

# A page that holds another in a frame of a phone's width: windows of a browser without a screen are 500 wide at least.
FRAME = """<!doctype html><html><head></head><body><iframe id="frame" style="width:{width}px;height:900px;border:0"></iframe>
<script>const frame = document.getElementById("frame"); frame.onload = () => {{
const seen = (({look}))(frame.contentDocument, frame.contentWindow);
document.body.replaceChildren(JSON.stringify(seen)); }}; frame.srcdoc = {page};</script></body></html>"""


def open_in_browser(page, folder, look, *options):
    """Return what ``look``, a script that ends by putting JSON into the body, sees, and the lines of the console."""
    file = folder / "page.html"
    file.write_text(f"{page}<script>{look}</script>", encoding="utf-8")
    # Root has no sandbox, and containers often none for others: the page is our own.
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0",
               f"--user-data-dir={folder / 'profile'}", *options, "--dump-dom", file.as_uri()]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120,
                         env={**os.environ, "HOME": str(folder)})  # fmt: skip
    found = re.search(r"<body>(.*)</body>", ran.stdout, re.DOTALL)
    said = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return (json.loads(html.unescape(found[1])) if found else {}), said


def open_in_frame(page, folder, look, width):
    """Return what ``look``, a function of document and window, sees in a page that is ``width`` wide, and the console."""
    told = json.dumps(page).replace("<", "\\u003c")
    return open_in_browser(FRAME.format(width=width, look=look, page=told), folder, "", "--virtual-time-budget=2000")

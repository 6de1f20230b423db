"""Audits HTML with axe-core in a browser of this machine: no script of the page runs, nothing is fetched."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from functools import partial
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from pyagent.core.errors import AgentError, RequestError
from pyagent.logic.interfaces.findings import Finding
from pyagent.logic.interfaces.mending import clean

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_SECONDS = 60.0
_ADDRESS = "http://page.invalid/"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"
_MAX_NODES = 200
_RUN = """async () => {
  const found = await axe.run(document, {
    runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22a', 'wcag22aa']},
    resultTypes: ['violations'],
  });
  return {
    passes: found.passes.length,
    violations: found.violations.map((each) => ({
      id: each.id, tags: each.tags, help: each.help,
      nodes: each.nodes.slice(0, 50).map((node) => (
        {html: node.html.slice(0, 300), summary: node.failureSummary || ''})),
    })),
  };
}"""


def check_installed() -> None:
    """Raise `RequestError` where the packages or a browser are missing."""
    if any(find_spec(name) is None for name in ("playwright", "axe_playwright_python")):
        raise RequestError(
            "axe needs packages that are not installed: pip install playwright axe-playwright-python", code="no_axe"
        )
    if _browser() is None:
        names = ", ".join(_BROWSERS[:3])
        raise RequestError(f"axe needs a browser that is not installed: one of {names}", code="no_browser")


def _browser() -> str | None:
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


async def axe_findings(html: str) -> list[Finding]:
    """Return what axe-core finds in a document; raises `AgentError` when the browser does not start or end in time."""
    check_installed()
    try:
        async with asyncio.timeout(_SECONDS):
            found = await _run(html)
    except TimeoutError as error:
        raise AgentError(f"the browser did not end in {_SECONDS:g} s", agent="gui") from error
    return [_finding(violation, node) for violation in found["violations"] for node in violation["nodes"]][:_MAX_NODES]


async def _run(html: str) -> Any:  # Any: what axe.run returns
    playwright: Any = import_module("playwright.async_api")  # optional, so its types cannot be relied on
    async with playwright.async_playwright() as running:
        sandbox = hasattr(os, "geteuid") and os.geteuid() != 0  # Chromium's own does not start for root
        try:
            browser = await running.chromium.launch(
                executable_path=_browser(), chromium_sandbox=sandbox, args=[_NO_NETWORK]
            )
        except playwright.Error as error:
            raise AgentError(f"the browser does not start: {str(error).splitlines()[0][:200]}", agent="gui") from error
        try:
            context = await browser.new_context(accept_downloads=False)
            await context.route("**/*", partial(_answer, html))
            page = await context.new_page()
            await page.goto(_ADDRESS, wait_until="domcontentloaded")
            await page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
            return await page.evaluate(_RUN)
        except playwright.Error as error:
            raise AgentError(
                f"the browser cannot audit this: {str(error).splitlines()[0][:200]}", agent="gui"
            ) from error
        finally:
            await browser.close()


async def _answer(html: str, route: Any) -> None:  # Any: Playwright's request
    """Answer the one request for the document; all others, of what is in it, are not made."""
    if route.request.url == _ADDRESS and route.request.is_navigation_request():
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": _POLICY}
        await route.fulfill(status=200, headers=headers, body=html)
    else:
        await route.abort()


def _finding(violation: Any, node: Any) -> Finding:  # Any: parts of what axe.run returns
    numbers = [f"{tag[4]}.{tag[5]}.{tag[6:]}" for tag in violation["tags"] if re.fullmatch(r"wcag\d{3,4}", tag)]
    lines = [line.strip() for line in str(node["summary"]).splitlines()[1:] if line.strip()]
    return Finding(
        rule=f"axe:{violation['id']}",
        criterion=", ".join(numbers) or "best practice",
        element=clean(node["html"])[:120],
        figure=clean(violation["help"])[:200],
        mend=clean("; ".join(lines))[:300],
    )

"""The report: one page with everything in it."""

from scalespaces.demo.result import Result


def render(result: Result) -> str:
    """The page as HTML."""
    return "<!doctype html>"

"""The browser of a module."""

from collections.abc import Iterator

import pytest

from browser.driver import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield a Chromium without any cookies."""
    if CHROMIUM is None:
        pytest.skip("missing chromium: apt-get install chromium to see the page in a browser")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    try:
        browser.start()
        yield browser
    finally:
        browser.close()

"""The site builds strictly, without warnings, and every page is in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reput.client
from reput.client import blocking

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
API = DOCS / "reference/api"
# One worker: each builds the site for itself.
pytestmark = [pytest.mark.rotating, pytest.mark.xdist_group("site")]
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does, with proxies that refuse every request."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site_and_its_navigation(site: Path) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/.-]+\.md)$", navigation, re.MULTILINE)
    own = [Path(page) for page in listed if not page.startswith("project/")]
    assert sorted(own) == PAGES
    for page in listed:
        path = site / page.replace("README.md", "index.md")
        assert path.with_suffix(".html").is_file()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(r'<(?:script|img|link)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]*)"')
    assert [hit for page in pages for hit in loaded.findall(page.read_text("utf-8"))] == []


def test_links_to_files_outside_of_docs_lead_to_pages(site: Path) -> None:
    assert "project/CHANGELOG.html" in (site / "index.html").read_text(encoding="utf-8")
    changelog = (site / "project/CHANGELOG.html").read_text(encoding="utf-8")
    assert 'href="../known-bugs.html"' in changelog


def test_methods_of_blocking_clients_have_signatures(site: Path) -> None:
    text = (site / "reference/api/blocking.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]*>", "", text)
    assert "Send a message, and return its position." in plain
    assert "Create or change a topic, on the masters of a cluster or on one broker." in plain
    assert "waiting(" not in plain


def directives(page: str) -> list[str]:
    return re.findall(r"^::: ([\w.]+)$", (API / page).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_api_reference_has_every_public_name() -> None:
    assert sorted(directives("client.md")) == [f"reput.client.{n}" for n in reput.client.__all__]
    clients = [
        f"reput.client.blocking.{name}"
        for name, value in vars(blocking).items()
        if isinstance(value, type)
        and issubclass(value, blocking.Facade)
        and value not in (blocking.Facade, blocking.ConnectedFacade)
    ]
    assert sorted(directives("blocking.md")) == sorted(clients)


def test_the_first_page_links_to_every_other_page_once() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    links = [Path(link) for link in re.findall(r"\]\(([\w/.-]+\.md)\)", text)]
    own = sorted(link for link in links if link.parts[0] != "..")
    assert own == [page for page in PAGES if page != Path("index.md")]


def test_every_page_is_reachable_by_links() -> None:
    """Readers without the site reach every page from the README."""
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert [page for page in PAGES if DOCS / page not in reached] == []

"""A hook of MkDocs: files outside of docs/ become pages of the site if a page links to them.

Links in documents lead to files of the repository, such as ``../CHANGELOG.md``, so that they work
where the repository is shown. The site has the same files in its folder ``project``, and this hook
rewrites the links of both.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "project"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HAS_SCHEME = re.compile(r"^[a-z]+:")


def on_files(files: Files, config: Any) -> Files:
    """Add the linked files, and the files linked from them."""
    docs = Path(config["docs_dir"])
    pages = [path.relative_to(ROOT).as_posix() for path in sorted(docs.rglob("*.md"))]
    seen = set(pages)
    while pages:
        page = pages.pop()
        for target in _targets(page):
            if target not in seen and (ROOT / target).is_file():
                seen.add(target)
                added = File.generated(config, _place(target), abs_src_path=str(ROOT / target))
                files.append(added)
                if target.endswith(".md"):
                    pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that leave its folder for the other one."""
    place = page.file.src_uri
    source = _source(place)
    ranges = [match.span() for match in CODE.finditer(markdown)]

    def rewritten(match: re.Match[str]) -> str:
        link, anchor = match.groups()
        is_code = any(start <= match.start() < end for start, end in ranges)
        if is_code or HAS_SCHEME.match(link) or link.startswith("/"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if not (ROOT / target).is_file():
            return match[0]  # MkDocs reports it
        return posixpath.relpath(_place(target), posixpath.dirname(place) or ".") + anchor

    return LINK.sub(rewritten, markdown)


def _targets(page: str) -> list[str]:
    """Return the paths that a page of the repository links to, from the root."""
    text = CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    links = [link for link, _ in LINK.findall(text) if not HAS_SCHEME.match(link)]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]


def _place(path: str) -> str:
    """Return the place of a repository's file in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{FOLDER}/{path}"


def _source(place: str) -> str:
    """Return the repository's file that is at a place of the site."""
    prefix = f"{FOLDER}/"
    return place.removeprefix(prefix) if place.startswith(prefix) else f"docs/{place}"

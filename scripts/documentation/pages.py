"""Adds pages to the site: those of the repository that stand outside ``zkconsumer/docs``, and the reference of the API.

A page keeps the relative links that work between the files of the repository. Here each becomes a link between pages,
or a link to the file in the repository if the file is no page. mkdocs calls these functions by their names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import zkconsumer

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "zkconsumer/DESIGN.md": "design.md",
    "zkconsumer/CONTRIBUTING.md": "contributing.md",
    "zkconsumer/REGRESSIONS.md": "regressions.md",
    "zkconsumer/member/STATES.md": "states.md",
    "tests/simulation/README.md": "simulation.md",
}
"""The pages outside the folder of documents, by their paths in the repository."""

_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]*)(#[^)\s]*)?(\))")
_IMAGE = re.compile(r'<img src="([^"]+)" alt="([^"]*)" width="(\d+)">')
_FENCE = re.compile(r"^( *(?:```|~~~))", re.MULTILINE)

_API = {
    "connector": (
        "Connectors",
        [
            "ZookeeperConsumerConnector",
            "AsyncZookeeperConsumerConnector",
            "ConsumerConfig",
            "ConsumerRebalanceListener",
            "AsyncConsumerRebalanceListener",
            "ConnectorState",
            "Phase",
            "Health",
            "shutdown_on_signal",
        ],
    ),
    "streams": (
        "Streams and messages",
        [
            "KafkaStream",
            "MergedStreams",
            "PartitionStream",
            "AsyncStream",
            "AsyncMessages",
            "MessageAndMetadata",
            "TopicPartition",
            "TopicFilter",
            "Whitelist",
            "Blacklist",
            "StringDecoder",
            "IntDecoder",
            "LongDecoder",
        ],
    ),
    "balance": (
        "Message balance",
        [
            "BalancedMessage",
            "Later",
            "Reject",
            "PENDING",
            "Retry",
            "FailureLimit",
            "DeadLetterTopic",
            "BalanceState",
            "RunSummary",
        ],
    ),
    "offsets": ("Offsets elsewhere", ["DatabaseOffsets", "OffsetStore", "OffsetRange"]),
    "testing": ("The test kit", ["testing.FakeCluster", "devcluster.DevCluster"]),
}
"""The pages of the reference: a title and names of ``zkconsumer``. What is left of ``__all__`` is errors."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. Called once, before the navigation is made."""
    for path, name in _outside().items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    style = (ROOT / "scripts/documentation/site.css").read_text()
    files.append(File.generated(config, "site.css", content=style))
    listed = {name for _, names in _API.values() for name in names}
    errors = [name for name in zkconsumer.__all__ if name not in listed and name != "__version__"]
    for page, (title, names) in {**_API, "errors": ("Errors", errors)}.items():
        text = "\n\n".join(f"::: zkconsumer.{name}" for name in names)
        files.append(File.generated(config, f"api/{page}.md", content=f"# {title}\n\n{text}\n"))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions of every room. Called first."""
    rooms = sorted(name for path, name in _outside().items() if path.endswith("/DECISIONS.md"))
    how = next(part for part in config.nav or [] if "How it works" in part)["How it works"]
    next(part for part in how if isinstance(part, dict) and "Decisions" in part)["Decisions"] = rooms
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's text with links that work on the site. In the search, pages for users come before all others."""
    if page.file.generated_by is not None and page.file.src_uri != "index.md":
        # A word in a title counts as much as a thousand in the text.
        page.meta["search"] = {"boost": 0.05 if page.file.src_uri.startswith("api/") else 0.001}
    inside = {f"zkconsumer/docs/{file.src_uri}": file.src_uri for file in files if file.generated_by is None}
    known = {**inside, **_outside()}
    origin = next((path for path, name in known.items() if name == page.file.src_uri), None)
    if origin is None:
        return markdown
    folder = posixpath.dirname(origin)

    def link(found: re.Match[str]) -> str:
        before, target, anchor, after = found[1], found[2], found[3] or "", found[4]
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in known:
            there = posixpath.relpath(known[path], posixpath.dirname(page.file.src_uri) or ".")
            return f"{before}{there}{anchor}{after}"
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{origin} has a link to {target}, which does not exist")
        return f"{before}{config.extra['source']}{path}{anchor}{after}"

    markdown = _IMAGE.sub(r'![\2](\1){ width="\3" }', markdown)
    parts = _FENCE.split(markdown)  # the text, the fence, the code, the fence, the text ...
    for number in range(0, len(parts), 4):
        parts[number] = _LINK.sub(link, parts[number])
    return "".join(parts)


def _outside() -> dict[str, str]:
    rooms = {
        path.relative_to(ROOT).as_posix(): f"decisions/{path.parent.name}.md"
        for path in sorted(ROOT.glob("zkconsumer/*/DECISIONS.md"))
    }
    figures = {
        path.relative_to(ROOT).as_posix(): f"figures/{path.name.replace('README', 'index')}"
        for path in sorted((ROOT / "scripts/measurements/figures").iterdir())
    }
    return PAGES | rooms | figures

"""How this machine reaches Maven Central: a mirror, a proxy. Reads settings, changes none.

Ivy knows nothing of Maven's ``settings.xml`` nor of ``HTTPS_PROXY``; in a company network both are often the only
way out, so what they say is translated. Functions only, callable from any thread.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr


def mirror() -> str | None:
    """The repository to use in place of Maven Central, or None.

    ``ZKCONSUMER_MAVEN_REPOSITORY`` if set, else the mirror for ``central`` in ``~/.m2/settings.xml``.
    """
    if os.environ.get("ZKCONSUMER_MAVEN_REPOSITORY"):
        return os.environ["ZKCONSUMER_MAVEN_REPOSITORY"]
    try:
        root = ET.parse(Path.home() / ".m2" / "settings.xml").getroot()  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError, RuntimeError):
        return None
    for element in root.iterfind("{*}mirrors/{*}mirror"):
        patterns = [part.strip() for part in element.findtext("{*}mirrorOf", "").split(",")]
        url = element.findtext("{*}url", "").strip()
        if url and "!central" not in patterns and {"central", "*", "external:*"} & set(patterns):
            return url
    return None


def repository_settings() -> str | None:
    """The text of an Ivy settings file that uses the mirror; None where Ivy's own default is right."""
    url = mirror()
    if url is None:
        return None
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" root={quoteattr(url)}/></resolvers></ivysettings>'
    )


def proxy_options() -> list[str]:
    """Options that let a Java process use the environment's proxy."""
    options = []
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        host = urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else None
        if host is not None and host.hostname:
            options += [f"-D{scheme}.proxyHost={host.hostname}", f"-D{scheme}.proxyPort={host.port or 80}"]
    return options

"""README's example of a test runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.timing import scaled

README = Path(__file__).parents[3] / "README.md"


def test_the_example_of_a_test_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "FakeCluster" in block]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[b'a', b'b', b'c'] {}\n"

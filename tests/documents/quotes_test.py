#!/usr/bin/env python3
"""Pages quote the examples: what stands between ```c++ FILE and ``` must stand in FILE, line by line and without a gap; only the
indentation may differ.

    tests/documents/quotes_test.py SOURCE_ROOT
"""
import pathlib
import re
import sys
import textwrap

root = pathlib.Path(sys.argv[1])
quotes = failures = 0
for page in sorted([*root.glob("docs/*.md"), *root.glob("*.md"), *root.glob("examples/*.md")]):
    for match in re.finditer(r"^```c\+\+ (\S+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        quotes += 1
        name, quote = match[1], textwrap.dedent(match[2]).splitlines()
        lines = (root / name).read_text().splitlines()
        windows = (lines[i : i + len(quote)] for i in range(len(lines) - len(quote) + 1))
        if not any(textwrap.dedent("\n".join(w)).splitlines() == quote for w in windows):
            failures += 1
            print(f"{page.relative_to(root)}: {name} has no such lines:\n{match[2]}")
print(f"{quotes} quotes, {failures} failures")
sys.exit(quotes == 0 or failures > 0)

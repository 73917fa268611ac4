#!/usr/bin/env python3
"""Every link between pages of a site leads to a page and a place that there is: docs/reference/links.py FOLDER"""
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.places = set()
        self.links = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places |= {attributes.get('id'), attributes.get('name') if tag == 'a' else None} - {None}
        target = attributes.get('href') if tag in ('a', 'link') else attributes.get('src')
        if target:
            self.links.append(target)


site = Path(sys.argv[1])
pages = {path.name: Page(path) for path in site.glob('*.html')}
count = 0
dead = set()
for name, page in pages.items():
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme in ('http', 'https', 'javascript', 'data'):
            continue
        count += 1
        target = unquote(parts.path) or name
        there = (site / target).is_file()
        if not there or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places):
            dead.add(f'{name}: {link}')
for line in sorted(dead):
    print(line)
if dead or count < len(pages):
    sys.exit(f'{len(dead)} dead links of {count}')
print(f'{len(pages)} pages, {count} links')

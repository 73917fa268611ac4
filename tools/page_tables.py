"""Tables of docs/ that a tool makes stand between two comments with its name."""


def replace_table(page, tool, lines):
    begin, end = (f'<!-- tools/{tool}: {what} -->' for what in ('begin', 'end'))
    with open(page, encoding='utf-8') as f:
        before, _, rest = f.read().partition(begin)
    after = rest.partition(end)[2]
    with open(page, 'w', encoding='utf-8') as f:
        f.write(before + '\n'.join([begin, '', *lines, '', end]) + after)

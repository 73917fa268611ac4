#!/usr/bin/env python3
"""Breaks the comments of C and C++ files, and the comments and docstrings of Python, at 120 columns; part of tools/format.

    tools/reflow_comments.py [--check] FILE...    --check: says which lines are longer, and changes nothing

From the first long line on, a paragraph is filled anew. Lists keep their indentation; tables and indented text are left as they are, so
a long line there is an error. clang-format's own ReflowComments was tried and is off: it joins the lines of tables, and does
not know where an item of a list goes on.
"""
import io
import re
import sys
import textwrap
import tokenize

COLUMNS = 120
LINE = re.compile(r'^(\s*)(///?)(?: (.*))?$')  # indentation, slashes, text
STARRED = re.compile(r'^(\s*)(/\*\*?|\*)( +)(.*)$')  # indentation, what begins the line, spaces, text
ITEM = re.compile(r'^( *)([-*]|\d+\.) ')
FIXED = re.compile(r'^(\||  )')  # a table; indented text
BEGINS = re.compile(r'(\||(Shapes|Error)\b|TODO|NOLINT|clang-format)')  # a line of its own


def shortened_rule(line):
    """`// ---- Title ------` at the right length, or None."""
    found = re.fullmatch(r'(\s*(?://|/\*|#) -{4} .*? )(-{4,})( \*/)?', line)
    if not found:
        return None
    end = found[3] or ''
    return found[1] + '-' * min(len(found[2]), COLUMNS - len(found[1]) - len(end)) + end


def fill(lines, first, later):
    """An operator stays at the end of a line: at the beginning Doxygen would take it for an item."""
    text = re.sub(r' (?=(?:[-*+/|<>=]+|\d+\.) )| (?=\*/$)', '\0', ' '.join(line.strip() for line in lines))
    filled = textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=later, break_long_words=False,
                           break_on_hyphens=False)
    return [line.replace('\0', ' ') for line in filled]


def ends_early(line, following):
    """Whether the first word of the next line would have found room here: the break is meant."""
    word = (following.split() or [''])[0]
    return len(line) + 1 + len(word) <= COLUMNS


def slashed_paragraph(lines, i):
    """The end of the paragraph that line i is in, and what its later lines begin with; None if it must not be filled."""
    indent, slashes, text = LINE.match(lines[i]).groups()
    prefix = f'{indent}{slashes} '
    item = ITEM.match(text or '')
    if item:
        hanging = ' ' * len(item[0])
    else:
        hanging = re.match(' *', text)[0]
        before = LINE.match(lines[i - 1]) if i else None
        inside_item = bool(hanging) and before and before[3] and (ITEM.match(before[3]) or before[3].startswith(hanging))
        if FIXED.match(text) and not inside_item:
            return None
    end = i + 1
    while end < len(lines):
        found = LINE.match(lines[end])
        if not found or found[1] != indent or found[2] != slashes or not found[3]:
            break
        begins = found[3]
        if ends_early(lines[end - 1], begins):
            break
        if ITEM.match(begins) or BEGINS.match(begins) or len(re.match(' *', begins)[0]) != len(hanging):
            break
        end += 1
    return end, prefix + hanging


def starred_paragraph(lines, i):
    """The same for /* ... */."""
    indent, begin, spaces, _ = STARRED.match(lines[i]).groups()
    if begin == '*' and len(spaces) > 3:
        return None
    later = f'{indent}*  ' if begin == '*' else f'{indent} *  ' if begin == '/**' else f'{indent} * '
    end = i + 1
    while not lines[end - 1].rstrip().endswith('*/') and end < len(lines):
        found = STARRED.match(lines[end])
        if not found or found[2] != '*' or ITEM.match(found[4]) or BEGINS.match(found[4]) or found[4].startswith('/'):
            break
        if len(found[3]) > 3 or ends_early(lines[end - 1], found[4]):
            break
        later = f'{found[1]}*{found[3]}'
        end += 1
    if begin == '*' and end == i + 1:
        later = re.match(r'\s*\* *', lines[i])[0]
    return end, later


def reflow(lines):
    """The lines of a file with comments of at most COLUMNS columns."""
    result = list(lines)
    i = 0
    while i < len(result):
        line = result[i]
        if len(line) > COLUMNS:
            rule = shortened_rule(line)
            if rule:
                result[i] = rule
            elif LINE.match(line) and LINE.match(line)[3]:
                found = slashed_paragraph(result, i)
                if found:
                    end, later = found
                    slashes = re.match(r'\s*///? ', line)[0]
                    texts = [result[i][len(slashes):]] + [LINE.match(x)[3] for x in result[i + 1:end]]
                    first = slashes + re.match(' *', texts[0])[0]
                    result[i:end] = fill(texts, first, later)
            elif STARRED.match(line):
                found = starred_paragraph(result, i)
                if found:
                    end, later = found
                    first = re.match(r'\s*(/\*\*?|\*) +', line)[0]
                    texts = [line[len(first):]] + [STARRED.match(x)[4] for x in result[i + 1:end]]
                    result[i:end] = fill(texts, first, later)
        i += 1
    return result


def is_comment(line):
    return bool(re.match(r'\s*(//|/\*|\*)', line))


# ---- Python ----------------------------------------------------------------------------------------------------------

PARAMETER = re.compile(r'\s*([-*] |[\w*]+(, [\w*]+)*: |"""|#)')  # what begins a line of its own


def python_text(source):
    """Of each comment on lines of its own and each docstring: its first line, the one behind its last, what lines begin with."""
    found, before = [], tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first, last = token.start[0] - 1, token.end[0]
        alone = not token.line[:token.start[1]].strip()
        if token.type == tokenize.COMMENT and alone and first:
            found.append((first, last, '# '))
        elif token.type == tokenize.STRING and token.string.startswith('"""') and before != tokenize.OP:
            found.append((first, last, ''))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    return found


def reflow_python(lines):
    """From each long line on, a paragraph is filled anew; it ends where a line is indented otherwise, or begins an item."""
    for first, end, mark in reversed(python_text('\n'.join(lines))):
        if mark and not any(len(line) > COLUMNS for line in lines[first:end]):
            continue
        if mark:  # a comment goes on in the lines below
            while end < len(lines) and lines[end].startswith(lines[first][:lines[first].index('#')] + mark):
                end += 1
        i = first
        while i < end:
            if len(lines[i]) <= COLUMNS:
                i += 1
                continue
            if shortened_rule(lines[i]):
                lines[i] = shortened_rule(lines[i])
                continue
            indent = re.match(' *', lines[i])[0] + mark
            item = not mark and PARAMETER.match(lines[i]) and not lines[i].lstrip().startswith('"')
            below = indent + '    ' if item and lines[i + 1].startswith(indent + '    ') else indent
            stop = i + 1
            while stop < end and lines[stop].startswith(below) and lines[stop][len(below):len(below) + 1].strip():
                if ends_early(lines[stop - 1], lines[stop]) or PARAMETER.match(lines[stop][len(mark and indent):]):
                    break
                stop += 1
            text = [line[len(indent):] for line in lines[i:stop]]
            filled = fill(text, indent, indent + '    ' if item else indent)
            lines[i:stop] = filled
            end += len(filled) - (stop - i)
            i += len(filled)
    return lines


def is_python_text(lines):
    """The numbers of lines that are comments or docstrings."""
    return {i for first, end, _ in python_text('\n'.join(lines)) for i in range(first, end)}


def main():
    arguments = sys.argv[1:]
    check = '--check' in arguments
    failures = 0
    for name in arguments:
        if name.startswith('--'):
            continue
        with open(name, encoding='utf-8') as f:
            lines = f.read().split('\n')
        python = name.endswith('.py') or lines[0].endswith('python3')
        new = reflow_python(list(lines)) if python else reflow(lines)
        if check:
            new = lines
        elif new != lines:
            with open(name, 'w', encoding='utf-8') as f:
                f.write('\n'.join(new))
        texts = is_python_text(new) if python else ()
        for number, line in enumerate(new, 1):
            if len(line) > COLUMNS and (number - 1 in texts if python else is_comment(line)):
                print(f'{name}:{number}: a comment of {len(line)} columns', file=sys.stderr)
                failures += 1
    return failures > 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""What Doxygen reads in the place of a header or a page: docs/reference/filter.py FILE

Headers: the macros that make one text C and C++ are expanded to C++, and each name says what it is called in C; comments behind
members are documentation; sections are topics, the same in all headers; a function of C has the text of its C++ twin beside its own
line. Pages: headings have the anchors that GitHub gives them. Line numbers stay.
"""
import re
import sys
from pathlib import Path


def topic(title):
    return re.sub(r'\W+', '_', title.lower()).strip('_')


def behind(text, comment):
    """A comment behind a declaration as documentation."""
    return f'{text.rstrip()}  ///< {comment}'


def in_c(code):
    return f'<br><span class="c">C: <code>{code}</code></span>'


def expanded(text):
    # The macros themselves.
    text = re.sub(r'^# ?(?:define|undef) SIMDATTN_(?:STRUCT|DEFAULT|ARRAY|API)\b(?:.*\\\n)*.*',
                  lambda m: '\n' * m.group().count('\n'), text, flags=re.M)

    # The file's own comment is the first one.
    if text.startswith('/*'):
        text = text.replace('/*', '/**', 1).replace('*/', '\\file */', 1)
    else:
        text = re.sub(r'^//(.*)', r'/**\1 \\file */', text, count=1)

    # SIMDATTN_..._INIT: the name; what stands in it, nobody needs to read.
    inits = set(re.findall(r'^#define (SIMDATTN_\w+_INIT)\b', text, flags=re.M))
    text = re.sub(r'^#define (SIMDATTN_(\w+)_INIT)\b(?:.*\\\n)*.*',
                  lambda m: f'#define {m[1]} /**< Defaults of a `simdattn_{m[2].lower()}`. */' + '\n' * m.group().count('\n'),
                  text, flags=re.M)

    # Structs, enumerations and enumerators by their C++ names; in C they are called ...
    def struct(match):
        c_name = match[2]
        init = f'{c_name.upper()}_INIT'
        return f'{match[1]}{in_c(f"{c_name} x = {init};" if init in inits else c_name)} */\nstruct {match[3]} {{'

    text = re.sub(r'(\S) *\*/\nSIMDATTN_STRUCT\((\w+), (\w+)\) \{', struct, text)
    text = re.sub(r'SIMDATTN_STRUCT\(\w+, (\w+)\)', r'struct \1', text)
    in_c_of = {cpp: c for cpp, c in re.findall(r'^typedef simdattn::(\w+) (simdattn_\w+);$', text, flags=re.M)}
    enumerators = {c: re.findall(r'SIMDATTN_\w+', body) for c, body in
                   re.findall(r'^typedef int32_t (\w+);\s*enum \{(.*?)\};', text, flags=re.M | re.S)}

    def enumeration(match):
        c_name = in_c_of[match[2]]
        lines = match[3].split('\n')
        for c in enumerators[c_name]:  # in the same order
            i = next(i for i, line in enumerate(lines) if re.match(r' *k\w+ = \d+,', line) and '///' not in line and '\a' not in line)
            beside = re.fullmatch(r'( *k\w+ = \d+,) */\* (.*) \*/', lines[i])
            if beside:
                lines[i] = behind(beside[1], beside[2] + in_c(c))
            elif i > 0 and lines[i - 1].endswith(' */'):
                lines[i - 1] = lines[i - 1][:-3] + in_c(c) + ' */'
                lines[i] += '\a'  # done
            else:
                print(f'warning: {c} is not documented.', file=sys.stderr)
                lines[i] += '\a'
        return f'{match[1]}{in_c(c_name)} */\nenum class {match[2]} : int32_t {{' + '\n'.join(lines).replace('\a', '') + '};'

    text = re.sub(r'(\S) *\*/\nenum class (\w+) : int32_t \{(.*?)\};', enumeration, text, flags=re.S)

    # Functions of C.
    text = re.sub(r' \*/\n(SIMDATTN_API [^;(]*?\bsimdattn_(\w+)\()', r' \\copydoc simdattn::\2 */\n\1', text)
    # A brief description ends at the first dot before a space.
    text = text.replace(' .. ', ' ..&nbsp;').replace('et al. ', r'et al.\ ')
    # Shapes and bounds are paragraphs of their own.
    text = re.sub(r'\b(Shapes|Error)\b(?=[^.:]*:)', r'<p>\1', text)
    return re.sub(r'^( \*  |/// )(Relative error|Varlen|Raw state|Arithmetic|Without data)\b', r'\1<p>\2', text, flags=re.M)


def sections(text):
    result = []
    open_topic = None
    introduced = False
    # Of C++ names, declared here or further below; what C calls them belongs there, too.
    topic_of = {}
    title = None
    for line in text.split('\n'):
        title = (re.fullmatch(r'/\* -{4} (.*?) -{4,} \*/', line) or [0, title])[1]
        declared = re.match(r'(?:struct(?: \[\[nodiscard\]\])?|enum class|using) (\w+)', line)
        if declared and (declared[1] not in topic_of or '{' in line):
            topic_of[declared[1]] = title
    for line in text.split('\n'):
        ruler = re.fullmatch(r'/\* -{4} (.*?) -{4,} \*/', line)
        if introduced:  # what stands under a title, up to an empty line, is the topic's description
            introduced = line.startswith('//')
            line = line.replace('//', '', 1) if introduced else f'*/ /** @{{ */{line}'
            result.append(line)
            continue
        if re.fullmatch(r'// -{40,}', line):
            result.append(None)  # the title is on the next line
            continue
        if result and result[-1] is None:
            ruler = re.fullmatch(r'// (.*)', line)
            result[-1] = ''
            introduced = True
        if ruler:
            close = '/** @} */ ' if open_topic else ''
            open_topic = ruler[1]
            end = '' if introduced else ' */ /** @{ */'
            result.append(f'{close}/** \\addtogroup {topic(open_topic)} {open_topic}{end}')
            continue
        alias = re.fullmatch(r'typedef simdattn::((\w+)(?:<\w+>)?) simdattn_\w+;', line)
        if alias:
            line = (f'/** @}} */ /** What C calls simdattn::{alias[1]}. \\ingroup {topic(topic_of[alias[2]])} */ {line}'
                    f' /** \\addtogroup {topic(open_topic)} */ /** @{{ */')
        elif open_topic and re.match(r'namespace \w+ \{|\}  // namespace', line):
            # Its members are of the topic, the namespace is not.
            line = f'/** @}} */ {line.split("//")[0]} /** \\addtogroup {topic(open_topic)} */ /** @{{ */'
        # A comment behind a member, in C and in C++; not one behind a closing brace of a scope.
        line = re.sub(r'^( *[^/ ].*[;,}]) +/\* ([^-].*) \*/$', lambda m: behind(m[1], m[2]), line)
        line = re.sub(r' *// NOLINT.*$', '', line)
        line = re.sub(r'^( *(?:[^/ #}].*;|.*\{.*\})) +// (.*)$', lambda m: behind(m[1], m[2]), line)
        line = re.sub(r'^( +size_t struct_size.*;)$', lambda m: behind(m[1], 'the size of this struct: leave it as it is'), line)
        line = re.sub(r'^(.* reserved.*;)$', lambda m: behind(m[1], 'must stay 0'), line)
        result.append(line)
    if open_topic:
        result.append('/** @} */')
    return '\n'.join(result)


def anchor(title):
    """As GitHub makes it."""
    return re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')


def page(text, name):
    result = []
    fenced = False
    stem = Path(name).stem.lower()
    for line in text.split('\n'):
        if line.startswith('```'):
            fenced = not fenced
        elif not fenced:
            line = re.sub(r'^(##+) (.*)$', lambda m: f'{m[0]} {{#{stem}-{anchor(m[2])}}}', line)
            line = re.sub(r'\]\(#([\w-]+)\)', rf'](#{stem}-\1)', line)
            line = re.sub(r'(?:\.\./)?bench/pictures/', '', line)  # tools/reference puts them beside the pages
            # Files that are no pages of the site.
            line = re.sub(r'\[([^]]*)\]\((?:\.\./)?((?:bench|examples|lib)/[\w./-]+)(?:#[\w-]+)?\)', lambda m: m[1] if m[1] == m[2] else f'{m[1]} (`{m[2]}`)', line)
            line = re.sub(r'\]\((?:[\w./-]*/)?([\w-]+)\.md#([\w-]+)\)', lambda m: f'](#{m[1].lower()}-{m[2]})', line)
            line = re.sub(r'\[([^]]*)\]\(include/simdattn/(\w+\.h)\)', r'\\ref \2 "\1"', line)
            line = re.sub(r'\[([^]]*)\]\((?!http|#)[\w./-]+\.(?!md)\w+\)', r'`\1`', line)
        result.append(line)
    return '\n'.join(result)


path = sys.argv[1]
content = Path(path).read_text()
if path.endswith('.md'):
    print(page(content, path), end='')
else:
    print(sections(expanded(content)), end='')

"""Functions and innermost loops of compiled objects, as a disassembler prints them."""
import re
import subprocess


class Loop:
    """Instructions between a label and the last branch back to it, without the loops inside."""

    def __init__(self, function, instructions):
        self.function = function
        self.instructions = instructions  # (address, mnemonic, operands)

    def count(self, pattern):
        return sum(1 for _, mnemonic, _ in self.instructions if re.match(pattern, mnemonic))


def functions(objdump, path):
    """Name and instructions of every function of an object or archive."""
    text = subprocess.run([objdump, '-d', '-C', '--no-show-raw-insn', path], check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout
    name, body = None, []
    for line in text.splitlines():
        head = re.match(r'[0-9a-f]+ <(.*)>:$', line)
        if head:
            if name is not None:
                yield name, body
            name, body = head.group(1), []
            continue
        parts = re.match(r'\s*([0-9a-f]+):\s+(\S+)\s*(.*)', line)
        if parts and name is not None:
            body.append((int(parts.group(1), 16), parts.group(2), parts.group(3)))
    if name is not None:
        yield name, body


BRANCH = re.compile(r'(?:b\.?[a-z]*|cbn?z|tbn?z|j[a-z]+)$')


def innermost_loops(name, body):
    index = {address: i for i, (address, _, _) in enumerate(body)}
    spans = {}
    for i, (address, mnemonic, operands) in enumerate(body):
        if not BRANCH.match(mnemonic) or mnemonic in ('bl', 'br', 'blr', 'bic'):
            continue
        target = re.search(r'(?:^|[ ,])(?:0x)?([0-9a-f]+)(?: <|$)', operands)
        if target is None or int(target.group(1), 16) not in index:
            continue
        start = index[int(target.group(1), 16)]
        if start <= i:
            spans[start] = max(i, spans.get(start, i))
    for start, end in spans.items():
        if not any(start <= s and e <= end and (s, e) != (start, end) for s, e in spans.items()):
            yield Loop(name, body[start:end + 1])

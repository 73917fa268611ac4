"""Functions and innermost loops of compiled objects, as a disassembler prints them."""
import re
import subprocess


class Loop:
    """Instructions that run again and again, in the order of their addresses, without any loop inside."""

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
NEVER_GOES_ON = re.compile(r'(?:b|ret|br|jmp|retq)$')


def jumps_of(body):
    """Where each branch of a function goes to, by its index."""
    index = {address: i for i, (address, _, _) in enumerate(body)}
    jumps = {}
    for i, (_, mnemonic, operands) in enumerate(body):
        if not BRANCH.match(mnemonic) or mnemonic in ('bl', 'br', 'blr', 'bic'):
            continue
        target = re.search(r'(?:^|[ ,])(?:0x)?([0-9a-f]+)(?: <|$)', operands)
        if target is not None and int(target.group(1), 16) in index:
            jumps[i] = index[int(target.group(1), 16)]
    return jumps


def innermost_loops(name, body):
    """Natural loops: a jump to an instruction that every way to the jump passes, and what runs between the two, wherever it lies.
    Compilers put parts of a loop behind the function's end, and from there they jump back into what is no loop as well."""
    jumps = jumps_of(body)
    before = {i: [i - 1] for i in range(1, len(body)) if not NEVER_GOES_ON.match(body[i - 1][1])}
    for i, target in jumps.items():
        before.setdefault(target, []).append(i)
    loops = {}
    for i, start in jumps.items():
        if start > i:
            continue
        found, behind = {start}, [i]
        while behind and 0 not in found:
            at = behind.pop()
            if at not in found:
                found.add(at)
                behind += before.get(at, [])
        if 0 not in found or start == 0:
            loops[start] = loops.get(start, set()) | found
    for start, found in loops.items():
        if not any(other != start and other in found for other in loops):
            yield Loop(name, [body[i] for i in sorted(found)])

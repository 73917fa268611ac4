#!/usr/bin/env python3
"""The page of tools/bench_report.py: what it says of figures that are known, and how it looks in a browser, on a phone and on
a desk, in light and in dark. Skipped (77) without Matplotlib; the browser's part is skipped by name without a browser.

  report_test.py BENCH_REPORT_PY
"""
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = 390, 1280

# Run in a page that shows the report in a frame of each width: what is too wide, cut off, too small or too pale.
PROBE = '''
<script>
function luminance(rgb) {
  const [r, g, b] = rgb.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function look(frame) {
  const d = frame.contentDocument, page = getComputedStyle(d.body), found = {};
  found.width = frame.clientWidth;
  found.scroll = d.documentElement.scrollWidth;
  found.background = luminance(page.backgroundColor);
  const contrast = c => { const a = luminance(c), b = found.background; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  found.contrast = Math.min(contrast(page.color), ...[...d.querySelectorAll('svg text')].map(t => contrast(getComputedStyle(t).fill)));
  found.text = d.body.innerText.length;
  found.pictures = [...d.querySelectorAll('svg')].length;
  found.cut = [...d.querySelectorAll('svg')].flatMap(s => {
    const box = s.getBoundingClientRect();
    return [...s.querySelectorAll('text')].filter(t => {
      const b = t.getBoundingClientRect();
      return b.left < box.left - 3 || b.right > box.right + 3 || b.top < box.top - 3 || b.bottom > box.bottom + 3;
    }).map(t => t.textContent);
  });
  found.smallest = Math.min(...[...d.querySelectorAll('svg text')].map(t => {
    const s = t.ownerSVGElement;
    return parseFloat(getComputedStyle(t).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width;
  }));
  return found;
}
addEventListener('load', () => {
  document.getElementById('found').textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(look));
});
</script><pre id=found></pre>
'''


def fail(text):
    sys.exit(f'FAILED: {text}')


def row(name, ns, **counters):
    return dict({'name': f'{name}/iterations:1/manual_time', 'run_type': 'iteration', 'real_time': ns / 1000, 'time_unit': 'us',
                 'spread': 0.02, 'noisy': 0, 'samples': 99}, **counters)


def report(cpu, factor, others):
    """A small run: `factor` slower than the one with 1; with other libraries or without."""
    limits = '100 GFLOP/s fma; read 200 GB/s / 100 GB/s / 50 GB/s / 20 GB/s'
    context = {'cpu': cpu, 'compiler': 'gcc 99', 'limits avx3': limits, 'limits sse2': limits.replace('100 GFLOP', '25 GFLOP'),
               'commit': 'abcdef', 'date': '2026-01-02T03:04:05', 'version': 'simdattn 9'}
    rows = []
    cases = [('decode/llama3-8b_512_panels/f32', 50e3), ('prefill/gpt2_1head_2048_rows/bf16', 5e6), ('softmax/32x4096/f32', 20e3),
             ('weighted_values/1q_262144x128/f32', 4e6)]
    if others:
        context |= {'peer openblas': 'OpenBLAS 1.2, kernels of Testlake', 'peer loops': '-O3',
                    'missing ggml': 'not built: its package was not found',
                    'bits simdattn decode': 'threads: same, alone: same', 'bits openblas decode': 'threads: differ, alone: same'}
    for name, ns in cases:
        flops = {} if name.startswith('softmax') else {'GFLOP_per_s': 60 / factor, 'GB_per_s': 15 / factor}
        rows.append(row(f'{name}/scalar', 40 * ns * factor, error=1e-7))
        rows.append(row(f'{name}/highway/avx3', ns * factor, speedup=40, share=0.8, limit_is_read=1, error=1e-7, **flops))
        rows.append(row(f'{name}/xsimd/avx2', 1.5 * ns * factor, speedup=26, share=0.5, limit_is_read=1, error=1e-7, **flops))
        if others:
            rows.append(row(f'{name}/peer/loops', 3 * ns * factor, error=2e-7))
            rows.append(row(f'{name}/peer/openblas', (0.5 if 'softmax' in name else 2.25) * ns * factor, error=3e-7,
                            noisy=1 if 'decode' in name else 0, spread=0.3))
    for n in 1024, 65536:
        rows.append(row(f'growth/decode_{n}/f32/highway/avx3', n * 10, relative=1.1, share=0.7))
    rows.append(row('threads/prefill_2048_x2/f32/highway/avx3', 1e6, relative=0.52))
    rows.append(dict(row('rope/half/f32/highway/avx3', 0), error_occurred=True, error_message='wrong result'))
    return {'context': context, 'benchmarks': rows}


def make(script, folder, reports, *more):
    files = []
    for i, r in enumerate(reports):
        files.append(folder / f'{i}.json')
        files[-1].write_text(json.dumps(r))
    done = subprocess.run([python, script, '--out', str(folder / 'out'), *more, *map(str, files)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done


def check_figures(folder):
    text = (folder / 'out/RESULTS.md').read_text()
    for needed in ('## First CPU, gcc 99', '## Second CPU, gcc 99', 'OpenBLAS 1.2, kernels of Testlake',
                   '| decode 512 panels f32 | 50.0 µs | 80 % read |',
                   '| OpenBLAS | 112 µs ~ | 3e-07 | 2.25 ~ |', '| 0.50 |', '| OpenBLAS | differ / same |', '| ggml | not here: not built'):
        if needed not in text:
            fail(f'RESULTS.md has no "{needed}"')
    pictures = list((folder / 'out/pictures').glob('*.svg'))
    for p in pictures:
        subprocess.run([python, '-c', 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])', str(p)], check=True)
        if 'var(--' in p.read_text() and 'prefers-color-scheme:dark' not in p.read_text():
            fail(f'{p.name} has no colours of its own')
        if re.search(r'#0000[01]', p.read_text()):
            fail(f'{p.name}: a colour was not replaced')
    for name in ('best-peer', 'roofline', 'shares'):
        if not any(p.name == f'first-cpu-gcc-99-{name}.svg' for p in pictures):
            fail(f'there is no picture {name}')
        if name == 'best-peer' and any(p.name == f'second-cpu-gcc-99-{name}.svg' for p in pictures):
            fail(f'{name} of a machine without other libraries')
    page = (folder / 'out/index.html').read_text()
    if page.count('<h3>decode</h3>') != 1:
        fail('the page has no bars of every library for decode, or of a machine without')
    if re.search(r'(src|href)="(?!#)', page) or 'url(http' in page:
        fail('the page is not self-contained')
    names = re.findall(r'\bid="([^"]+)"', page)
    if len(names) != len(set(names)):
        fail('two pictures share a name')


def check_beside(folder):
    """A second run of one machine beside the page of both: the other one's lines and pictures are as they were."""
    old = folder / 'out/RESULTS.md'
    text = old.read_text()
    done = make(script, folder, [report('Second CPU', 7, False)], '--out', str(folder / 'new'), '--beside', str(old))
    if done.returncode != 0:
        fail(done.stdout)
    new = (folder / 'new/RESULTS.md').read_text()
    start, end = text.index('## First CPU, gcc 99'), text.index('## Second CPU, gcc 99')
    if text[start:end].strip() not in new or text[:start].strip() != new[:new.index('## ')].strip():
        fail('--beside: the other machine is not as it was')
    if new.count('\n## ') != 2 or text[end:].strip() in new:
        fail('--beside: the machine that was measured again is not alone, or not new')
    for p in (folder / 'out/pictures').glob('first-*.svg'):
        if (folder / 'new/pictures' / p.name).read_bytes() != p.read_bytes():
            fail(f'--beside: {p.name} is not as it was')


def check_looks(folder, browser):
    page = (folder / 'out/index.html').read_text()
    wrapper = folder / 'look.html'
    frames = ''.join(f'<iframe style="width:{w}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>' for w in WIDTHS)
    wrapper.write_text('<!doctype html><body>' + frames + PROBE)
    for scheme, number in ('dark', 0), ('light', 1):
        done = subprocess.run([browser, '--headless=new', '--no-sandbox', '--disable-gpu', '--window-size=1400,1000',
                               f'--user-data-dir={folder}/browser', f'--blink-settings=preferredColorScheme={number}',
                               '--virtual-time-budget=10000', '--dump-dom', wrapper.as_uri()],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300)
        found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
        if not found or not found.group(1):
            fail(f'{browser} showed nothing ({scheme})')
        for look in json.loads(html.unescape(found.group(1))):
            where = f'{scheme}, {look["width"]} px'
            print(where, {k: v for k, v in look.items() if k != 'width'})
            if look['scroll'] > look['width']:
                fail(f'{where}: the page is {look["scroll"]} px wide')
            if look['text'] < 1000 or look['pictures'] < 10:
                fail(f'{where}: {look["text"]} letters and {look["pictures"]} pictures')
            if (look['background'] < 0.05) != (scheme == 'dark'):
                fail(f'{where}: a background of luminance {look["background"]}')
            if look['contrast'] < 4.5:
                fail(f'{where}: text with a contrast of {look["contrast"]:.1f}')
            if look['cut']:
                fail(f'{where}: text is cut off: {look["cut"]}')
            if look['smallest'] < 6:
                fail(f'{where}: text of {look["smallest"]:.1f} px')


script = sys.argv[1]
python = next((p for p in (sys.executable, '/usr/bin/python3')
               if subprocess.run([p, '-c', 'import matplotlib'], stderr=subprocess.DEVNULL).returncode == 0), None)
if python is None:
    print('skipped: Matplotlib is not here')
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    done = make(script, folder, [report('First CPU', 1, True), report('Second CPU', 2, False), report('First CPU', 3, False)])
    if done.returncode != 0:
        fail(done.stdout)
    check_figures(folder)
    check_beside(folder)
    bad = subprocess.run([python, script, '--out', str(folder / 'bad'), script], text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT)
    if bad.returncode == 0 or 'is not a report' not in bad.stdout:
        fail(f'a file that is no report: {bad.stdout}')
    browser = next((b for b in ('chromium', 'chromium-browser', 'google-chrome', 'chrome') if shutil.which(b)), None)
    if browser is None:
        print('skipped in part: there is no browser to look at the page with')
    else:
        check_looks(folder, browser)

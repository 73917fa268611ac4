#include "bench/machine.h"

#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "simdattn/simdattn.h"

namespace bench {

// One per object of probes.cc; the build file says which there are.
#define BENCH_PROBES(isa) Isa probes_##isa();
BENCH_ISAS(BENCH_PROBES)
#undef BENCH_PROBES

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Entry {
  const char* name;
  Isa (*probes)();
};
const std::vector<Entry> kEntries = {
#define BENCH_PROBES(isa) {#isa, probes_##isa},
    BENCH_ISAS(BENCH_PROBES)
#undef BENCH_PROBES
};

bool vouched_for(std::string_view isa) {
  for (const simdattn::Target* t : simdattn::targets()) {
    if (simdattn::target_runnable(*t) && isa_of_target(simdattn::target_name(*t)) == isa) return true;
  }
  return false;
}

size_t read_size(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  std::string unit;
  if (!(file >> value)) return 0;
  file >> unit;
  return unit == "K" ? value << 10 : unit == "M" ? value << 20 : value;
}

CacheSizes find_cache_sizes() {
  CacheSizes sizes;
  const auto set = [&](size_t level, size_t bytes) {
    if (bytes == 0) return;
    (level == 1 ? sizes.l1 : level == 2 ? sizes.l2 : sizes.l3) = bytes;
  };
#if defined(__APPLE__)
  for (const auto& [name, level] :
       {std::pair{"hw.perflevel0.l1dcachesize", size_t{1}}, std::pair{"hw.perflevel0.l2cachesize", size_t{2}}}) {
    size_t value = 0, length = sizeof value;
    if (sysctlbyname(name, &value, &length, nullptr, 0) == 0) set(level, value);
  }
  sizes.l3 = std::max(sizes.l3, 2 * sizes.l2);
#else
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    std::string type;
    if (!(std::ifstream(folder + "type") >> type) || type == "Instruction") continue;
    set(read_size(folder + "level"), read_size(folder + "size"));
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  for (const auto& [level, name] :
       {std::pair{size_t{1}, _SC_LEVEL1_DCACHE_SIZE}, std::pair{size_t{2}, _SC_LEVEL2_CACHE_SIZE},
        std::pair{size_t{3}, _SC_LEVEL3_CACHE_SIZE}}) {
    const long value = sysconf(name);
    if (value > 0) set(level, static_cast<size_t>(value));
  }
#endif
#endif
  sizes.l2 = std::max(sizes.l2, 2 * sizes.l1);
  sizes.l3 = std::max(sizes.l3, 2 * sizes.l2);  // a machine without L3: the probe then shows that there is none
  return sizes;
}

double low_quantile(std::vector<double>& samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 10];
}

}  // namespace

std::string isa_of_target(std::string_view target) {
  const auto has = [&](std::string_view part) { return target.find(part) != target.npos; };
  if (has("avx3") || has("avx512") || has("avx10") || has("amx")) return "avx3";
  if (has("avx2") || has("fma3") || has("avx_vnni")) return "avx2";
  if (has("sse") || has("avx")) return "sse2";
  if (has("sve")) return "sve";
  if (has("neon")) return "neon";
  return "";
}

const Isa* find_isa(std::string_view name) {
  static std::vector<Isa>* found = new std::vector<Isa>([] {
    std::vector<Isa> isas;
    for (const Entry& e : kEntries) {
      if (vouched_for(e.name)) isas.push_back(e.probes());
    }
    return isas;
  }());
  for (const Isa& isa : *found) {
    if (name == isa.name) return &isa;
  }
  return nullptr;
}

std::vector<const Isa*> runnable_isas() {
  std::vector<const Isa*> isas;
  for (const Entry& e : kEntries) {
    if (const Isa* isa = find_isa(e.name)) isas.push_back(isa);
  }
  return isas;
}

void dependent_adds(size_t steps) {
  // Register plus register: additions of a small constant are removed by the renamer of newer cores.
  uint64_t x = steps;
  uint64_t y = 1;
  for (size_t i = 0; i < steps; i += 16) {
    for (int j = 0; j < 16; ++j) {
      asm volatile("" : "+r"(x), "+r"(y));
      x += y;
    }
  }
  asm volatile("" : : "r"(x));
}

Buffer::Buffer(size_t bytes) : size_(bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  data_.reset(std::aligned_alloc(alignment, rounded));
  if (!data_) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
#endif
}
void Buffer::Free::operator()(void* p) const { std::free(p); }

const CacheSizes& cache_sizes() {
  static const CacheSizes sizes = find_cache_sizes();
  return sizes;
}

std::string cpu_name() {
#if defined(__APPLE__)
  char text[256] = {};
  size_t length = sizeof text - 1;
  if (sysctlbyname("machdep.cpu.brand_string", text, &length, nullptr, 0) == 0) return text;
#else
  std::ifstream file("/proc/cpuinfo");
  std::string implementer;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon == line.npos) continue;
    if (line.starts_with("model name")) return line.substr(colon + 2);
    if (line.starts_with("CPU implementer")) implementer = line.substr(colon + 2);
    if (line.starts_with("CPU part")) return "ARM implementer " + implementer + " part " + line.substr(colon + 2);
  }
#endif
  return "unknown CPU";
}

std::vector<Level> levels() {
  const CacheSizes& c = cache_sizes();
  size_t beyond = std::clamp<size_t>(2 * c.l3, size_t{256} << 20, size_t{1} << 30);
#if defined(_SC_AVPHYS_PAGES)
  const long pages = sysconf(_SC_AVPHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) beyond = std::min(beyond, static_cast<size_t>(pages) / 4 * static_cast<size_t>(page));
#endif
  const size_t third = std::clamp(c.l3 / 2, c.l2 + c.l2 / 2, std::max(4 * c.l2, size_t{16} << 20));
  return {{"L1", c.l1 / 2}, {"L2", c.l2 / 2}, {"L3", third}, {"DRAM", beyond}};
}

namespace {

/// The clock, and multiply-adds of each instruction set.
void measure_arithmetic(Machine& m) {
  constexpr size_t kFmaSteps = 4000;
  constexpr size_t kAdds = 1 << 16;
  std::vector<double> adds;
  std::vector<std::vector<double>> fma(m.isas.size());
  // Ten in a row: a core takes some 100 us at reduced speed to change the clock for wider vectors.
  for (int round = 0; round < 8; ++round) {
    for (int k = 0; k < 10; ++k) {
      const auto start = Clock::now();
      dependent_adds(kAdds);
      adds.push_back(seconds_since(start) / static_cast<double>(kAdds));
    }
    for (size_t i = 0; i < m.isas.size(); ++i) {
      for (int k = 0; k < 10; ++k) {
        const auto start = Clock::now();
        const double flops = m.isas[i].isa->fma(kFmaSteps);
        fma[i].push_back(seconds_since(start) / flops);
      }
    }
  }
  m.clock = 1 / low_quantile(adds);
  for (size_t i = 0; i < m.isas.size(); ++i) m.isas[i].flops = 1 / low_quantile(fma[i]);
}

/// Reading and copying from level `l` of the memory; `data` is as large as the last one.
void measure_level(Machine& m, size_t l, const Buffer& data) {
  constexpr size_t kSampleBytes = size_t{4} << 20;  // tens of microseconds from a cache
  volatile uint64_t sink = 0;
  const bool dram = l + 1 == m.levels.size();
  // A DRAM sample is a part of the buffer that was not touched since more than a cache of other bytes was.
  const size_t parts = dram ? 24 : 1;
  const size_t bytes = m.levels[l].bytes / parts / 4096 * 4096;
  const size_t passes = dram ? 1 : std::max<size_t>(1, kSampleBytes / bytes);
  const int rounds = dram ? 8 : 30;
  std::vector<std::vector<double>> read(m.isas.size());
  std::vector<double> copy;
  size_t part = 0;
  const auto next = [&] { return data.as<std::byte>() + part++ % parts * bytes; };
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < m.isas.size(); ++i) {
      for (const bool prefetch : {false, true}) {
        if (prefetch && l < 2) continue;
        const auto f = prefetch ? m.isas[i].isa->read_prefetch : m.isas[i].isa->read;
        const std::byte* p = next();
        if (!dram) sink = sink + f(p, bytes);
        const auto start = Clock::now();
        for (size_t k = 0; k < passes; ++k) sink = sink + f(p, bytes);
        read[i].push_back(seconds_since(start) / static_cast<double>(passes * bytes));
      }
    }
    std::byte* p = next();
    if (!dram) std::memcpy(p, p + bytes / 2, bytes / 2);
    const auto start = Clock::now();
    for (size_t k = 0; k < passes; ++k) {
      std::memcpy(p, p + bytes / 2, bytes / 2);
      asm volatile("" : : "r"(p) : "memory");
    }
    copy.push_back(seconds_since(start) / static_cast<double>(passes * (bytes / 2)));
  }
  for (size_t i = 0; i < m.isas.size(); ++i) m.isas[i].read[l] = 1 / low_quantile(read[i]);
  m.copy[l] = 1 / low_quantile(copy);
}

}  // namespace

Machine measure_machine() {
  Machine m;
  m.cpu = cpu_name();
  m.levels = levels();
  for (const Isa* isa : runnable_isas()) m.isas.push_back({isa, 0, std::vector<double>(m.levels.size())});
  m.copy.resize(m.levels.size());
  measure_arithmetic(m);
  const Buffer data(m.levels.back().bytes);
  std::memset(data.data(), 1, data.size());
  for (size_t l = 0; l < m.levels.size(); ++l) measure_level(m, l, data);
  return m;
}

}  // namespace bench

#include "bench/machine.h"

// One probe per width is enough: the sub-families of AVX-512 differ in instructions that no probe uses.
#define HWY_DISABLED_TARGETS (HWY_AVX3_SPR | HWY_AVX3_ZEN4 | HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bench {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Accumulators are named variables: arrays of vectors go through memory with gcc. Twelve cover two pipes of four cycles
// and fit sixteen registers; where there are thirty-two, twenty-four cover four pipes.
double Fma(size_t steps) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, 0.999f);
  const auto c = hn::Set(d, 0.001f);
  // Every chain starts elsewhere: of equal ones the compiler would compute one.
  const auto at = [&](int i) HWY_ATTR { return hn::Set(d, 1.0f + static_cast<float>(i)); };
  auto a0 = at(0), a1 = at(1), a2 = at(2), a3 = at(3), a4 = at(4), a5 = at(5);
  auto a6 = at(6), a7 = at(7), a8 = at(8), a9 = at(9), a10 = at(10), a11 = at(11);
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
  auto b0 = at(12), b1 = at(13), b2 = at(14), b3 = at(15), b4 = at(16), b5 = at(17);
  auto b6 = at(18), b7 = at(19), b8 = at(20), b9 = at(21), b10 = at(22), b11 = at(23);
  constexpr size_t kChains = 24;
#else
  constexpr size_t kChains = 12;
#endif
  for (size_t i = 0; i < steps; ++i) {
    a0 = hn::MulAdd(a0, m, c);
    a1 = hn::MulAdd(a1, m, c);
    a2 = hn::MulAdd(a2, m, c);
    a3 = hn::MulAdd(a3, m, c);
    a4 = hn::MulAdd(a4, m, c);
    a5 = hn::MulAdd(a5, m, c);
    a6 = hn::MulAdd(a6, m, c);
    a7 = hn::MulAdd(a7, m, c);
    a8 = hn::MulAdd(a8, m, c);
    a9 = hn::MulAdd(a9, m, c);
    a10 = hn::MulAdd(a10, m, c);
    a11 = hn::MulAdd(a11, m, c);
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
    b0 = hn::MulAdd(b0, m, c);
    b1 = hn::MulAdd(b1, m, c);
    b2 = hn::MulAdd(b2, m, c);
    b3 = hn::MulAdd(b3, m, c);
    b4 = hn::MulAdd(b4, m, c);
    b5 = hn::MulAdd(b5, m, c);
    b6 = hn::MulAdd(b6, m, c);
    b7 = hn::MulAdd(b7, m, c);
    b8 = hn::MulAdd(b8, m, c);
    b9 = hn::MulAdd(b9, m, c);
    b10 = hn::MulAdd(b10, m, c);
    b11 = hn::MulAdd(b11, m, c);
#endif
  }
  auto sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  sum = hn::Add(sum, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11)));
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
  sum = hn::Add(sum, hn::Add(hn::Add(hn::Add(b0, b1), hn::Add(b2, b3)), hn::Add(hn::Add(b4, b5), hn::Add(b6, b7))));
  sum = hn::Add(sum, hn::Add(hn::Add(b8, b9), hn::Add(b10, b11)));
#endif
  volatile float sink = hn::GetLane(sum);
  (void)sink;
  return 2.0 * static_cast<double>(kChains * hn::Lanes(d) * steps);
}

template <bool kPrefetch>
uint64_t Read(const void* data, size_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  const size_t n = hn::Lanes(d);
  const size_t step = 8 * n;
  const uint64_t* p = static_cast<const uint64_t*>(data);
  const uint64_t* end = p + bytes / sizeof(uint64_t) / step * step;
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  for (; p != end; p += step) {
    if constexpr (kPrefetch) {
      for (size_t i = 0; i < step; i += 8) hwy::Prefetch(p + 512 + i);
    }
    a0 = hn::Or(a0, hn::LoadU(d, p));
    a1 = hn::Or(a1, hn::LoadU(d, p + n));
    a2 = hn::Or(a2, hn::LoadU(d, p + 2 * n));
    a3 = hn::Or(a3, hn::LoadU(d, p + 3 * n));
    a4 = hn::Or(a4, hn::LoadU(d, p + 4 * n));
    a5 = hn::Or(a5, hn::LoadU(d, p + 5 * n));
    a6 = hn::Or(a6, hn::LoadU(d, p + 6 * n));
    a7 = hn::Or(a7, hn::LoadU(d, p + 7 * n));
  }
  const auto all = hn::Or(hn::Or(hn::Or(a0, a1), hn::Or(a2, a3)), hn::Or(hn::Or(a4, a5), hn::Or(a6, a7)));
  return hn::GetLane(all);
}

void Copy(const void* from, void* to, size_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  const size_t n = hn::Lanes(d);
  const size_t step = 8 * n;
  const uint64_t* p = static_cast<const uint64_t*>(from);
  const uint64_t* end = p + bytes / sizeof(uint64_t) / step * step;
  uint64_t* out = static_cast<uint64_t*>(to);
  for (; p != end; p += step, out += step) {
    const auto v0 = hn::LoadU(d, p), v1 = hn::LoadU(d, p + n), v2 = hn::LoadU(d, p + 2 * n);
    const auto v3 = hn::LoadU(d, p + 3 * n), v4 = hn::LoadU(d, p + 4 * n), v5 = hn::LoadU(d, p + 5 * n);
    const auto v6 = hn::LoadU(d, p + 6 * n), v7 = hn::LoadU(d, p + 7 * n);
    hn::StoreU(v0, d, out);
    hn::StoreU(v1, d, out + n);
    hn::StoreU(v2, d, out + 2 * n);
    hn::StoreU(v3, d, out + 3 * n);
    hn::StoreU(v4, d, out + 4 * n);
    hn::StoreU(v5, d, out + 5 * n);
    hn::StoreU(v6, d, out + 6 * n);
    hn::StoreU(v7, d, out + 7 * n);
  }
}

constexpr const char* kName = HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86  ? "avx3"
                              : HWY_TARGET == HWY_AVX2                ? "avx2"
                              : HWY_ARCH_X86                          ? "sse2"
                              : HWY_ARCH_ARM_A64 && HWY_HAVE_SCALABLE ? "sve"
                              : HWY_ARCH_ARM_A64                      ? "neon"
                                                                      : "emulated";

}  // namespace

Isa Probes() { return {kName, hn::Lanes(hn::ScalableTag<uint8_t>()), Fma, Read<false>, Read<true>, Copy}; }

}  // namespace HWY_NAMESPACE
}  // namespace bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

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
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The functions that return the probes are compiled for their CPUs as well (the vector length of SVE is only known
// there), so they are called on first use and never as initialisers.
struct Entry {
  const char* name;
  Isa (*probes)();
};
const Entry kEntries[] = {
#if HWY_TARGETS & HWY_AVX3
    {"avx3", N_AVX3::Probes},
#endif
#if HWY_TARGETS & HWY_AVX2
    {"avx2", N_AVX2::Probes},
#endif
#if HWY_TARGETS & HWY_SSE2
    {"sse2", N_SSE2::Probes},
#endif
#if HWY_TARGETS & HWY_SVE  // runs at every vector length
    {"sve", N_SVE::Probes},
#endif
#if HWY_TARGETS & HWY_NEON
    {"neon", N_NEON::Probes},
#elif HWY_TARGETS & HWY_NEON_WITHOUT_AES
    {"neon", N_NEON_WITHOUT_AES::Probes},
#endif
};

bool vouched_for(std::string_view isa) {
  for (const simdattn::Target* t : simdattn::targets()) {
    if (simdattn::runnable(*t) && isa_of_target(simdattn::name(*t)) == isa) return true;
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
  if (has("avx3") || has("avx512") || has("avx10")) return "avx3";
  if (has("avx2") || has("fma3")) return "avx2";
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

Machine measure_machine() {
  Machine m;
  m.cpu = cpu_name();
  m.levels = levels();
  for (const Isa* isa : runnable_isas()) m.isas.push_back({isa, 0, std::vector<double>(m.levels.size())});
  m.copy.resize(m.levels.size());

  const Buffer data(m.levels.back().bytes);
  std::memset(data.data(), 1, data.size());
  volatile uint64_t sink = 0;
  constexpr size_t kSampleBytes = size_t{4} << 20;  // tens of microseconds from a cache
  constexpr size_t kFmaSteps = 4000;
  constexpr size_t kAdds = 1 << 16;
  constexpr int kRounds = 30;

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

  for (size_t l = 0; l < m.levels.size(); ++l) {
    const bool dram = l + 1 == m.levels.size();
    // A DRAM sample is a part of the buffer that was not touched since more than a cache of other bytes was.
    const size_t parts = dram ? 24 : 1;
    const size_t bytes = m.levels[l].bytes / parts / 4096 * 4096;
    const size_t passes = dram ? 1 : std::max<size_t>(1, kSampleBytes / bytes);
    const int rounds = dram ? 8 : kRounds;
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
  return m;
}

}  // namespace bench

#endif  // HWY_ONCE

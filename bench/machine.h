// What this machine can do: the limits that the benchmark's shares are shares of, measured in the same run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/probes.h"

namespace bench {

/// The set whose limits apply to a target: "highway/avx3" and "xsimd/avx512bw" are "avx3". Empty for "scalar".
std::string isa_of_target(std::string_view target);
/// The probes of a set, or null if they are not compiled in.
const Isa* find_isa(std::string_view name);
/// The sets with probes that some runnable target of the library vouches for, widest first.
std::vector<const Isa*> runnable_isas();

/// One dependent addition per step: the clock is steps / seconds.
void dependent_adds(size_t steps);

/// Memory for measurements: 64-byte aligned, huge pages where the system gives them, so that the figures are about
/// caches and not about the luck of page placement.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  void* data() const { return data_.get(); }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  std::span<const std::byte> bytes() const { return {as<const std::byte>(), size_}; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

struct CacheSizes {
  size_t l1 = 32 << 10;
  size_t l2 = 512 << 10;
  size_t l3 = 8 << 20;
};
/// Of one core, data and unified caches; the defaults above where the system does not tell.
const CacheSizes& cache_sizes();
std::string cpu_name();

struct Level {
  const char* name;  // "L1", "L2", "L3", "DRAM"
  size_t bytes;      // read in the probe
};
/// Half of L1 and of L2, a size between L2 and L3, and one beyond L3 (at most 1 GiB or a quarter of the free memory).
std::vector<Level> levels();

struct IsaPeak {
  const Isa* isa;
  double flops = 0;          // per second
  std::vector<double> read;  // bytes per second, one per level
};
struct Machine {
  std::string cpu;
  double clock = 0;  // Hz
  std::vector<Level> levels;
  std::vector<IsaPeak> isas;
  std::vector<double>
      copy;  // memcpy: bytes copied per second where source and destination together have a level's size
};
/// Interleaves the probes in short samples, about a second in all.
Machine measure_machine();

}  // namespace bench

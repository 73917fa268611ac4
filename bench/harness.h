// Cases, and how they are measured.
//
// All contestants of a case (every target, what they are compared with, and the probes of the machine's limits) take
// turns in short samples within one process, in another order each time: whoever always followed the same one would
// find the caches as that one leaves them (after the slow definition up to 40 % slower). What is quoted is the 10 %
// quantile of the samples, with the distance to the median as the spread. Two separate runs are never compared. Every
// target is verified against the target "scalar" on the same data before it is timed: bit for bit if it is exact, else
// within a bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/peers/peer.h"
#include "simdattn/simdattn.h"

namespace bench {

// ---------------------------------------------------------------------------------------------------------------------
// What a case is

/// A case with its data in memory.
struct Prepared {
  std::shared_ptr<void> keep;  // owns whatever the functions refer to
  /// One call. `scalar_part`: only the part that the definition computes for the comparison.
  std::function<simdattn::Status(const simdattn::Target*, bool scalar_part)> run;
  /// Share of the work that the scalar part is.
  double scalar_share = 1;
  /// Where run() writes, and the elements that the scalar part covers.
  void* out = nullptr;
  simdattn::DType out_dtype = simdattn::DType::kF32;
  size_t out_elements = 0;
  size_t first = 0;
  size_t count = 0;
  /// |result - definition| <= absolute + relative * |definition| for targets without fused multiply-add.
  double absolute = 0;
  double relative = 0;
  /// Work of one call: flops, and the memory that has to be streamed once. The limit of the case is the larger of the
  /// times that the machine needs for either.
  double flops = 0;
  std::vector<std::span<const std::byte>> streams;
  /// Bytes of output, if what the case is compared with is a copy of so many; `in_place`: of the same footprint.
  size_t copy_bytes = 0;
  bool in_place = false;
  /// Another call on the same target that puts the time into relation; see Case::companion.
  std::function<simdattn::Status(const simdattn::Target*)> companion;
  /// Work of the case over that of its companion, if the times are to be compared per unit of work.
  double companion_work = 1;
  /// Calls that the companion saves while it does the same work: the difference, per call, is what a call costs.
  double more_calls = 0;
  /// The same problem for the libraries to compare with, and for the exact result; with arrays.
  Work work{};
  /// Restores the input of a call that works in place; untimed, before verification only.
  std::function<void()> reset;
};

struct Case {
  std::string kernel;
  std::string shape;
  std::string type;
  bool main = false;                // in the selection that runs without --full
  bool peers = false;               // in the selection of --peers
  double elements = 0;              // for cycles per element; 0 = not reported
  double weight = 1;                // its share of the time, in relation to other cases
  bool threads = false;             // runs on several threads: wall time counts
  double bytes = 0;                 // for GB/s; 0 = the streams
  const char* companion = nullptr;  // what the companion is: the time is given as a multiple of its time
  bool fixed_cost = false;          // the time itself is the result: no limit
  Work work{};                      // what other libraries are asked for: prepare() fills in the arrays
  std::function<Prepared()> prepare;

  std::string name() const { return kernel + "/" + shape + "/" + type; }
};

std::vector<Case> all_cases();

void add_softmax_cases(std::vector<Case>& cases);
void add_masked_softmax_cases(std::vector<Case>& cases);
void add_scores_cases(std::vector<Case>& cases);
void add_weighted_values_cases(std::vector<Case>& cases);
void add_rope_cases(std::vector<Case>& cases);
void add_position_cases(std::vector<Case>& cases);
void add_kv_cases(std::vector<Case>& cases);
void add_other_scores_cases(std::vector<Case>& cases);
void add_attention_cases(std::vector<Case>& cases);
void add_mask_cases(std::vector<Case>& cases);
void add_arithmetic_cases(std::vector<Case>& cases);
void add_narrow_cases(std::vector<Case>& cases);
void add_plan_cases(std::vector<Case>& cases);
void add_state_cases(std::vector<Case>& cases);
void add_call_cost_cases(std::vector<Case>& cases);
void add_selection_cases(std::vector<Case>& cases);

// ---------------------------------------------------------------------------------------------------------------------
// Measuring

/// What is known of one contestant of one case. Rates and shares are zero where they make no sense.
struct Result {
  std::string target;
  std::string error;  // verification or the call failed: nothing was timed
  double ns = 0;      // per call, the 10 % quantile
  double spread = 0;  // median over quantile, minus 1
  int samples = 0;
  std::map<std::string, double> counters;
};

/// True if the figure should be taken with care: few samples, or a median far from the quantile.
bool noisy(double spread, int samples);

struct MeasureOptions {
  std::vector<const simdattn::Target*> targets;  // "scalar" among them or not
  double seconds = 1;                            // for all contestants together
  uint64_t seed = 1;                             // of the order within each turn
  /// Every target a second time, as "NAME again", and a third time with idle additions for a
  /// tenth of its time, as "NAME and a tenth": what the figures of two names of one thing differ by, and whether a
  /// difference would be seen.
  bool twice = false;
};
/// Prepares, verifies and times.
std::vector<Result> measure(const Case& c, const MeasureOptions& options);

// ---------------------------------------------------------------------------------------------------------------------
// Data

/// Fills with numbers in [-amplitude, amplitude], the same for the same seed.
void fill(void* data, simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude = 1);
size_t element_size(simdattn::DType dtype);
const char* type_name(simdattn::DType dtype);
/// A filled buffer.
Buffer random_buffer(simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude = 1);
/// Bytes with which every runnable target solves every problem that has queries.
size_t most_workspace(std::initializer_list<const simdattn::AttentionProblem*> problems);

}  // namespace bench

// The table of a run. Pages of several runs are made from their JSON files by tools/bench_report.py.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// One row of a JSON report: a case on a target.
struct Record {
  std::string kernel, shape, type, target;
  std::string note;   // what `relative` is relative to
  std::string error;  // not timed
  double ns = 0;
  std::map<std::string, double> counters;
};

struct Report {
  std::string file;
  std::vector<std::pair<std::string, std::string>> context;  // "cpu", "clock", "limits ...", in order
  std::vector<Record> records;
};

/// Splits "softmax/32x4096/f32/highway/avx2" into a record; what Google Benchmark appends is dropped. False if the name
/// has too few parts.
bool parse_name(std::string name, Record* record);

/// Kernels and shapes as rows; scalar, every target, the best and its share of the machine's limit as columns.
void print_table(const Report& report, std::FILE* out);

/// Of a run in which every target stood under three names: prints how far apart two names of the same code were, and
/// whether a tenth more work was seen. False if any row says otherwise.
bool print_self_check(const Report& report, std::FILE* out);
/// Two names of the same code are this far apart at most.
inline constexpr double kSelfCheckNoise = 0.05;

}  // namespace bench

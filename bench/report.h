// Tables: of one run, and of the JSON files of several runs side by side.
#ifndef SIMDATTN_BENCH_REPORT_H_
#define SIMDATTN_BENCH_REPORT_H_

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

/// Reads a report that simdattn-bench wrote. On failure returns false and says why.
bool read_report(const std::string& file, Report* report, std::string* error);

/// Kernels and shapes as rows; scalar, every target, the best and its share of the machine's limit as columns.
void print_table(const Report& report, std::FILE* out);

/// One row per case, one group of columns per report.
void print_merged(const std::vector<Report>& reports, std::FILE* out);

}  // namespace bench

#endif  // SIMDATTN_BENCH_REPORT_H_

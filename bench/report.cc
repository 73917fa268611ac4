#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace bench {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Text

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

/// Three significant digits.
std::string digits(double v) { return format(v < 9.995 ? "%.2f" : v < 99.95 ? "%.1f" : "%.0f", v); }

std::string time_text(double ns) {
  if (ns < 999.5) return digits(ns) + " ns";
  if (ns < 999.5e3) return digits(ns * 1e-3) + " us";
  if (ns < 999.5e6) return digits(ns * 1e-6) + " ms";
  return digits(ns * 1e-9) + " s";
}

double counter(const Record& r, const char* name) {
  const auto it = r.counters.find(name);
  return it == r.counters.end() ? 0 : it->second;
}

std::string time_cell(const Record& r) {
  if (!r.error.empty()) return "FAILED";
  return time_text(r.ns) + (counter(r, "noisy") > 0 ? "~" : " ");
}

/// Most targets are Highway's: their columns go without its name.
std::string short_name(const std::string& target) {
  constexpr std::string_view kPrefix = "highway/";
  return target.starts_with(kPrefix) ? target.substr(kPrefix.size()) : target;
}

bool is_peer(const std::string& target) { return target.starts_with("peer/"); }

std::string share_cell(const Record& r) {
  const double share = counter(r, "share");
  if (share <= 0) return "";
  const char* kind = counter(r, "limit_is_copy") > 0 ? " copy" : counter(r, "limit_is_read") > 0 ? " read" : " fma ";
  return format("%.0f%%", 100 * share) + kind;
}

std::string note_cell(const Record& r) {
  std::string note;
  if (counter(r, "cycles_per_element") > 0) note = format("%.2f cycles/element", counter(r, "cycles_per_element"));
  if (counter(r, "relative") > 0) {
    if (!note.empty()) note += ", ";
    note += format("%.2fx ", counter(r, "relative")) + r.note;
  }
  if (note.empty() && counter(r, "share") > 0) {
    const bool flops = counter(r, "limit_is_fma") > 0;
    note = digits(counter(r, flops ? "GFLOP_per_s" : "GB_per_s")) + (flops ? " GFLOP/s" : " GB/s");
  }
  return note;
}

/// Rows of cells; the first column and the last are left-aligned, the others right-aligned.
class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void gap() { rows_.emplace_back(); }
  void print(std::FILE* out, size_t left_columns) const {
    std::vector<size_t> width;
    for (const auto& row : rows_) {
      width.resize(std::max(width.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
    }
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string pad(width[i] - row[i].size(), ' ');
        const bool left = i < left_columns || i + 1 == width.size();
        line += (i > 0 ? "  " : "") + (left ? row[i] + pad : pad + row[i]);
      }
      while (!line.empty() && line.back() == ' ') line.pop_back();
      std::fprintf(out, "%s\n", line.c_str());
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

template <class T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

struct Key {
  std::string kernel, shape, type;
  bool operator==(const Key&) const = default;
};
Key key_of(const Record& r) { return {r.kernel, r.shape, r.type}; }

const Record* find(const Report& report, const Key& key, const std::string& target) {
  for (const Record& r : report.records) {
    if (r.target == target && key_of(r) == key) return &r;
  }
  return nullptr;
}

/// The fastest target that is not the definition (unless there is no other) and not a peer; peers if asked for.
const Record* fastest(const Report& report, const Key& key, bool peers) {
  const Record* best = nullptr;
  for (const Record& r : report.records) {
    if (key_of(r) != key || !r.error.empty() || is_peer(r.target) != peers) continue;
    if (best == nullptr || best->target == "scalar" || (r.target != "scalar" && r.ns < best->ns)) best = &r;
  }
  return best;
}

void print_context(const Report& report, std::FILE* out) {
  for (const auto& [key, value] : report.context) std::fprintf(out, "%-12s %s\n", key.c_str(), value.c_str());
}

void print_errors(const Report& report, std::FILE* out) {
  for (const Record& r : report.records) {
    if (r.error.empty()) continue;
    std::fprintf(out, "FAILED %s/%s/%s on %s: %s\n", r.kernel.c_str(), r.shape.c_str(), r.type.c_str(),
                 r.target.c_str(), r.error.c_str());
  }
}

}  // namespace

bool parse_name(std::string name, Record* record) {
  for (const char* suffix : {"/manual_time", "/iterations:1"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - std::string_view(suffix).size());
  }
  const size_t a = name.find('/');
  const size_t b = a == name.npos ? a : name.find('/', a + 1);
  const size_t c = b == name.npos ? b : name.find('/', b + 1);
  if (c == name.npos) return false;
  record->kernel = name.substr(0, a);
  record->shape = name.substr(a + 1, b - a - 1);
  record->type = name.substr(b + 1, c - b - 1);
  record->target = name.substr(c + 1);
  return true;
}

void print_table(const Report& report, std::FILE* out) {
  std::vector<Key> keys;
  std::vector<std::string> targets;
  bool peers = false;
  for (const Record& r : report.records) {
    add_once(keys, key_of(r));
    if (is_peer(r.target)) {
      peers = true;
    } else if (r.target != "scalar") {
      add_once(targets, r.target);
    }
  }
  print_context(report, out);
  std::fprintf(out, "\n");

  Table table;
  std::vector<std::string> header{"kernel", "shape", "type", "scalar"};
  for (const std::string& t : targets) header.push_back(short_name(t));
  if (peers) header.push_back("best peer");
  header.insert(header.end(), {"best", "vs scalar", "of limit", "best is"});
  table.add(header);
  std::string kernel;
  for (const Key& key : keys) {
    if (key.kernel != kernel) table.gap();
    kernel = key.kernel;
    std::vector<std::string> row{key.kernel, key.shape, key.type};
    const auto cell = [&](const Record* r) { row.push_back(r == nullptr ? "-" : time_cell(*r)); };
    cell(find(report, key, "scalar"));
    for (const std::string& t : targets) cell(find(report, key, t));
    if (peers) cell(fastest(report, key, true));
    if (const Record* best = fastest(report, key, false)) {
      row.push_back(short_name(best->target));
      row.push_back(counter(*best, "speedup") > 0 ? digits(counter(*best, "speedup")) + "x" : "");
      row.push_back(share_cell(*best));
      row.push_back(note_cell(*best));
    }
    table.add(row);
  }
  table.print(out, 3);
  std::fprintf(
      out,
      "\nTimes are per call: the 10 %% quantile of samples taken in turns with everything else in the row.\n"
      "~ noisy: the median is more than 10 %% above it, or there are fewer than 3 samples.\n"
      "The limit is this machine's, measured in the same turns: reading the same bytes (read), f32 multiply-adds "
      "(fma),\n"
      "or a copy of the output's size (copy; of half of it in place, so that the same memory is touched).\n"
      "Targets without a prefix are Highway's; the peers are plain loops and, with --peers, libraries.\n");
  print_errors(report, out);
}

bool print_self_check(const Report& report, std::FILE* out) {
  int seen = 0, missed = 0, apart = 0, alike = 0, restless = 0;
  std::vector<double> distances;
  for (const Record& r : report.records) {
    const Record* again = find(report, key_of(r), r.target + " again");
    const Record* slower = find(report, key_of(r), r.target + " and a tenth");
    if (again == nullptr || slower == nullptr || r.ns <= 0) continue;
    const double ratio = again->ns / r.ns, tenth = slower->ns / std::min(r.ns, again->ns);
    const char* verdict = "";
    if (counter(r, "noisy") > 0 || counter(*again, "noisy") > 0) {
      verdict = "~";
      ++restless;
    } else {
      const bool same = std::abs(ratio - 1) <= kSelfCheckNoise, found = tenth >= 1 + kSelfCheckNoise;
      verdict = !same ? "APART" : !found ? "A TENTH NOT SEEN" : "";
      ++(same ? alike : apart);
      ++(found ? seen : missed);
      distances.push_back(std::abs(ratio - 1));
    }
    std::fprintf(out, "%-64s again: %.3f  and a tenth: %.3f  %s\n",
                 (r.kernel + "/" + r.shape + "/" + r.type + "/" + r.target).c_str(), ratio, tenth, verdict);
  }
  if (distances.empty()) return false;
  std::sort(distances.begin(), distances.end());
  std::fprintf(out,
               "the same code under two names: %d of %d rows within %.0f %% (median %.1f %%, largest %.1f %%); "
               "a tenth more was seen in %d, missed in %d; %d rows were too noisy to tell (~)\n",
               alike, alike + apart, 100 * kSelfCheckNoise, 100 * distances[distances.size() / 2],
               100 * distances.back(), seen, missed, restless);
  return apart == 0 && missed == 0;
}

}  // namespace bench

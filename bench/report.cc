#include "bench/report.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

namespace bench {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// JSON, as far as Google Benchmark writes it

struct Json {
  std::string text;  // of strings, numbers and literals
  bool is_string = false;
  std::vector<std::string> keys;  // of an object: keys[i] belongs to items[i]
  std::vector<Json> items;

  const Json* find(std::string_view key) const {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == key) return &items[i];
    }
    return nullptr;
  }
};

class Parser {
 public:
  explicit Parser(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}
  bool parse(Json* value) { return parse_value(value, 0) && (skip(), p_ == end_); }

 private:
  void skip() {
    while (p_ != end_ && std::isspace(static_cast<unsigned char>(*p_))) ++p_;
  }
  bool eat(char c) {
    skip();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }
  bool parse_string(std::string* s) {
    if (!eat('"')) return false;
    while (p_ != end_ && *p_ != '"') {
      if (*p_ != '\\') {
        s->push_back(*p_++);
        continue;
      }
      if (++p_ == end_) return false;
      const char c = *p_++;
      if (c == 'u') {  // control characters only: nothing here prints them
        if (end_ - p_ < 4) return false;
        p_ += 4;
        s->push_back('?');
      } else {
        s->push_back(c == 'n' ? '\n' : c == 't' ? '\t' : c);
      }
    }
    return eat('"');
  }
  bool parse_value(Json* v, int depth) {
    if (depth > 32) return false;
    skip();
    if (p_ == end_) return false;
    if (*p_ == '"') {
      v->is_string = true;
      return parse_string(&v->text);
    }
    if (eat('[')) {
      if (eat(']')) return true;
      do {
        if (!parse_value(&v->items.emplace_back(), depth + 1)) return false;
      } while (eat(','));
      return eat(']');
    }
    if (eat('{')) {
      if (eat('}')) return true;
      do {
        if (!parse_string(&v->keys.emplace_back()) || !eat(':')) return false;
        if (!parse_value(&v->items.emplace_back(), depth + 1)) return false;
      } while (eat(','));
      return eat('}');
    }
    while (p_ != end_ && (std::isalnum(static_cast<unsigned char>(*p_)) || *p_ == '+' || *p_ == '-' || *p_ == '.')) {
      v->text.push_back(*p_++);
    }
    return !v->text.empty();
  }

  const char* p_;
  const char* end_;
};

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

bool is_loop(const std::string& target) { return target.starts_with("loop/"); }

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

/// The fastest target that is not the definition (unless there is no other) and not a loop; loops if asked for.
const Record* fastest(const Report& report, const Key& key, bool loops) {
  const Record* best = nullptr;
  for (const Record& r : report.records) {
    if (key_of(r) != key || !r.error.empty() || is_loop(r.target) != loops) continue;
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

bool read_report(const std::string& file, Report* report, std::string* error) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    *error = file + ": cannot be opened";
    return false;
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  Json json;
  if (!Parser(text).parse(&json)) {
    *error = file + ": not a complete JSON document";
    return false;
  }
  const Json* context = json.find("context");
  const Json* benchmarks = json.find("benchmarks");
  if (context == nullptr || benchmarks == nullptr) {
    *error = file + ": not a report of simdattn-bench (no \"context\" or no \"benchmarks\")";
    return false;
  }
  report->file = file;
  for (size_t i = 0; i < context->keys.size(); ++i) {
    const std::string& key = context->keys[i];
    for (const char* wanted : {"cpu", "clock", "read", "copy", "version", "date"}) {
      if (key == wanted || (key.starts_with("limits"))) {
        report->context.emplace_back(key, context->items[i].text);
        break;
      }
    }
  }
  for (const Json& b : benchmarks->items) {
    Record r;
    const Json* name = b.find("name");
    if (name == nullptr || !parse_name(name->text, &r)) {
      *error = file + ": a benchmark's name is not kernel/shape/type/target";
      return false;
    }
    for (size_t i = 0; i < b.keys.size(); ++i) {
      const std::string& key = b.keys[i];
      const Json& value = b.items[i];
      if (key == "label") r.note = value.text;
      if (key == "error_message") r.error = value.text;
      if (!value.is_string && value.items.empty()) {
        r.counters[key] = std::strtod(value.text.c_str(), nullptr);
      }
    }
    r.ns = counter(r, "real_time");
    const Json* unit = b.find("time_unit");
    if (unit != nullptr && unit->text == "us") r.ns *= 1e3;
    if (unit != nullptr && unit->text == "ms") r.ns *= 1e6;
    if (r.error.empty() && !(r.ns > 0)) {
      *error = file + ": " + name->text + " has no time";
      return false;
    }
    report->records.push_back(std::move(r));
  }
  return true;
}

void print_table(const Report& report, std::FILE* out) {
  std::vector<Key> keys;
  std::vector<std::string> targets;
  bool loops = false;
  for (const Record& r : report.records) {
    add_once(keys, key_of(r));
    if (is_loop(r.target)) {
      loops = true;
    } else if (r.target != "scalar") {
      add_once(targets, r.target);
    }
  }
  print_context(report, out);
  std::fprintf(out, "\n");

  Table table;
  std::vector<std::string> header{"kernel", "shape", "type", "scalar"};
  for (const std::string& t : targets) header.push_back(short_name(t));
  if (loops) header.push_back("plain loop");
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
    if (loops) cell(fastest(report, key, true));
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
      "Targets without a prefix are Highway's; the plain loop is compiled for the widest vectors that help it.\n");
  print_errors(report, out);
}

void print_merged(const std::vector<Report>& reports, std::FILE* out) {
  std::vector<Key> keys;
  const auto letter = [](size_t i) { return std::string(1, static_cast<char>('A' + i % 26)); };
  for (size_t i = 0; i < reports.size(); ++i) {
    std::fprintf(out, "%s = %s\n", letter(i).c_str(), reports[i].file.c_str());
    for (const auto& [key, value] : reports[i].context) {
      std::fprintf(out, "    %-12s %s\n", key.c_str(), value.c_str());
    }
    for (const Record& r : reports[i].records) add_once(keys, key_of(r));
  }
  std::fprintf(out, "\n");
  Table table;
  std::vector<std::string> header{"kernel", "shape", "type"};
  for (size_t i = 0; i < reports.size(); ++i) {
    header.insert(header.end(), {letter(i) + ": time", "target", "vs scalar", "of limit"});
  }
  table.add(header);
  std::string kernel;
  for (const Key& key : keys) {
    if (key.kernel != kernel) table.gap();
    kernel = key.kernel;
    std::vector<std::string> row{key.kernel, key.shape, key.type};
    for (const Report& report : reports) {
      const Record* best = fastest(report, key, false);
      if (best == nullptr) {
        row.insert(row.end(), {"-", "", "", ""});
        continue;
      }
      row.insert(row.end(),
                 {time_cell(*best), short_name(best->target),
                  counter(*best, "speedup") > 0 ? digits(counter(*best, "speedup")) + "x" : "", share_cell(*best)});
    }
    table.add(row);
  }
  table.print(out, 3);
  std::fprintf(out,
               "\nThe best target of each machine; ~ marks noisy times; shares are of each machine's own limits.\n");
  for (const Report& report : reports) print_errors(report, out);
}

}  // namespace bench

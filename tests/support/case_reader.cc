#include "tests/support/case_reader.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/reference.h"

namespace conformance {
namespace {

struct TypeName {
  const char* name;
  Type type;
  size_t bytes;
};
constexpr TypeName kTypes[] = {
    {"f64", Type::kF64, 8}, {"f32", Type::kF32, 4}, {"f16", Type::kF16, 2}, {"bf16", Type::kBF16, 2},
    {"i64", Type::kI64, 8}, {"i32", Type::kI32, 4}, {"u8", Type::kU8, 1},   {"bool", Type::kBool, 1},
};

size_t bytes_of(Type type) {
  for (const TypeName& t : kTypes) {
    if (t.type == type) return t.bytes;
  }
  return 0;
}

// One record of case.txt, read field by field.
class Record {
 public:
  Record(const std::string& line, std::string where) : stream_(line), where_(std::move(where)) {}

  bool next(std::string* word) { return static_cast<bool>(stream_ >> *word); }
  std::string word() {
    std::string result;
    if (!next(&result)) throw CaseError(where_ + ": a field is missing");
    return result;
  }
  double number() {
    const std::string text = word();
    char* end = nullptr;
    const double result = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0') throw CaseError(where_ + ": not a number: " + text);
    return result;
  }
  int64_t count(int64_t most) {
    const double result = number();
    if (!(result >= 0) || result > static_cast<double>(most) || result != std::floor(result)) {
      throw CaseError(where_ + ": not a size: " + std::to_string(result));
    }
    return static_cast<int64_t>(result);
  }
  Array array(const std::string& folder) {
    Array result;
    result.name = word();
    const std::string type = word();
    size_t element = 0;
    for (const TypeName& t : kTypes) {
      if (type == t.name) {
        result.type = t.type;
        element = t.bytes;
      }
    }
    if (element == 0) throw CaseError(where_ + ": unknown dtype " + type);
    constexpr int64_t kMost = int64_t{1} << 32;  // elements; no product of two such counts overflows
    int64_t elements = 1;
    for (int64_t rank = count(16); rank > 0; --rank) {
      result.shape.push_back(count(kMost));
      elements *= result.shape.back();
      if (elements > kMost) throw CaseError(where_ + ": the array is too large");
    }
    result.bytes = read_npy(folder + "/" + word(), static_cast<size_t>(elements) * element);
    return result;
  }

 private:
  std::istringstream stream_;
  std::string where_;
};

}  // namespace

std::vector<unsigned char> read_npy(const std::string& path, size_t wanted) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CaseError(path + ": cannot be opened");
  std::vector<unsigned char> bytes(std::filesystem::file_size(path));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw CaseError(path + ": cannot be read");
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY\x01", 7) != 0) {
    throw CaseError(path + ": not an NPY file of version 1");
  }
  const size_t start = 10 + bytes[8] + 256 * size_t{bytes[9]};
  if (bytes.size() != start + wanted) {
    throw CaseError(path + ": " + std::to_string(bytes.size()) + " bytes, " + std::to_string(start + wanted) +
                    " expected");
  }
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(start));
  return bytes;
}

int64_t Array::size() const { return static_cast<int64_t>(bytes.size() / bytes_of(type)); }

double Array::value(int64_t i) const {
  using simdattn::DType;
  switch (type) {
    case Type::kF64: {
      double result;
      std::memcpy(&result, bytes.data() + 8 * i, sizeof result);
      return result;
    }
    case Type::kF32: return reference::load(bytes.data(), DType::kF32, i);
    case Type::kF16: return reference::load(bytes.data(), DType::kF16, i);
    case Type::kBF16: return reference::load(bytes.data(), DType::kBF16, i);
    default: return static_cast<double>(integer(i));
  }
}

int64_t Array::integer(int64_t i) const {
  if (type == Type::kI64) {
    int64_t result;
    std::memcpy(&result, bytes.data() + 8 * i, sizeof result);
    return result;
  }
  if (type == Type::kI32) {
    int32_t result;
    std::memcpy(&result, bytes.data() + 4 * i, sizeof result);
    return result;
  }
  if (type == Type::kU8 || type == Type::kBool) return bytes[static_cast<size_t>(i)];
  throw CaseError(name + ": integers expected");
}

const Array* Case::find_input(const std::string& name) const {
  const auto it = inputs.find(name);
  return it == inputs.end() ? nullptr : &it->second;
}

const Array& Case::input(const std::string& name) const {
  const Array* found = find_input(name);
  if (found == nullptr) throw CaseError("the case has no input " + name);
  return *found;
}

const Output* Case::find_output(const std::string& name) const {
  for (const Output& output : outputs) {
    if (output.array.name == name) return &output;
  }
  return nullptr;
}

double Case::number(const std::string& attribute) const {
  const auto it = attributes.find(attribute);
  if (it == attributes.end() || it->second.numbers.size() != 1) throw CaseError("no number attribute " + attribute);
  return it->second.numbers[0];
}

double Case::number(const std::string& attribute, double fallback) const {
  return has(attribute) ? number(attribute) : fallback;
}

int64_t Case::integer(const std::string& attribute) const { return static_cast<int64_t>(number(attribute)); }

int64_t Case::integer(const std::string& attribute, int64_t fallback) const {
  return has(attribute) ? integer(attribute) : fallback;
}

const std::string& Case::word(const std::string& attribute) const {
  const auto it = attributes.find(attribute);
  if (it == attributes.end()) throw CaseError("no attribute " + attribute);
  return it->second.word;
}

std::vector<IndexEntry> read_index(const std::string& directory) {
  std::ifstream file(directory + "/index.txt");
  if (!file) throw CaseError(directory + "/index.txt: cannot be opened");
  std::vector<IndexEntry> result;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    IndexEntry entry;
    if (fields >> entry.id >> entry.op) result.push_back(entry);
  }
  return result;
}

Case read_case(const std::string& directory, const std::string& id) {
  const std::string folder = directory + "/" + id;
  std::ifstream file(folder + "/case.txt");
  if (!file) throw CaseError(folder + "/case.txt: cannot be opened");
  Case result;
  std::map<std::string, Array> tolerances;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    Record record(line, folder + "/case.txt:" + std::to_string(number));
    std::string kind;
    if (!record.next(&kind)) continue;
    if (kind == "format") {
      if (const std::string version = record.word(); version != "1") throw CaseError(folder + ": format " + version);
    } else if (kind == "id") {
      result.id = record.word();
    } else if (kind == "op") {
      result.op = record.word();
    } else if (kind == "attr") {
      Attribute& attribute = result.attributes[record.word()];
      const std::string type = record.word();
      if (type == "s") {
        attribute.word = record.word();
      } else {
        for (int64_t n = type == "is" || type == "fs" ? record.count(1 << 20) : 1; n > 0; --n) {
          attribute.numbers.push_back(record.number());
        }
      }
    } else if (kind == "input") {
      Array array = record.array(folder);
      result.inputs[array.name] = array;
    } else if (kind == "output") {
      Output output;
      output.array = record.array(folder);
      for (std::string word; record.next(&word);) {
        if (word == "rtol") output.rtol = record.number();
        if (word == "atol") output.atol = record.number();
      }
      result.outputs.push_back(output);
    } else if (kind == "tolerance") {
      Array array = record.array(folder);
      tolerances[array.name] = array;
    }
  }
  for (Output& output : result.outputs) {
    const auto it = tolerances.find(output.array.name + "_tol");
    if (it == tolerances.end()) continue;
    std::vector<int64_t> rows = output.array.shape;
    if (!rows.empty()) rows.pop_back();
    if (it->second.shape != output.array.shape && it->second.shape != rows) {
      throw CaseError(folder + ": the shape of " + it->first + " does not fit its output");
    }
    output.tolerance = it->second;
  }
  if (result.id != id) throw CaseError(folder + "/case.txt: its id is " + result.id);
  return result;
}

}  // namespace conformance

// Reads conformance cases: directories with a case.txt and NPY arrays, as the README of the vectors describes them.
// Everything is checked on the way in; what does not fit is a CaseError that names the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace conformance {

struct CaseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type { kF64, kF32, kF16, kBF16, kI64, kI32, kU8, kBool };

struct Array {
  std::string name;
  Type type = Type::kF32;
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;  // the elements, C order, little endian

  int64_t size() const;
  double value(int64_t i) const;
  int64_t integer(int64_t i) const;
};

struct Output {
  Array array;
  std::optional<double> rtol;
  std::optional<double> atol;
  std::optional<Array> tolerance;  // <output>_tol: absolute, of the output's shape or one per row
  /// An output without any allowance is informative.
  bool compared() const { return rtol || atol || tolerance; }
};

struct Attribute {
  std::vector<double> numbers;  // of i, f, is, fs
  std::string word;             // of s
};

struct Case {
  std::string id;
  std::string op;
  std::map<std::string, Attribute> attributes;
  std::map<std::string, Array> inputs;
  std::vector<Output> outputs;

  std::string group() const { return id.substr(0, id.find('/')); }
  const Array* find_input(const std::string& name) const;  // null if the case lacks it
  const Array& input(const std::string& name) const;
  const Output* find_output(const std::string& name) const;
  bool has(const std::string& attribute) const { return attributes.count(attribute) != 0; }
  double number(const std::string& attribute) const;
  double number(const std::string& attribute, double fallback) const;
  int64_t integer(const std::string& attribute) const;
  int64_t integer(const std::string& attribute, int64_t fallback) const;
  const std::string& word(const std::string& attribute) const;
};

struct IndexEntry {
  std::string id;
  std::string op;
};

/// The elements of an NPY file, which has to hold so many bytes of them.
std::vector<unsigned char> read_npy(const std::string& path, size_t wanted);
/// The lines of <directory>/index.txt.
std::vector<IndexEntry> read_index(const std::string& directory);
Case read_case(const std::string& directory, const std::string& id);

}  // namespace conformance
